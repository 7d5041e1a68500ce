"""RPC: the calls of Martlet's own clients and tools beside NSQ's commands.

May import: `martlet.broker`, `server`. Start with `registry`; `methods` lists the methods of all
modules, each of which has one subject.
"""
