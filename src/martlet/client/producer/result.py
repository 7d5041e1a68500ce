"""The result of a send: where the message is stored."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple, overload

from martlet.names import PutStatus

_ID_MASK = (1 << 64) - 1


class SendResult(NamedTuple):
    """A broker's answer to a send: the message is stored, whatever the status.

    Attributes:
        status: OK, or the missing guarantee (see `PutStatus`).
        queue: the queue's number.
        offset: of the message in that queue; None for a delayed one, which gets its offset when
            due.
        id: of the message, as its consumers see it; of a delayed one the id to cancel it by, None
            if a repeated send finds that it was delivered already.
        broker: the broker's address.
        is_duplicate: whether an earlier try of the same send had stored it.
    """

    status: PutStatus
    queue: int
    offset: int | None
    id: bytes | None
    broker: str
    is_duplicate: bool = False

    def behind(self, count: int) -> SendResult:
        """Return the result of the message that is ``count`` after this one in the same SEND."""
        return next(self.all_behind((count,)))

    def all_behind(self, counts: Iterable[int]) -> Iterator[SendResult]:
        """Return the results of messages by their distance behind this one in the same SEND."""
        status, queue, offset, message_id, broker, is_duplicate = self
        counts = list(counts)
        offsets: Iterable[int | None] = repeat(None)
        if offset is not None:
            offsets = [offset + count for count in counts]
        ids: Iterable[bytes | None] = repeat(None)
        if message_id is not None:
            number = int(message_id, 16)
            ids = [b"%016x" % ((number + count) & _ID_MASK) for count in counts]
        same = repeat(status, len(counts)), repeat(queue)
        fields = zip(*same, offsets, ids, repeat(broker), repeat(is_duplicate))
        return map(tuple.__new__, repeat(SendResult), fields)


class SendResults(Sequence[SendResult]):
    """The results of many messages, computed from one answer for each batch."""

    def __init__(self) -> None:
        self._firsts: list[SendResult] = []
        self._ends: list[int] = []

    def add(self, count: int, first: SendResult) -> None:
        """Add a number of messages stored together, by the result of the first."""
        self._firsts.append(first)
        self._ends.append(len(self) + count)

    def extend(self, others: Sequence[SendResult]) -> None:
        """Append the results of another call."""
        assert isinstance(others, SendResults)
        count = len(self)
        self._firsts += others._firsts
        self._ends += [count + end for end in others._ends]

    def __repr__(self) -> str:
        count = len(self)
        return (
            f"<SendResults of {count}: {self[0]!r}{', ...' if count > 1 else ''}>"
            if count
            else "[]"
        )

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> SendResult: ...

    @overload
    def __getitem__(self, index: slice) -> list[SendResult]: ...

    def __getitem__(self, index: int | slice) -> SendResult | list[SendResult]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"there are {len(self)} results, and none at {index}")
        at = bisect_right(self._ends, number)
        return self._firsts[at].behind(number - (self._ends[at - 1] if at else 0))
