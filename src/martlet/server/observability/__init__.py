"""Stats, metrics, statsd and the event log of a running server.

May import: `martlet.broker`, `server`. Start with `stats`, for nsqd's /stats, and `metrics`, for
Prometheus.
"""
