"""Hive partitioning: the folder of each row.

Folders are named ``topic=orders/date=2026-11-22/hour=13``, and partition columns are not in the
files: Spark, pyarrow and DuckDB read them from the path.  ``topic`` is the message's topic;
``date`` and ``hour`` (two digits, UTC) are those of the broker's timestamp.  Any other name is a
field of the messages, and a field also takes precedence over these three.

A value that would make the name of a folder, or the path, too long is shortened, so that a reader
can still choose folders by it. The files there have the full value in the column ``_long_<name>``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

NULL = "__HIVE_DEFAULT_PARTITION__"
_HOUR_US = 3_600_000_000
_TIME = ("date", "hour")
_ESCAPED = frozenset(map(chr, range(32))) | set("\"#%'*/:=?\\{[]^\x7f")
"""The characters that Hive and Spark write as %XX."""
MAX_FOLDERS_PER_TASK = 1000
"""Each folder has an open file, which takes some hundred KB of memory."""
MAX_NAME_BYTES = 255
"""The maximum length of a folder's name, on local file systems and HDFS."""
LONG = "_long_"
"""The beginning of the name of a column with the full values of a shortened one."""
_KEPT_CHARACTERS = 16
_HASH_DIGITS = 32
SHORTENED_BYTES = 4 * _KEPT_CHARACTERS + 1 + _HASH_DIGITS


Values = dict[str, str | None]


class UnwritableFolderError(ValueError):
    """Partition values make a path that is too long, even where they are shortened."""


class TooManyFoldersError(ValueError):
    """The partition columns have too many different values."""


def escape(value: str) -> str:
    """Escape a value for the name of a folder."""
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in value)


def folder_of(partition: dict[str, str | None]) -> str:
    """Return the folder of the rows with these partition values."""
    return "/".join(_segment(name, value) for name, value in partition.items())


def _segment(name: str, value: str | None) -> str:
    return f"{escape(name)}={escape(value) if value else NULL}"


def shortened(value: str) -> str:
    """Return the short form of a value."""
    digest = sha256(value.encode()).hexdigest()
    return f"{value[:_KEPT_CHARACTERS]}~{digest[:_HASH_DIGITS]}"


def fitted(partition: Values, max_bytes: int) -> Values:
    """Shorten those values whose folders could not be made otherwise, in paths of `max_bytes`.
    Raises UnwritableFolderError: the path is too long all the same.
    """
    fit = dict(partition)
    sizes = {name: len(_segment(name, value).encode()) for name, value in fit.items()}
    left_bytes = max_bytes - sum(sizes.values()) - len(sizes) + 1
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        value = fit[name]
        if not value or (sizes[name] <= MAX_NAME_BYTES and left_bytes >= 0):
            continue
        saved = sizes[name] - len(_segment(name, short := shortened(value)).encode())
        if saved > 0:
            fit[name], left_bytes = short, left_bytes + saved
    if left_bytes < 0:
        raise UnwritableFolderError(
            f"the values of {', '.join(partition)} make a path of {max_bytes - left_bytes} bytes,"
            f" even shortened; {max_bytes} are possible there: archive to a shorter location, or"
            " partition by fewer columns"
        )
    return fit


def refitted(folder: str, max_bytes: int) -> tuple[str, dict[str, str]]:
    """Return the folder to use in place of one that cannot be made, and the values that are
    shortened there. Raises UnwritableFolderError.
    """
    folder = folder.replace("\0", "%00")
    path = folder.encode()
    if max(map(len, path.split(b"/"))) <= MAX_NAME_BYTES and len(path) <= max_bytes:
        return folder, {}
    pairs = [segment.partition("=") for segment in folder.split("/")]
    values: Values = {
        unquote(name): None if value == NULL else unquote(value) for name, _, value in pairs
    }
    fit = fitted(values, max_bytes)
    return folder_of(fit), {name: v for name, v in values.items() if v and v != fit[name]}


@dataclass(frozen=True)
class Partitioning:
    """Divides rows among folders."""

    names: Sequence[str]
    """The partition columns, the outermost first."""
    fields: frozenset[str]
    """The partition columns that are columns of the rows."""
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
        for number, group in enumerate(_groups(rows, codes)):
            if number == MAX_FOLDERS_PER_TASK:
                raise TooManyFoldersError(
                    f"partitions by {', '.join(self.names)} make more than {MAX_FOLDERS_PER_TASK}"
                    " folders in one task: partition by columns with fewer values"
                )
            yield self._values(group, topic), group

    def _values(self, rows: pa.Table, topic: str) -> Values:
        values: Values = {}
        for name in self.names:
            if name in self.fields:
                values[name] = _text(rows[name][0])
            elif name == "topic":
                values[name] = topic
            else:
                micros = rows[self.timestamp][0].cast(pa.int64()).as_py()
                moment = datetime.fromtimestamp(micros // 1_000_000, UTC)
                values[name] = f"{moment:%Y-%m-%d}" if name == "date" else f"{moment:%H}"
        return values


def _groups(rows: pa.Table, codes: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
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


def _text(scalar: pa.Scalar) -> str | None:
    if not scalar.is_valid:
        return None
    plain = scalar.as_py()
    return str(plain).lower() if isinstance(plain, bool) else str(plain)
