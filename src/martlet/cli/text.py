"""Rows for people, laid out in columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def laid_out(rows: Sequence[tuple[str, ...]], numbers: Collection[int] = ()) -> list[str]:
    """Rows as lines, with the columns of these numbers to the right; none where there is only the
    head.
    """
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
    """Text on a terminal: what would move its cursor or colour it stands as an escape."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
