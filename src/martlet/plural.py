"""Counts in words: ``1 message``, ``2 messages``."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "", *, form: str = "") -> str:
    """Format a count with its noun, such as ``1 queue`` and ``3 queues``.

    Args:
        count: the number.
        noun: the singular.
        plural: for any other count; by default the noun and an s.
        form: the number's format, such as ``,`` for ``1,000 messages``.
    """
    return f"{count:{form}} {noun if count == 1 else plural or noun + 's'}"
