"""The key index: finds messages by their keys without reading the log.

It is derived from the log and can be rebuilt at any time. Imports what `martlet.log` may import.
Start with `martlet.log.keys.index_file`, then `martlet.log.keys.search`.
"""
