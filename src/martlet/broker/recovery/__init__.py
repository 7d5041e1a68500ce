"""Recovery: what the journal says of topics, channels and transactions, and how it is read again.

May import: `martlet.log`, and the broker's other packages. Start with `journal`, the entries'
bytes; `journal_replay` reads them, `restore` makes a broker of what they say; `trace_search` looks
up one message.
"""
