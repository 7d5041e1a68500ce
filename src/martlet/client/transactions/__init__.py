"""Transactions from a client: messages that become visible together or not at all.

May import: `client.producer`, `client.transport`, `client.hooks`. Start with `transaction`; `bulk`
fills one in blocks, `check_back` answers the broker's check-backs.
"""
