"""The brokers of a query: their HTTP addresses, what they hold, and polling them.

May import: `martlet.client`, `reader.options`. Start with `endpoint`, one broker; `brokers` is
all of them together.
"""
