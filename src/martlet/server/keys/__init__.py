"""The indexes of keys of a broker's log, and searches in them.

May import what `martlet.server` may import. Start with `martlet.server.key_indexer`.
"""
