"""RPC: what Martlet's own clients and tools ask for beside NSQ's commands, by a method's name.

May import: `martlet.broker`, `server`. Start with `registry`; each other module has the methods of
one noun, and `methods` puts them together.
"""
