"""Snappy and deflate as NSQ's connections use them: bytes in, bytes out.

May import: none of Martlet's packages. Start with `deflate`, the smaller one.
"""


class Corrupt(Exception):
    """Bytes that cannot be decompressed; the text says why."""
