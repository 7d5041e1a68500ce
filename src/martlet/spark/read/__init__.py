"""The source: a topic as a table, by batch and by stream.

May import: `martlet.log`, `spark.brokers`. Start with `batch`, then `stream`; a `split` becomes a
`task`, and `decode` makes Arrow columns of log records.
"""
