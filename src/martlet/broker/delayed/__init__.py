"""Delayed messages: stored now, delivered at a time.

May import: `martlet.log`, `broker.topic` and what that may. Start with `delayed_messages`; a
`bucket` holds the messages due in one span of time.
"""
