"""NSQ's TCP protocol at the server: connections, their commands and their replies.

May import: `martlet.broker`, `martlet.protocol`, `martlet.layer`, `server`. Start with
`connection`; `publish` and `subscription` have its main commands, and `client_io` keeps the
replies in order.
"""
