"""The journal: the encoding of topics, channels, cursors and transactions in the log.

May import: `martlet.log`, `broker.queue`. Start with `entries`, which documents all entries;
`cursor_entry` is the binary one, `codec` encodes the others as JSON.
"""
