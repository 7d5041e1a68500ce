"""Texts that strangers wrote, as pages and refusals show them."""

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


def shown_value(value: object, max_characters: int = 40) -> str:
    """Return the beginning of a value of JSON, for the refusal of it. A list or an object is only
    called so: it may be nested too deeply for repr.
    """
    if isinstance(value, list | tuple | dict):
        return "an object" if isinstance(value, dict) else "a list"
    # JSON can hold half a pair of surrogates, which an answer cannot.
    shown = str(value).encode("utf-8", "replace").decode()[:max_characters]
    return repr(shown) if isinstance(value, str) else shown


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
