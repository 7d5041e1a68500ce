"""Where replicas agree on who is primary: etcd for several machines, SQLite for one.

May import: `martlet.replica`. Start with `store`, the interface that both keep.
"""
