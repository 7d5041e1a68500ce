"""Stats, metrics, statsd and the event log of a running server.

May import: `martlet.broker`, `server`. Start with `stats`, as nsqd's /stats, and `metrics`, as
Prometheus reads them.
"""
