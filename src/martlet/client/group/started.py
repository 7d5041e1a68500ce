"""Starts: the messages of a queue whose handling has begun, as they are reported to the broker.

Where the group has a retry policy, the broker charges what was started with a failure when the
member is lost.  The report is written before a handler begins, in runs where handlers are fast::

    reported                             handlers
    100 to 101                           100 for 30 ms
    101 to 102                           101 for 0.02 ms
    102 to 104                           102 and 103, together 0.04 ms
    104 to 108  ...  up to 128 at once   as long as a run takes less than a millisecond
    none                                 have ended, and nothing more has come

So a message whose handler takes long is reported alone; of a run all are charged, and what is
reported and not started when 5 ms are over, or done, is taken back.  A message that was charged
before is started alone, while the consumer handles nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

MAX_RUN = 128
FAST_S = 0.001
"""A run that took no longer lets the next one be twice as long."""
TAKE_BACK_S = 0.005
MAX_RUNS = 1000

Say = Callable[[Sequence[tuple[int, int]], bool], None]


@dataclass(slots=True)
class LostWith:
    """The charges of a message by which members were lost.

    Attributes:
        failures: how many.
        due_at_s: when it may be handled, by ``time.monotonic``.
        is_over: whether it is to be a dead letter.
    """

    failures: int
    due_at_s: float
    is_over: bool

    def wait_s(self) -> float:
        """In how many seconds it may be handled; not above 0 for now."""
        return self.due_at_s - time.monotonic()


class StartedTracker:
    """Tracks which messages of one queue are started.

    Args:
        say: reports the runs (first and end offset) that are started, and whether nothing else is.

    Attributes:
        charged: messages that were charged, by offset.
        at_work: the runs that are handled: end offsets, by first ones.
    """

    def __init__(self, say: Say) -> None:
        self.charged: dict[int, LostWith] = {}
        self.at_work: dict[int, int] = {}
        self._say = say
        self._reported: list[tuple[int, int]] = []
        self._run = (0, 0)
        """The run that was reported last, where it may be more than is started."""
        self._length = 1
        self._reported_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def learn(self, charges: Iterable[Sequence[int]]) -> None:
        """Note the messages that were charged, as a fetch returns them."""
        now_s = time.monotonic()
        for offset, failures, wait_ms, is_over in charges:
            self.charged[offset] = LostWith(failures, now_s + wait_ms / 1000, bool(is_over))

    def is_alone(self, offset: int) -> bool:
        """Whether a message is to be handled while nothing else is."""
        charge = self.charged.get(offset)
        return charge is not None and not charge.is_over and charge.wait_s() <= 0

    def begin(self, first: int, end: int, fetched_end: int) -> None:
        """Note that a handler begins with these.

        Args:
            first, end: their offsets.
            fetched_end: up to where there are others that may be reported with them.
        """
        self.at_work[first] = end
        run_first, run_end = self._run
        if run_first <= first and end <= run_end:
            return
        alone = first in self.charged
        now_s = time.monotonic()
        if alone or end - first > 1 or now_s - self._reported_at_s > FAST_S:
            self._length = 1
        else:
            self._length = min(2 * self._length, MAX_RUN)
        self._reported_at_s = now_s
        run_end = max(end, min(first + self._length, fetched_end))
        charged = [known for known in self.charged if first < known < run_end]
        self._run = (first, max(end, min(charged, default=run_end)))
        others = [run for run in self.at_work.items() if run[0] != first]
        self._report([*others, self._run], alone)

    def end(self, first: int) -> None:
        """Note that the handling of what begins there has ended."""
        if self.at_work.pop(first, None) is None:
            return
        if first in self.charged:
            self._take_back()  # At once: another one may be started alone now.
        else:
            self._take_back_later()

    def _report(self, runs: list[tuple[int, int]], alone: bool = False) -> None:
        self._reported = runs[-MAX_RUNS:]
        self._say(self._reported, alone)
        self._take_back_later()

    def _take_back_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TAKE_BACK_S, self._take_back)

    def _take_back(self) -> None:
        """Report no more than what is handled."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        runs = list(self.at_work.items())
        if runs != self._reported:
            self._run = (0, 0)
            self._report(runs, len(runs) == 1 and runs[0][0] in self.charged)
