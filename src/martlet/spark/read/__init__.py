"""The source: a topic as a table, by batch and by stream.

May import: `martlet.reader`. Start with `batch`, then `stream`.
"""
