"""The sink: rows become messages, exactly once.

May import: `martlet.client`, `martlet.reader`. Start with `sink`; each task fills a
`broker_transaction`, and a `CommitMessage` tells the driver which.
"""
