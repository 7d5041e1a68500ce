"""Channels: deliver a topic's messages to the consumers that share them.

May import: `martlet.log`, `broker.queue`, `broker.groups` and what those may. Start with `channel`.
`delivery` hands messages to consumers, `redelivery` requeues those that were not finished,
`ordering` keeps an order; `partitioned` is a channel over several queues.
"""
