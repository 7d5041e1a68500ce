"""The command line: one file for each command, with its flags, run and output.

May import: all. Start with `main`, which finds the command; `start` reads its flags, `tool` runs
all except servers. Servers are in `servers`, the counterparts of NSQ's tools in `nsq_tools`,
commands that inspect and change brokers in `admin`.
"""
