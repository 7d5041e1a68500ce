"""The schedule: the alarms of a broker, by time.

One heap for the broker with the earliest time of each waiting channel, so that the cost follows the
due work and not the number of channels (nsqd scans its channels every 100 ms instead). Alarms that
are due together are called by rank, so that a channel's messages of higher priorities come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

_FEW = 64
_AGAIN_NS = 1_000_000_000
"""The delay before a failed alarm is called again."""


class Alarm:
    """A callback at a time. A channel has one."""

    __slots__ = ("_schedule", "call", "is_due", "rank", "set_for_ns")

    def __init__(self, schedule: Schedule, call: Callable[[int], int | None], rank: int) -> None:
        self._schedule = schedule
        self.call = call
        """Called with the time; returns when to be called again, None for never."""
        self.rank = rank
        self.set_for_ns: int | None = None
        self.is_due = False
        """Whether the present run of the schedule calls it."""

    def at(self, time_ns: int) -> None:
        """Set the alarm to a time, or leave it at an earlier one."""
        before_ns = self.set_for_ns
        if before_ns is None or time_ns < before_ns:
            self.set_for_ns = time_ns
            self._schedule.push(time_ns, self)
            if before_ns is not None:
                self._schedule.count_outdated()

    def cancel(self) -> None:
        """Cancel the alarm."""
        self.is_due = False
        if self.set_for_ns is not None:
            self.set_for_ns = None
            self._schedule.count_outdated()


class Schedule:
    """All alarms, earliest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Alarm]] = []
        self._order = count()
        self._outdated_count = 0
        self.on_earlier: Callable[[int], None] = lambda time_ns: None
        """Called when the earliest time becomes earlier."""

    def alarm(self, call: Callable[[int], int | None], rank: int = 0) -> Alarm:
        """Create an alarm, not set; of those due together, the lowest rank is called first."""
        return Alarm(self, call, rank)

    def push(self, time_ns: int, alarm: Alarm) -> None:
        """Put an alarm into the heap."""
        first = not self._heap or time_ns < self._heap[0][0]
        heappush(self._heap, (time_ns, next(self._order), alarm))
        if first:
            self.on_earlier(time_ns)

    def count_outdated(self) -> None:
        """Count an outdated entry, whose alarm was set anew; when most are, remove them."""
        self._outdated_count += 1
        if self._outdated_count > len(self._heap) // 2 + _FEW:
            live = {entry[2]: entry for entry in self._heap if entry[2].set_for_ns == entry[0]}
            self._heap = list(live.values())
            heapify(self._heap)
            self._outdated_count = 0

    def next_ns(self) -> int | None:
        """Return when `run` should be called."""
        while self._heap:
            time_ns, _, alarm = self._heap[0]
            if alarm.set_for_ns == time_ns:
                return time_ns
            heappop(self._heap)
            self._outdated_count -= 1
        return None

    def run(self, now_ns: int) -> None:
        """Call every alarm that is due. An exception ends the run; the next `run` calls the others,
        and a second later the failed one.
        """
        while due := self._take_due(now_ns):
            while due:
                _, alarm = due.popleft()
                if not alarm.is_due:
                    continue
                alarm.is_due = False
                try:
                    again_ns = alarm.call(now_ns)
                except BaseException:
                    # Otherwise they would never be called again.
                    alarm.at(now_ns + _AGAIN_NS)
                    self._put_back(due)
                    raise
                if again_ns is not None:
                    alarm.at(max(again_ns, now_ns + 1))

    def _take_due(self, now_ns: int) -> deque[tuple[int, Alarm]]:
        """Take the alarms that are due, each with its time, in the order in which to call them."""
        due: list[tuple[int, Alarm]] = []
        while (time_ns := self.next_ns()) is not None and time_ns <= now_ns:
            _, _, alarm = heappop(self._heap)
            alarm.set_for_ns = None
            alarm.is_due = True
            due.append((time_ns, alarm))
        return deque(sorted(due, key=lambda entry: entry[1].rank))

    @staticmethod
    def _put_back(due: deque[tuple[int, Alarm]]) -> None:
        for time_ns, alarm in due:
            if alarm.is_due:
                alarm.is_due = False
                alarm.at(time_ns)
