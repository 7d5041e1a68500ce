"""The error of a compressed stream that cannot be decompressed."""


class Corrupt(Exception):
    """Bytes that cannot be decompressed; the text says why."""
