"""The lookup daemon (nsqlookupd): which brokers have which topics and channels.

May import: `martlet.protocol`, `martlet.layer`, and the HTTP server of `martlet.server`. Start with
`registry`, which has no I/O; `failovers` is about brokers with replicas.
"""
