"""Texts that strangers wrote, as pages show them."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    r"""Return a text with control and bidirectional characters as ``\u202e``: what a stranger wrote
    must not change how the page around it reads.
    """
    return "".join(
        character if character in "\n\t" or not _is_hidden(character) else _escape(character)
        for character in text
    )


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
