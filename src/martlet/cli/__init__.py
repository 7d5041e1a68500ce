"""The command line: one file for each command, with its flags, its run and what it prints.

May import: all. Start with `main`, which finds the command; `start` reads its flags, `tool` runs
all but servers. Servers are in `servers`, the counterparts of NSQ's tools in `nsq_tools`, what
looks at brokers and changes them in `admin`.
"""
