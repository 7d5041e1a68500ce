"""Texts of results: rows in columns, lines of JSON, ages and times."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any


def laid_out(rows: Sequence[tuple[str, ...]], numbers: Collection[int] = ()) -> list[str]:
    """Format rows in columns, some right-aligned; return no line for a header alone."""
    if len(rows) < 2:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def printable(text: str) -> str:
    """Escape characters that control a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def json_line(fields: Mapping[str, Any]) -> str:
    """Return an object as a line of JSON."""
    return json.dumps(fields, ensure_ascii=False)


def body_text(message: Mapping[str, Any]) -> str:
    """Format the body of a message in a broker's answer, as text if it is text."""
    if message["body"] is None:
        return repr(b64decode(message["body_base64"]))[2:-1]
    return printable(message["body"])


def age(seconds: float) -> str:
    """Format an age in the largest unit of which it has at least two."""
    count = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if count >= 2 * length:
            return f"{count // length}{unit}"
    return f"{count}s"


def local_time(time_ms: int, timespec: str = "seconds") -> str:
    """Format milliseconds since 1970 as a local time with its zone."""
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(timespec=timespec)
