"""Pending messages: unfinished messages that left the window.

They were requeued, timed out, touched or deferred, or are much slower than the messages after them.
They are few as a rule, so each is an object: waiting until a time, ready for delivery, or in flight
until a deadline. A heap orders the times; an outdated entry of the heap is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from martlet.broker.queue.consumer import StartedMessages

OwnerT = TypeVar("OwnerT")
_RISING_AT_ONCE = 1 << 8
MAX_ERROR_BYTES = 1 << 20
"""Of one channel: the error texts of further failures are not kept."""


@dataclass(slots=True)
class PendingMessage(Generic[OwnerT]):
    """A pending message."""

    attempts: int
    """The number of deliveries, without those returned before they were handled."""
    due_ns: int
    """When it may be delivered again or, in flight, times out; a running time."""
    delivered_at_ns: int = 0
    owner: OwnerT | None = None
    failures: int = 0
    rank: int = 0
    """The rank of its last delivery (see `martlet.broker.queue.consumer`)."""
    first_rank: int = 0
    """The rank of its first unanswered delivery to the same owner, which an answer may mean."""
    last_progress: StartedMessages | None = None
    """The progress of the owner for which it timed out, and which may still answer; a reference to
    the owner would keep its connection in memory.
    """
    is_suspect: bool = False
    """Whether its last failure was a lost connection: it may have crashed the client."""
    deliver_at_ns: int = 0
    """The date of a deferred message; 0 for any other."""


class PendingMessages(Generic[OwnerT]):
    """The pending messages of a cursor, by offset.

    `changed` and `removed` are the changes since the cursor was last journaled; the journal's
    writer clears them.
    """

    def __init__(self) -> None:
        self.by_offset: dict[int, PendingMessage[OwnerT]] = {}
        self.ready: deque[int] = deque()
        self.in_flight_count = 0
        self.changed: set[int] = set()
        self.removed: set[int] = set()
        self.on_removed: Callable[[Collection[int]], None] | None = None
        """Called with the offsets that are finished."""
        self.on_entered: Callable[[int], None] | None = None
        """Called with an offset that becomes a pending one."""
        self.on_ready: Callable[[], None] | None = None
        """Called when messages become ready for delivery."""
        self.errors: dict[int, tuple[str, str]] = {}
        """The error texts of the first and the last failure of a message, if any."""
        self.wall_ahead_ns = 0
        self.stored_ahead_ns = 0
        """The date, and the time of records, minus the running time."""
        self._errors_length = 0
        self._rising: npt.NDArray[np.int64] | None = None
        """All offsets, rising, and some removed since; None once others were added."""
        self._times: list[tuple[int, int]] = []
        self._ready_set: set[int] = set()

    def __len__(self) -> int:
        return len(self.by_offset)

    @property
    def ready_count(self) -> int:
        """The number of messages ready for delivery."""
        return len(self._ready_set)

    def lowest_ready(self) -> int | None:
        """Return the lowest offset that is ready for delivery."""
        return min(self._ready_set, default=None)

    def is_ready(self, offset: int) -> bool:
        """Whether a message is ready for delivery."""
        return offset in self._ready_set

    @property
    def waiting_count(self) -> int:
        """The number of messages waiting for a time."""
        return len(self.by_offset) - self.in_flight_count - len(self._ready_set)

    def rising(self, start: int) -> Iterator[int]:
        """Yield the offsets from `start` on, rising; valid until the next change."""
        if self._rising is None:
            offsets = np.fromiter(self.by_offset, np.int64, len(self.by_offset))
            self._rising = np.sort(offsets, kind="stable")  # Nearly sorted.
        rising = self._rising
        for at in range(int(np.searchsorted(rising, start)), len(rising), _RISING_AT_ONCE):
            for offset in rising[at : at + _RISING_AT_ONCE].tolist():
                if offset in self.by_offset:
                    yield offset

    def wait(
        self, offset: int, attempts: int, due_ns: int, now_ns: int, failures: int = 0
    ) -> PendingMessage[OwnerT]:
        """Make a message wait for (re)delivery at a time, which may be now."""
        self._leave(offset)
        message = self.by_offset[offset] = PendingMessage(attempts, due_ns, failures=failures)
        self.changed.add(offset)
        self.removed.discard(offset)
        if due_ns <= now_ns:
            self._line_up(offset)
        else:
            self._at(due_ns, offset)
        return message

    def defer(
        self, offset: int, deliver_at_ns: int, now_ns: int, failures: int = 0
    ) -> PendingMessage[OwnerT]:
        """Make a message that was never delivered wait for a date."""
        message = self.wait(offset, 0, deliver_at_ns - self.wall_ahead_ns, now_ns, failures)
        message.deliver_at_ns = deliver_at_ns
        return message

    def follow_wall(self, wall_ahead_ns: int, stored_ahead_ns: int) -> None:
        """Let deferred messages keep their dates after the wall clock was set."""
        self.wall_ahead_ns, self.stored_ahead_ns = wall_ahead_ns, stored_ahead_ns
        for offset, message in self.by_offset.items():
            is_waiting = message.owner is None and offset not in self._ready_set
            if is_waiting and message.deliver_at_ns:
                message.due_ns = message.deliver_at_ns - wall_ahead_ns
                self._at(message.due_ns, offset)

    def park(self, offsets: Collection[int], now_ns: int) -> None:
        """Add new messages that are ready, for an ordering: they are in no line."""
        for offset in offsets:
            self.by_offset[offset] = PendingMessage(0, now_ns)
        self._rising = None
        self._ready_set.update(offsets)
        self.changed.update(offsets)
        self.removed.difference_update(offsets)
        if self.on_ready is not None:
            self.on_ready()

    def lend(
        self, offsets: Collection[int], owner: OwnerT, now_ns: int, deadline_ns: int, rank: int
    ) -> None:
        """Put ready messages in flight to an owner until a deadline, with one more attempt."""
        for offset in offsets:
            message = self.by_offset[offset]
            message.attempts += 1
            message.owner = owner
            message.due_ns = deadline_ns
            message.delivered_at_ns = now_ns
            message.rank = rank
            message.first_rank = message.first_rank or rank
            message.last_progress = None
            self._at(deadline_ns, offset)
        assert self._ready_set.issuperset(offsets)
        self._ready_set.difference_update(offsets)
        while self.ready and self.ready[0] not in self._ready_set:
            self.ready.popleft()
        self.in_flight_count += len(offsets)
        self.changed.update(offsets)

    def hold(
        self,
        offset: int,
        attempts: int,
        owner: OwnerT,
        delivered_at_ns: int,
        deadline_ns: int,
        failures: int = 0,
        rank: int = 0,
        first_rank: int = 0,
    ) -> PendingMessage[OwnerT]:
        """Put a message in flight to an owner until a deadline."""
        self._leave(offset)
        message = self.by_offset[offset] = PendingMessage(
            attempts, deadline_ns, delivered_at_ns, owner, failures, rank, first_rank or rank
        )
        self.in_flight_count += 1
        self.changed.add(offset)
        self.removed.discard(offset)
        self._at(deadline_ns, offset)
        return message

    def extend(self, offsets: Iterable[int], due_ns: int) -> None:
        """Let messages in flight time out no earlier than that."""
        for offset in offsets:
            message = self.by_offset[offset]
            if message.due_ns < due_ns:
                message.due_ns = due_ns
                self._at(due_ns, offset)

    def _at(self, due_ns: int, offset: int) -> None:
        if len(self._times) > 2 * len(self.by_offset) + 64:
            self._times = [
                (message.due_ns, other)
                for other, message in self.by_offset.items()
                if other not in self._ready_set and other != offset
            ]
            heapify(self._times)
        heappush(self._times, (due_ns, offset))

    def _line_up(self, offset: int) -> None:
        """Add a message to the ready ones."""
        if len(self.ready) > 2 * len(self._ready_set) + 64:
            # Leave out entries that were removed from the middle.
            self.ready = deque(o for o in self.ready if o in self._ready_set)
        self._ready_set.add(offset)
        self.ready.append(offset)
        if self.on_ready is not None:
            self.on_ready()

    def next_ready(self) -> int | None:
        """Return the offset of the next ready message; it stays ready until it is held."""
        while self.ready:
            offset = self.ready[0]
            if offset in self._ready_set:
                return offset
            self.ready.popleft()
        return None

    def get(self, offset: int, owner: OwnerT) -> PendingMessage[OwnerT] | None:
        """Return the message if it is in flight to an owner; else None."""
        message = self.by_offset.get(offset)
        return message if message is not None and message.owner is owner else None

    def remove(self, offset: int) -> None:
        """Remove a finished message."""
        self._leave(offset)
        del self.by_offset[offset]
        self.changed.discard(offset)
        self.removed.add(offset)
        if self.errors:
            self._forget_errors(offset)
        if self.on_removed is not None:
            self.on_removed((offset,))

    def finish_owned(self, offsets: Collection[int]) -> None:
        """Remove finished messages, each in flight to an owner."""
        for offset in offsets:
            del self.by_offset[offset]
            if self.errors:
                self._forget_errors(offset)
        self.in_flight_count -= len(offsets)
        assert self.in_flight_count >= 0
        self.changed.difference_update(offsets)
        self.removed.update(offsets)
        if self.on_removed is not None:
            self.on_removed(offsets)

    def note_error(self, offset: int, error: str) -> None:
        """Record the error text of a failed message that is or becomes pending."""
        first, _ = self.errors.get(offset, (error, ""))
        self.keep_errors(offset, first, error)

    def keep_errors(self, offset: int, first: str, last: str) -> None:
        """Set the error texts of a message's first and last failure."""
        self._forget_errors(offset)
        length = len(first) + len(last)
        if self._errors_length + length <= MAX_ERROR_BYTES:
            self.errors[offset] = (first, last)
            self._errors_length += length

    def _forget_errors(self, offset: int) -> None:
        first, last = self.errors.pop(offset, ("", ""))
        self._errors_length -= len(first) + len(last)

    def take_ready(self) -> list[int]:
        """Return the messages that have become ready since the last call, for an ordering."""
        offsets = [offset for offset in self.ready if offset in self._ready_set]
        self.ready.clear()
        return offsets

    def line_up_ready(self) -> None:
        """Order all ready messages by offset again."""
        self.ready = deque(sorted(self._ready_set))

    def _leave(self, offset: int) -> None:
        message = self.by_offset.get(offset)
        if message is None:
            self._rising = None
            if self.on_entered is not None:
                self.on_entered(offset)
            return
        if message.owner is not None:
            assert self.in_flight_count > 0 and offset not in self._ready_set
            self.in_flight_count -= 1
        elif offset in self._ready_set:
            self._ready_set.discard(offset)
            if self.ready and self.ready[0] == offset:
                self.ready.popleft()

    def earliest_ns(self) -> int | None:
        """Return the next time at which a message is due or times out."""
        while self._times:
            due_ns, offset = self._times[0]
            message = self.by_offset.get(offset)
            if message is not None and message.due_ns == due_ns and offset not in self._ready_set:
                return due_ns
            heappop(self._times)
        return None

    def expire(self, now_ns: int) -> list[tuple[int, PendingMessage[OwnerT]]]:
        """Make due messages ready. Returns those in flight that time out, unchanged."""
        overdue: dict[int, PendingMessage[OwnerT]] = {}
        while (due_ns := self.earliest_ns()) is not None and due_ns <= now_ns:
            _, offset = heappop(self._times)
            message = self.by_offset[offset]
            assert message.due_ns <= now_ns
            if message.owner is None:
                self._line_up(offset)
            else:
                overdue[offset] = message
        return list(overdue.items())

    def owned_by(self, owner: OwnerT) -> list[tuple[int, PendingMessage[OwnerT]]]:
        """Return all messages that an owner holds."""
        return [item for item in self.by_offset.items() if item[1].owner is owner]
