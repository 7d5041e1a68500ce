"""NSQ's TCP protocol at the server: connections, their commands and their replies.

May import: `martlet.broker`, `martlet.protocol`, `martlet.layer`, `server`. Start with
`connection`; `publish`, `send` and `acks` are its commands, `reply_queue` keeps the replies in
order.
"""
