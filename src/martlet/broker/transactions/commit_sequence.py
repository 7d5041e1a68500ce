"""Commit sequences: series of numbered transactions, of which each number is committed once.

A job that works in batches gives its transactions the name of the job and the number of the batch.
After a kill it does not know whether its last batch was committed, and repeats it with another
transaction id and other contents: the number identifies it. So a series is one number, the last
that was committed; a number that is not above it is never committed again.

Each segment of the log begins with all of them, so they are small, for names of any length::

    digest of the name 16 | number i64 | committed at i64 ns | position u64

Their number is limited. One more replaces the longest inactive one, if that is old enough;
otherwise the new one is refused, since forgetting an active series would let its next repetition
commit again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from martlet.broker.errors import LimitReached

MAX_NAME_LENGTH = 255
MAX_NUMBER = (1 << 63) - 1
_ROW = struct.Struct("<16sqqQ")


class CommitSequence(NamedTuple):
    """A transaction's number in a series.

    Attributes:
        name: of the series.
        number: above all numbers committed before.
    """

    name: str
    number: int


class LastCommit(NamedTuple):
    """The last commit of a series.

    Attributes:
        number: its number.
        at_ns: its time.
        position: the log position behind its record.
    """

    number: int
    at_ns: int
    position: int


def digest_of(name: str) -> bytes:
    """Return the digest that identifies a series."""
    return blake2b(name.encode(), digest_size=16).digest()


class CommitSequences:
    """The series of one broker.

    Args:
        max_count: the maximum number of remembered series.
        kept_ns: the minimum time for which one is remembered.
    """

    def __init__(self, max_count: int, kept_ns: int) -> None:
        self._max_count = max_count
        self._kept_ns = kept_ns
        self._rows: dict[bytes, LastCommit] = {}
        """By the digest of the name, the longest inactive one first."""

    def __len__(self) -> int:
        return len(self._rows)

    def last(self, name: str) -> LastCommit | None:
        """Return the last commit of a series; None if it is unknown."""
        return self._rows.get(digest_of(name))

    def committed(self, place: CommitSequence) -> LastCommit | None:
        """Return the commit of a number, or of one above it; None if there is none."""
        last = self.last(place.name)
        return last if last is not None and place.number <= last.number else None

    def check_room(self, name: str, now_ns: int) -> None:
        """Check that a series can be added. Raises LimitReached."""
        if len(self._rows) < self._max_count or digest_of(name) in self._rows:
            return
        oldest = next(iter(self._rows.values()))
        if now_ns - oldest.at_ns < self._kept_ns:
            raise LimitReached(
                f"series {name[:80]!r} would be one too many: {len(self._rows)} had a commit within"
                " --transaction-memory, and each must be remembered; raise --transaction-series"
            )

    def reached(self, place: CommitSequence, at_ns: int, position: int) -> None:
        """Record the commit of a number."""
        self.read(digest_of(place.name), LastCommit(place.number, at_ns, position))
        while len(self._rows) > self._max_count:
            del self._rows[next(iter(self._rows))]

    def read(self, digest: bytes, last: LastCommit) -> None:
        """Add a series from the journal."""
        self._rows.pop(digest, None)
        self._rows[digest] = last

    def pack(self) -> bytes:
        """Pack all series for the journal."""
        return b"".join(_ROW.pack(digest, *last) for digest, last in self._rows.items())


def unpack(data: bytes) -> Iterator[tuple[bytes, LastCommit]]:
    """Yield packed series, each with the digest of its name."""
    for digest, *last in _ROW.iter_unpack(data):
        yield digest, LastCommit(*last)
