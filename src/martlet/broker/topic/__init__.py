"""Topics: queues of messages, and the channels that read them.

May import: `martlet.log`, and the broker's other packages. Start with `topic`; `queue_log` is one
queue's messages in the log, `partitioned` a topic of several queues seen as one.
"""
