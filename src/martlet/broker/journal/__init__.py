"""The journal: the encoding of topics, channels, cursors and transactions in the log.

May import: `martlet.log`, `broker.queue`, `broker.tracing`. Start with `entries`, which documents
all entries; `cursors` has the binary one, `codec` encodes the others as JSON.
"""
