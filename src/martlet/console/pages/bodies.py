"""How a message's body is shown: as text, as JSON with indents, or in hexadecimal digits.

::

    00000000  7b 22 69 64 22 3a 20 31  2c 20 22 74 61 67 22 3a  |{"id": 1, "tag":|
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

SHOWN_BYTES = 20_000
"""The maximum that is shown of one body on its own page."""
LISTED_BYTES = 2_000
"""The same in a list."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|,|:|[^\s{}\[\],:"]+')
_HEX_SHARE = 5
"""A byte takes so many times its room in hexadecimal digits."""
_MAX_GROWTH = 10
"""JSON that takes more times its room with indents, as it is nested deep, is shown as text."""
FORMS = ("text", "json", "hex")


@dataclass(frozen=True)
class BodyText:
    """A body, or the beginning of one, as it is shown."""

    text: str
    """What is shown."""
    form: str
    """One of `FORMS`."""
    shown_bytes: int
    """How many bytes of the body that is."""
    total_bytes: int

    @property
    def is_cut(self) -> bool:
        """Whether there is more."""
        return self.shown_bytes < self.total_bytes


def body_text(
    body: bytes, total_bytes: int | None = None, form: str = "", max_bytes: int = SHOWN_BYTES
) -> BodyText:
    """Return a body as it is shown.

    Args:
        body: its bytes, or the first of them.
        total_bytes: its size, if that is more.
        form: one of `FORMS`; JSON that is none, or is cut, is shown as text, and what is no UTF-8
            in hexadecimal digits. Empty for what fits.
        max_bytes: the maximum that is shown.
    """
    total = len(body) if total_bytes is None else total_bytes
    piece = body[:max_bytes]
    text = None if form == "hex" else _decoded(piece, is_cut=len(piece) < total)
    if text is None:
        piece = piece[: max(16, max_bytes // _HEX_SHARE)]
        return BodyText(_hex(piece), "hex", len(piece), total)
    if form != "text" and len(piece) == total and (indented := _indented(text)) is not None:
        return BodyText(indented, "json", total, total)
    return BodyText(text, "text", len(text.encode()), total)


def _decoded(body: bytes, *, is_cut: bool) -> str | None:
    """Return UTF-8 as text, without a character that was cut; None for other bytes."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.end == len(body) and len(body) - error.start < 4:
            return body[: error.start].decode()
        return None


def _indented(text: str) -> str | None:
    """Return JSON with indents and its numbers and texts as they are; None for other text, and for
    what is nested too deep.
    """
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    pieces: list[str] = []
    depth = 0
    before = ""
    left = _MAX_GROWTH * len(text)
    for token in _TOKEN.findall(text):
        left -= 2 * depth
        if left < 0:
            return None
        if token in "}]":
            depth -= 1
            pieces.append(token if before in "{[" else "\n" + "  " * depth + token)
        else:
            if before and before in "{[,":
                pieces.append("\n" + "  " * depth)
            pieces.append(": " if token == ":" else token)
            depth += token in "{["
        before = token
    return "".join(pieces)


def _hex(body: bytes) -> str:
    return "\n".join(
        f"{at:08x}  {body[at : at + 8].hex(' '):23}  {body[at + 8 : at + 16].hex(' '):23}"
        f"  |{''.join(chr(byte) if 32 <= byte < 127 else '.' for byte in body[at : at + 16])}|"
        for at in range(0, len(body), 16)
    )
