"""Dead letters: messages that failed too often, in a topic of their own.

May import: `martlet.log`, `broker.topic` and what that may. Start with `dead_letter`, what such a
message carries; `send` puts it there, `redrive` brings it back.
"""
