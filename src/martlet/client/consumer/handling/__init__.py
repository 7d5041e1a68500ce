"""Handling: how a handler is run, kept alive, and what follows when it fails.

May import: `client.consumer`. Start with `worker`; `handler_pool` runs handlers that block,
`failure_policy` and `backoff` say what a failure costs.
"""
