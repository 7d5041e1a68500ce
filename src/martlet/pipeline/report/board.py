"""The board: the newest figures as they stand, to be shown and to be found again after a restart.

A figure that is still open is told again and again, each time with its new values; the board keeps
the last of each, by what it is of (window and groups), and forgets the oldest windows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from martlet.pipeline.report.query import START

MOST_ROWS = 5000
"""Of one figure."""
Row = dict[str, Any]


class Board:
    """The newest rows of one figure.

    Args:
        keys: the columns that say what a row is of; none where each telling replaces all.
        path: where the rows are kept over a restart.
    """

    def __init__(self, keys: Sequence[str], path: Path | None = None) -> None:
        self._keys = tuple(keys)
        self._path = path
        self._rows: dict[tuple[str, ...], Row] = {}
        if path is not None and path.exists():
            self._take(_read(path))

    @property
    def rows(self) -> list[Row]:
        """The rows, the oldest window first."""
        return list(self._rows.values())

    def tell(self, rows: Iterable[Row], *, whole: bool = False) -> None:
        """Take rows in; `whole`: they are all that there is."""
        if whole:
            self._rows.clear()
        self._take(rows)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(self.rows, default=_written))
            new.replace(self._path)

    def _take(self, rows: Iterable[Row]) -> None:
        for number, row in enumerate(rows):
            key = tuple(json.dumps(row.get(name), default=_written) for name in self._keys)
            self._rows[key or (str(number),)] = row
        ordered = sorted(self._rows.items(), key=lambda item: (_age(item[1]), item[0]))
        self._rows = dict(ordered[-MOST_ROWS:])


def _age(row: Mapping[str, Any]) -> datetime:
    start = row.get(START)
    return start if isinstance(start, datetime) else datetime.min.replace(tzinfo=UTC)


def _written(value: object) -> Any:
    if isinstance(value, datetime):
        return {"time": value.isoformat()}
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return str(value)


def _read(path: Path) -> list[Row]:
    def time_of(found: dict[str, Any]) -> Any:
        if found.keys() == {"time"}:
            return datetime.fromisoformat(found["time"])
        return found

    rows: list[Row] = json.loads(path.read_text(), object_hook=time_of)
    return rows
