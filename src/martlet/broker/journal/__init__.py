"""The journal: the bytes by which the log tells topics, channels, cursors and transactions.

May import: `martlet.log`, and nothing of the broker. Start with `entries`, which documents all
entries; `cursor_entry` is the one that is binary, `codec` makes JSON of the others.
"""
