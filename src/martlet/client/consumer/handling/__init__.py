"""Handling: run a handler, keep its messages from timing out, and retry after failures.

May import: `client.consumer`. Start with `worker`; `handler_pool` runs handlers that block,
`failure_policy` retries messages and `backoff` slows the consumer down.
"""
