"""Transactions: messages that are seen together or not at all.

May import: `martlet.log`, `broker.delayed`, `broker.topic` and what that may. Start with `state`,
the state machine as a table; `manager` keeps all that are open, and `publish` makes the messages of
a committed one visible.
"""
