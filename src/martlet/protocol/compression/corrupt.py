"""What is no compressed stream, or breaks off being one."""


class Corrupt(Exception):
    """Bytes that cannot be decompressed; the text says why."""
