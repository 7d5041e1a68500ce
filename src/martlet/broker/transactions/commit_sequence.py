"""Series: transactions that are numbered, of which each number is committed once.

A job that works in batches gives its transactions the name of the job and the number of the batch.
When it was killed it does not know whether its last batch was committed, and does it again, under
another transaction's id and in other pieces: the number tells that it was.  So a series is one
number, the last that was committed; what is not above it is never committed again.

As each segment of the log begins with all of them, they are small, whatever the names are::

    digest of the name 16 | number i64 | committed at i64 ns | position u64

There may be so many.  Where one more is wanted the one that was not heard of for longest goes, if
that is long ago; else the new one is refused, since to forget one that is in use would have its
next repetition taken for new.
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
    """A transaction's place in a series.

    Attributes:
        name: of the series.
        number: above those of all that were committed before.
    """

    name: str
    number: int


class LastCommit(NamedTuple):
    """How far a series has come.

    Attributes:
        number: the last that was committed.
        at_ns: when.
        position: of the log, behind what says so.
    """

    number: int
    at_ns: int
    position: int


def digest_of(name: str) -> bytes:
    """What a series is known by here."""
    return blake2b(name.encode(), digest_size=16).digest()


class CommitSequences:
    """The series of one broker.

    Args:
        max_count: so many are known.
        kept_ns: for so long at least.
    """

    def __init__(self, max_count: int, kept_ns: int) -> None:
        self._max_count = max_count
        self._kept_ns = kept_ns
        self._rows: dict[bytes, LastCommit] = {}
        """By the digest of the name, the one that was not heard of for longest first."""

    def __len__(self) -> int:
        return len(self._rows)

    def last(self, name: str) -> LastCommit | None:
        """How far a series has come; None for one that is not known."""
        return self._rows.get(digest_of(name))

    def committed(self, place: CommitSequence) -> LastCommit | None:
        """What tells that a number was committed, or one above it; None where none was."""
        last = self.last(place.name)
        return last if last is not None and place.number <= last.number else None

    def check_room(self, name: str, now_ns: int) -> None:
        """See that there is room for a series. Raises LimitReached."""
        if len(self._rows) < self._max_count or digest_of(name) in self._rows:
            return
        oldest = next(iter(self._rows.values()))
        if now_ns - oldest.at_ns < self._kept_ns:
            raise LimitReached(
                f"series {name[:80]!r} would be one too many: {len(self._rows)} had a commit within"
                " --transaction-memory, and each must be remembered; raise --transaction-series"
            )

    def reached(self, place: CommitSequence, at_ns: int, position: int) -> None:
        """A number was committed."""
        self.read(digest_of(place.name), LastCommit(place.number, at_ns, position))
        while len(self._rows) > self._max_count:
            del self._rows[next(iter(self._rows))]

    def read(self, digest: bytes, last: LastCommit) -> None:
        """Take one over from the journal."""
        self._rows.pop(digest, None)
        self._rows[digest] = last

    def pack(self) -> bytes:
        """All of them, for the journal."""
        return b"".join(_ROW.pack(digest, *last) for digest, last in self._rows.items())


def unpack(data: bytes) -> Iterator[tuple[bytes, LastCommit]]:
    """Packed series, each behind the digest of its name."""
    for digest, *last in _ROW.iter_unpack(data):
        yield digest, LastCommit(*last)
