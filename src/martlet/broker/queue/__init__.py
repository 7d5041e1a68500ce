"""One queue of a topic: its messages in the log, and how far a channel has come with them.

May import: `martlet.log`, `broker.tracing`, the broker's own modules. Start with `queue_log`, the
messages, and `cursor`, a channel's position; what `consumer`s hold is `in_flight`, or `pending`
once it needs a time of its own.
"""
