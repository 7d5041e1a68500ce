"""Dead letters: messages that failed too often, moved to a topic of their own.

May import: `martlet.log`, `broker.topic` and what that may. Start with `dead_letter`, the
properties of such a message and its move to that topic; `redrive` brings it back.
"""
