"""Where replicas agree on who is primary: etcd for several machines, SQLite for one.

`store` has the interface that both keep.
"""
