"""Commands that run servers: a broker, a lookup daemon, or both under a supervisor.

May import: `martlet.server`, `martlet.lookup`, `martlet.supervisor`. Start with `broker`.
"""
