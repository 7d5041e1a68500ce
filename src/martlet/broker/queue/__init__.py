"""One queue of a topic: its messages in the log, and a channel's position in them.

May import: `martlet.log`, `broker.tracing`, the broker's own modules. Start with `queue_log`, the
messages, and `cursor`, a channel's position; the messages that consumers hold are `in_flight`, or
`pending` once one needs a time of its own.
"""
