"""Outcomes of ended transactions, remembered for repeated requests.

A client that lost its connection during a commit repeats it, and a restarted job begins its batch
again under the same id: both get the outcome. So an outcome is remembered for a time, and up to a
number of the newest ones. Each segment of the log begins with all of them, so they are small, for
ids of any length::

    digest of the id 16 | ended at i64 ns | position u64 | state u8
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from martlet.broker.transactions.state import TransactionState

_ROW = struct.Struct("<16sqQB")
_STATES = {1: TransactionState.COMMITTED, 2: TransactionState.ROLLED_BACK}
_NUMBERS = {state: number for number, state in _STATES.items()}
_OLD_AT_ONCE = 4


class EndedTransaction(NamedTuple):
    """The outcome of a transaction.

    Attributes:
        state: committed or rolled back.
        at_ns: the time.
        position: the log position behind its record.
        is_repeated: whether its number was committed before, by another transaction.
    """

    state: TransactionState
    at_ns: int
    position: int
    is_repeated: bool = False


def digest_of(id: str) -> bytes:
    """Return the digest that identifies a transaction."""
    return blake2b(id.encode(), digest_size=16).digest()


class EndedTransactions:
    """The outcomes of one broker.

    Args:
        max_count: the maximum remembered.
        max_ns: the maximum time for which one is remembered.
    """

    def __init__(self, max_count: int, max_ns: int) -> None:
        self._max_count = max_count
        self._max_ns = max_ns
        self._rows: dict[bytes, bytes] = {}
        """Oldest first."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, id: str, outcome: EndedTransaction) -> None:
        """Add the outcome of a transaction."""
        self._add(digest_of(id), outcome)
        for _ in range(_OLD_AT_ONCE):
            if not self._is_over(outcome.at_ns):
                break
            del self._rows[next(iter(self._rows))]

    def _add(self, digest: bytes, outcome: EndedTransaction) -> None:
        number = _NUMBERS[outcome.state]
        self._rows.pop(digest, None)
        self._rows[digest] = _ROW.pack(digest, outcome.at_ns, outcome.position, number)

    def _is_over(self, now_ns: int) -> bool:
        """Whether the oldest one is to be forgotten."""
        if not self._rows:
            return False
        oldest = next(iter(self._rows.values()))
        return len(self._rows) > self._max_count or now_ns - _ROW.unpack(oldest)[1] > self._max_ns

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

    def read(self, digest: bytes, outcome: EndedTransaction) -> None:
        """Add an outcome from the journal."""
        self._add(digest, outcome)


def unpack(data: bytes) -> Iterator[tuple[bytes, EndedTransaction]]:
    """Yield packed outcomes, each with the digest of its transaction's id."""
    for row in _ROW.iter_unpack(data):
        yield row[0], _outcome(row)


def _outcome(row: bytes | tuple[bytes, int, int, int]) -> EndedTransaction:
    _, at_ns, position, number = _ROW.unpack(row) if isinstance(row, bytes) else row
    return EndedTransaction(_STATES[number], at_ns, position)
