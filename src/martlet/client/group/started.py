"""Starts: report to the broker which messages of a queue are being handled.

If the group has a retry policy, the broker counts a failed attempt for each started message when
the member is lost. The report is written before a handler begins, in runs if handlers are fast::

    reported                             handlers
    100 to 101                           100 for 30 ms
    101 to 102                           101 for 0.02 ms
    102 to 104                           102 and 103, together 0.04 ms
    104 to 108  ...  up to 128 at once   as long as a run takes less than a millisecond
    none                                 have ended, and nothing more has come

So a message whose handler takes long is reported alone. All messages of a reported run count as
failed, so the report is corrected after 5 ms: without messages that are done or not started. A
suspect, by which a member was lost before, is started alone, while the consumer handles nothing
else, and once the broker has answered the report. For the kernel may hold back what was written,
and drops it if the process dies with unread input: of fast handlers the last reports may be lost
with the member, so that the crash is charged to the messages of an earlier report, or to none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

MAX_RUN = 128
FAST_S = 0.001
"""A run that took less time lets the next one be twice as long."""
TAKE_BACK_S = 0.005
MAX_RUNS = 1000

OnKnown = Callable[[BaseException | None], object]
"""Called with None when the broker knows something, or with the error if it does not."""
Say = Callable[[Sequence[tuple[int, int]], OnKnown | None], None]


@dataclass(slots=True)
class LostWith:
    """The failures of a message by which members were lost."""

    failures: int
    due_at_s: float
    """When it may be handled, by ``time.monotonic``."""
    is_over: bool
    """Whether to dead-letter it."""

    def wait_s(self) -> float:
        """Return the seconds until it may be handled; 0 or less for now."""
        return self.due_at_s - time.monotonic()


class StartedTracker:
    """Track the started messages of one queue.

    Args:
        say: reports the started runs (first and end offset). Its second argument is for a suspect
            that is started alone: a function to call when the broker has answered.
    """

    def __init__(self, say: Say) -> None:
        self.charged: dict[int, LostWith] = {}
        """The failures of suspects, by offset."""
        self.at_work: dict[int, int] = {}
        """The runs in handlers: end offsets by first ones."""
        self._say = say
        self._reported: list[tuple[int, int]] = []
        self._run = (0, 0)
        """The last reported run, if it may exceed the started messages."""
        self._length = 1
        self._reported_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def learn(self, charges: Iterable[Sequence[int]]) -> None:
        """Note the suspects that a fetch returns."""
        now_s = time.monotonic()
        for offset, failures, wait_ms, is_over in charges:
            self.charged[offset] = LostWith(failures, now_s + wait_ms / 1000, bool(is_over))

    def is_alone(self, offset: int) -> bool:
        """Return whether a message must be handled alone."""
        charge = self.charged.get(offset)
        return charge is not None and not charge.is_over and charge.wait_s() <= 0

    def announce(self, offset: int, on_known: OnKnown) -> None:
        """Report a suspect as started alone. `on_known` is called when the broker has answered."""
        self.at_work[offset] = offset + 1
        self._run = (offset, offset + 1)
        self._length = 1
        self._report([*self.at_work.items()], on_known)

    def begin(self, first: int, end: int, fetched_end: int) -> None:
        """Note that a handler begins with these messages.

        Args:
            first, end: their offsets.
            fetched_end: the end of the messages that may be reported with them.
        """
        self.at_work[first] = end
        run_first, run_end = self._run
        if run_first <= first and end <= run_end:
            return
        now_s = time.monotonic()
        if end - first > 1 or now_s - self._reported_at_s > FAST_S:
            self._length = 1
        else:
            self._length = min(2 * self._length, MAX_RUN)
        self._reported_at_s = now_s
        run_end = max(end, min(first + self._length, fetched_end))
        charged = [offset for offset in self.charged if first < offset < run_end]
        self._run = (first, max(end, min(charged, default=run_end)))
        others = [run for run in self.at_work.items() if run[0] != first]
        self._report([*others, self._run])

    def end(self, first: int) -> None:
        """Note that the handling of the run that begins there has ended."""
        if self.at_work.pop(first, None) is None:
            return
        if first in self.charged:
            self._take_back()  # At once, since another one may be started alone now.
        else:
            self._take_back_later()

    def clear(self) -> None:
        """Report that nothing is being handled any more, if anything was reported."""
        self.at_work.clear()
        self._take_back()

    def _report(self, runs: list[tuple[int, int]], on_known: OnKnown | None = None) -> None:
        self._reported = runs[-MAX_RUNS:]
        self._say(self._reported, on_known)
        self._take_back_later()

    def _take_back_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TAKE_BACK_S, self._take_back)

    def _take_back(self) -> None:
        """Report exactly the messages being handled."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        runs = list(self.at_work.items())
        if runs != self._reported:
            self._run = (0, 0)
            self._report(runs)
