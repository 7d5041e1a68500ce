"""Consume as NSQ's clients do: the broker pushes, the consumer finishes or requeues.

May import: `client.transport`, `client.hooks`, `client.errors`. Start with `consumer`; a
`subscription` is its part at one broker, `rdy` distributes the prefetch among them, and `handling`
runs handlers.
"""
