"""The board: the newest figures as they stand, to be shown and to be found again after a restart.

A figure that is still open is told again and again, each time with its new values; the board keeps
the last of each, by what it is of (window and groups), and forgets the oldest windows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from martlet.pipeline.archive.store import Store
from martlet.pipeline.report.query import START

MAX_ROWS = 5000
"""Of one figure."""
_FILE = "board.json"
Row = dict[str, Any]
_log = logging.getLogger(__name__)


class FigureBoard:
    """The newest rows of one figure.

    Args:
        keys: the columns that say what a row is of; none where each telling replaces all; None
            where each row is a new one.
        store: where the rows are kept over a restart.
    """

    def __init__(self, keys: Sequence[str] | None, store: Store | None = None) -> None:
        self._keys = None if keys is None else tuple(keys)
        self._store = store
        self._rows: dict[tuple[str, ...], Row] = {}
        self._number = 0
        self._batch = -1
        if store is not None and (kept := store.read(_FILE)) is not None:
            self._recall(kept)

    @property
    def rows(self) -> list[Row]:
        """The rows, the oldest window first."""
        return list(self._rows.values())

    def update(self, rows: Iterable[Row], *, whole: bool = False, batch: int | None = None) -> None:
        """Take rows in.

        Args:
            rows: what is told.
            whole: they are all that there is.
            batch: the number of the batch that they are of; what it is told again counts once.
        """
        if batch is not None:
            if self._keys is None and batch <= self._batch:
                return
            self._batch = batch
        if whole:
            self._rows.clear()
        self._take(rows)
        if self._store is not None:
            told = {"batch": self._batch, "rows": self.rows}
            self._store.replace(_FILE, json.dumps(told, default=_written).encode())

    def _take(self, rows: Iterable[Row]) -> None:
        for number, row in enumerate(rows):
            if self._keys is None:
                self._number += 1
                key: tuple[str, ...] = (f"{self._number:020}",)
            else:
                key = tuple(json.dumps(row.get(name), default=_written) for name in self._keys)
            self._rows[key or (f"{number:020}",)] = row
        ordered = sorted(self._rows.items(), key=lambda item: (_age(item[1]), item[0]))
        self._rows = dict(ordered[-MAX_ROWS:])

    def _recall(self, kept: bytes) -> None:
        """Take in what was kept; what cannot be read is shown no more, and counts all the same."""
        try:
            told = json.loads(kept, object_hook=_read)
            rows, batch = told["rows"], int(told["batch"])
        except (ValueError, TypeError, KeyError) as error:
            _log.warning("what was shown before is not shown again: %s (%r)", _FILE, error)
            return
        self._take(rows)
        self._batch = batch


def _age(row: Mapping[str, Any]) -> datetime:
    start = row.get(START)
    return start if isinstance(start, datetime) else datetime.min.replace(tzinfo=UTC)


_KINDS: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "decimal": Decimal,
}


def _written(value: object) -> Any:
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, date):
        return {"$date": value.isoformat()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return str(value)


def _read(found: dict[str, Any]) -> Any:
    if len(found) == 1:
        ((name, value),) = found.items()
        if name[:1] == "$" and name[1:] in _KINDS:
            return _KINDS[name[1:]](value)
    return found
