"""What a running server says of itself: stats, metrics, statsd, its event log, profiles.

May import: `martlet.broker`, `server`. Start with `stats`, as nsqd's /stats, and `metrics`, as
Prometheus reads them.
"""
