"""Transactions: messages that become visible together or not at all.

May import: `martlet.log`, `broker.delayed`, `broker.topic` and what that may. Start with `state`,
the state machine as a table, and the outcomes of ended ones; `manager` keeps the open transactions,
`half_messages` stores their messages and makes them visible, and `check_back` asks the producers of
inactive ones.
"""
