"""The board: the newest rows of a figure, for terminal and page, kept over a restart.

Spark emits the row of an open window again with each micro-batch.  The board keeps the newest row
of each key (window and groups), and forgets the oldest windows.
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

MAX_BOARD_ROWS = 5000
"""Rows of one figure that are kept."""
_FILE = "board.json"
_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)
"""The errors of reading a damaged file; those of decimals are of arithmetic."""
Row = dict[str, Any]
_log = logging.getLogger(__name__)


class FigureBoard:
    """The newest rows of one figure.

    Args:
        keys: the columns that identify a row; empty if each batch replaces all rows; None if every
            row is new.
        store: keeps the rows over a restart.
    """

    def __init__(self, keys: Sequence[str] | None, store: Store | None = None) -> None:
        self._keys = None if keys is None else tuple(keys)
        self._store = store
        self._rows: dict[tuple[str, ...], Row] = {}
        self._number = 0
        self._batch = -1
        if store is not None and (kept := store.read(_FILE)) is not None:
            self._restore(kept)

    @property
    def rows(self) -> list[Row]:
        """The rows, the oldest window first."""
        return list(self._rows.values())

    def update(
        self, rows: Iterable[Row], *, complete: bool = False, batch: int | None = None
    ) -> None:
        """Add or replace rows; all of them if `complete`. A repeated micro-batch counts once."""
        if batch is not None:
            if self._keys is None and batch <= self._batch:
                return
            self._batch = batch
        if complete:
            self._rows.clear()
        self._add(rows)
        if self._store is not None:
            fields = {"batch": self._batch, "rows": self.rows}
            self._store.replace(_FILE, json.dumps(fields, default=_to_json).encode())

    def _add(self, rows: Iterable[Row]) -> None:
        for number, row in enumerate(rows):
            if self._keys is None:
                self._number += 1
                key: tuple[str, ...] = (f"{self._number:020}",)
            else:
                key = tuple(json.dumps(row.get(name), default=_to_json) for name in self._keys)
            self._rows[key or (f"{number:020}",)] = row
        ordered = sorted(self._rows.items(), key=lambda item: (_age(item[1]), item[0]))
        self._rows = dict(ordered[-MAX_BOARD_ROWS:])

    def _restore(self, kept: bytes) -> None:
        """Restore the rows of an earlier run; log a file that cannot be read.

        The figures themselves do not depend on it: Spark's checkpoint has their state.
        """
        try:
            fields = json.loads(kept, object_hook=_of_json)
            batch = int(fields["batch"])
            self._add(fields["rows"])
        except _DAMAGED as error:
            _log.warning("earlier rows are not shown again, cannot read %s: %r", _FILE, error)
            self._rows.clear()
            self._number = 0
            return
        self._batch = batch


def _age(row: Mapping[str, Any]) -> datetime:
    start = row.get(START)
    return start if isinstance(start, datetime) else datetime.min.replace(tzinfo=UTC)


_KINDS: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "decimal": Decimal,
}


def _to_json(value: object) -> Any:
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, date):
        return {"$date": value.isoformat()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return str(value)


def _of_json(fields: dict[str, Any]) -> Any:
    if len(fields) == 1:
        ((name, value),) = fields.items()
        if name[:1] == "$" and name[1:] in _KINDS:
            return _KINDS[name[1:]](value)
    return fields
