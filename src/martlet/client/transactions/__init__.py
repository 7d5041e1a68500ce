"""Transactions from a client: messages that are seen together or not at all.

May import: `client.producer`, `client.transport`. Start with `transaction`; `bulk` fills one by the
block, `check_back` answers the broker's questions.
"""
