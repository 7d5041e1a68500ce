"""Transactions: messages that become visible together or not at all.

May import: `martlet.log`, `broker.delayed`, `broker.topic` and what that may. Start with `state`,
the state machine as a table; `manager` keeps the open transactions, and `publish` makes the
messages of a committed one visible.
"""
