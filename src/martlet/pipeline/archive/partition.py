"""Hive partitioning: the folder of each row.

Folders are named ``topic=orders/date=2026-11-22/hour=13``, and partition columns are not in the
files: Spark, pyarrow and DuckDB read them from the path.  ``topic`` is the message's topic;
``date`` and ``hour`` (two digits, UTC) are those of the broker's timestamp.  Any other name is a
field of the messages, and a field also takes precedence over these three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

NULL = "__HIVE_DEFAULT_PARTITION__"
_HOUR_US = 3_600_000_000
_TIME = ("date", "hour")
_ESCAPED = frozenset(map(chr, range(1, 32))) | set("\"#%'*/:=?\\{[]^\x7f")
"""The characters that Hive and Spark write as %XX."""
MAX_FOLDERS_PER_TASK = 1000
"""Each folder has an open file, which takes some hundred KB of memory."""


Values = dict[str, str | None]
"""The values of partition columns, by name."""


class TooManyFoldersError(ValueError):
    """The partition columns have too many different values."""


def escape(value: str) -> str:
    """Escape a value for the name of a folder."""
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in value)


def folder_of(partition: dict[str, str | None]) -> str:
    """Return the folder of the rows with these partition values."""
    return "/".join(
        f"{escape(name)}={NULL if value is None or not value else escape(value)}"
        for name, value in partition.items()
    )


@dataclass(frozen=True)
class Partitioning:
    """Divides rows among folders.

    Attributes:
        names: the partition columns, the outermost first.
        fields: the partition columns that are columns of the rows.
        timestamp: the column with the broker's timestamp.
    """

    names: Sequence[str]
    fields: frozenset[str]
    timestamp: str

    def divide(
        self, rows: pa.Table, topic: str
    ) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
        """Divide the rows of one topic by their partition values, keeping their order."""
        codes = np.zeros(len(rows), np.int64)
        columns: dict[str, pa.Array] = {}
        for name in self.names:
            if name in self.fields:
                encoded = pc.dictionary_encode(rows[name].combine_chunks(), null_encoding="encode")
                if isinstance(encoded, pa.ChunkedArray):
                    encoded = encoded.combine_chunks()
                columns[name] = encoded.dictionary
                codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(False)
                codes = np.unique(codes, return_inverse=True)[1]
        hours = None
        if any(name in _TIME and name not in self.fields for name in self.names):
            hours = rows[self.timestamp].combine_chunks().cast(pa.int64()).to_numpy() // _HOUR_US
            if "hour" not in self.names or "hour" in self.fields:
                hours = hours // 24 * 24
            first = int(hours.min())
            codes = codes * (int(hours.max()) - first + 1) + (hours - first)
        for number, part in enumerate(_groups(rows, codes)):
            if number == MAX_FOLDERS_PER_TASK:
                raise TooManyFoldersError(
                    f"partitions by {', '.join(self.names)} make more than {MAX_FOLDERS_PER_TASK}"
                    " folders in one task: partition by columns with fewer values"
                )
            yield self._values(part, topic), part

    def _values(self, part: pa.Table, topic: str) -> Values:
        """Return the partition values of rows, which are the same for all of them."""
        values: Values = {}
        for name in self.names:
            if name in self.fields:
                values[name] = _text(part[name][0])
            elif name == "topic":
                values[name] = topic
            else:
                micros = part[self.timestamp][0].cast(pa.int64()).as_py()
                moment = datetime.fromtimestamp(micros // 1_000_000, UTC)
                values[name] = f"{moment:%Y-%m-%d}" if name == "date" else f"{moment:%H}"
        return values


def _groups(rows: pa.Table, codes: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
    """Yield the rows of each code, in their order."""
    low, high = int(codes.min()), int(codes.max())
    if low == high:
        yield rows
        return
    if (codes[1:] >= codes[:-1]).all():
        edges = np.flatnonzero(np.diff(codes)) + 1
        ordered = rows
    else:
        order = np.argsort(codes, kind="stable")
        edges = np.flatnonzero(np.diff(codes[order])) + 1
        ordered = rows.take(pa.array(order))
    starts = [0, *edges.tolist(), len(rows)]
    for start, end in pairwise(starts):
        yield ordered.slice(start, end - start)


def _text(value: pa.Scalar) -> str | None:
    if not value.is_valid:
        return None
    found = value.as_py()
    return str(found).lower() if isinstance(found, bool) else str(found)
