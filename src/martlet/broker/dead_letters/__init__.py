"""Dead letters: messages that failed too often, moved to a topic of their own.

May import: `martlet.log`, `broker.topic` and what that may. Start with `dead_letter`, the
properties of such a message; `send` moves it there, `redrive` moves it back.
"""
