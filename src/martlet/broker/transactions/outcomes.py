"""The ends of transactions, remembered for repeated requests: outcomes by id, and commit sequences.

A client that lost its connection during a commit repeats it, and a restarted job begins its batch
again under the same id: both get the outcome. So an outcome is remembered for a time, and up to a
number of the newest ones.

A commit sequence is a series of numbered transactions, of which each number is committed once. A
job that works in batches gives its transactions the name of the job and the number of the batch.
After a kill it does not know whether its last batch was committed, and repeats it with another
transaction id and other contents: the number identifies it. So a series is one number, the last
that was committed; a number that is not above it is never committed again. One series more than
the maximum replaces the longest inactive one, if that is old enough; otherwise the new one is
refused, since forgetting an active series would let its next repetition commit again.

Each segment of the log begins with all of both, so they are small, for ids and names of any
length::

    digest of the id 16 | ended at i64 ns | position u64 | state u8              an outcome
    digest of the name 16 | number i64 | committed at i64 ns | position u64      a series
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from martlet.broker.errors import LimitReached
from martlet.broker.transactions.state import CommitSequence, TransactionState

_OUTCOME = struct.Struct("<16sqQB")
_SERIES = struct.Struct("<16sqqQ")
_STATES = {1: TransactionState.COMMITTED, 2: TransactionState.ROLLED_BACK}
_NUMBERS = {state: number for number, state in _STATES.items()}
_OLD_AT_ONCE = 4


class EndedTransaction(NamedTuple):
    """The outcome of a transaction, committed or rolled back."""

    state: TransactionState
    at_ns: int
    position: int
    """The log position behind its record."""
    is_repeated: bool = False
    """Whether its number was committed before, by another transaction."""


def digest_of(id: str) -> bytes:
    """Return the digest that identifies a transaction, or a series."""
    return blake2b(id.encode(), digest_size=16).digest()


class EndedTransactions:
    """The outcomes of one broker, remembered up to a number, and up to a time."""

    def __init__(self, max_count: int, max_ns: int) -> None:
        self._max_count = max_count
        self._max_ns = max_ns
        self._rows: dict[bytes, bytes] = {}
        """Oldest first."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, id: str, outcome: EndedTransaction) -> None:
        """Add the outcome of a transaction."""
        self.read(digest_of(id), outcome)
        for _ in range(_OLD_AT_ONCE):
            if not self._is_over(outcome.at_ns):
                break
            del self._rows[next(iter(self._rows))]

    def read(self, digest: bytes, outcome: EndedTransaction) -> None:
        """Add an outcome from the journal."""
        number = _NUMBERS[outcome.state]
        self._rows.pop(digest, None)
        self._rows[digest] = _OUTCOME.pack(digest, outcome.at_ns, outcome.position, number)

    def _is_over(self, now_ns: int) -> bool:
        """Whether the oldest one is to be forgotten."""
        if not self._rows:
            return False
        oldest = next(iter(self._rows.values()))
        return (
            len(self._rows) > self._max_count or now_ns - _OUTCOME.unpack(oldest)[1] > self._max_ns
        )

    def get(self, id: str) -> EndedTransaction | None:
        """Return the outcome of a transaction; None if it is unknown."""
        row = self._rows.get(digest_of(id))
        return None if row is None else _outcome(row)

    def forget(self, id: str) -> None:
        """Forget an outcome, since its transaction has begun anew."""
        self._rows.pop(digest_of(id), None)

    def pack(self) -> bytes:
        """Pack all outcomes for the journal."""
        return b"".join(self._rows.values())


def unpack_outcomes(data: bytes) -> Iterator[tuple[bytes, EndedTransaction]]:
    """Yield packed outcomes, each with the digest of its transaction's id."""
    for row in _OUTCOME.iter_unpack(data):
        yield row[0], _outcome(row)


def _outcome(row: bytes | tuple[bytes, int, int, int]) -> EndedTransaction:
    _, at_ns, position, number = _OUTCOME.unpack(row) if isinstance(row, bytes) else row
    return EndedTransaction(_STATES[number], at_ns, position)


class LastCommit(NamedTuple):
    """The last commit of a series."""

    number: int
    at_ns: int
    position: int
    """The log position behind its record."""


class CommitSequences:
    """The series of one broker, remembered up to a number, and for a time at least."""

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

    def committed(self, sequence: CommitSequence) -> LastCommit | None:
        """Return the commit of a number, or of one above it; None if there is none."""
        last = self.last(sequence.name)
        return last if last is not None and sequence.number <= last.number else None

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

    def reached(self, sequence: CommitSequence, at_ns: int, position: int) -> None:
        """Record the commit of a number."""
        self.read(digest_of(sequence.name), LastCommit(sequence.number, at_ns, position))
        while len(self._rows) > self._max_count:
            del self._rows[next(iter(self._rows))]

    def read(self, digest: bytes, last: LastCommit) -> None:
        """Add a series from the journal."""
        self._rows.pop(digest, None)
        self._rows[digest] = last

    def pack(self) -> bytes:
        """Pack all series for the journal."""
        return b"".join(_SERIES.pack(digest, *last) for digest, last in self._rows.items())


def unpack_series(data: bytes) -> Iterator[tuple[bytes, LastCommit]]:
    """Yield packed series, each with the digest of its name."""
    for digest, *last in _SERIES.iter_unpack(data):
        yield digest, LastCommit(*last)
