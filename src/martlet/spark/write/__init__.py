"""The sink: rows become messages, exactly once.

May import: `martlet.client`, `spark.brokers`. Start with `sink`; each task fills a
`broker_transaction`, and its `commit_message` tells the driver which.
"""
