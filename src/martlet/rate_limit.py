"""Rate limits: a token bucket, and the queue channels that share one.

The bucket gets `rate_per_s` tokens a second and holds `burst` at most; each message takes one. So
after a pause up to `burst` messages go at once, and in any span of t seconds at most
``burst + rate_per_s * t``::

    time since the start, 100/s, burst 10     0      0      100 ms   150 ms   1 s
    messages that wait                        30 ->  20 ->  10  ->   5   ->   0
    tokens                                    10     0      0        0        10

Levels are whole numbers, so nothing is lost to rounding, however long it runs. The time is handed
in. More tokens than there are may be taken: the level is below zero then, and the next ones come
later.

One that finds the bucket empty is called again when there are some tokens: a hundredth of a
second's, and half of a burst at most, so that a high rate causes no timer for each message. All
that wait share one timer, and take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

SECOND_NS = 1_000_000_000
MIN_RATE_PER_S = 0.001
MAX_RATE_PER_S = 1_000_000_000
DEFAULT_BURST_S = 0.1
"""The default burst, as the time in which the rate fills it."""
_WAKES_PER_S = 100
_UNITS = 1000 * SECOND_NS
"""The units of a token: the rate in thousandths is the units a nanosecond."""


class TokenBucket:
    """A token bucket, full at its start.

    Args:
        rate_per_s: tokens a second, in thousandths at the finest.
        burst: the maximum number of tokens; 0 for a tenth of a second's, at least 1.
        now_ns: the time, by any clock that never goes back.
    """

    __slots__ = ("_burst", "_changed_ns", "_level", "_rate")

    def __init__(self, rate_per_s: float, burst: int, now_ns: int) -> None:
        burst = burst or max(1, int(rate_per_s * DEFAULT_BURST_S))
        self._rate = round(rate_per_s * 1000)
        self._burst = burst
        self._level = burst * _UNITS
        self._changed_ns = now_ns
        assert self._rate > 0
        assert burst > 0

    def available(self, now_ns: int) -> int:
        """Return the number of tokens."""
        if now_ns > self._changed_ns:
            gained = (now_ns - self._changed_ns) * self._rate
            self._level = min(self._burst * _UNITS, self._level + gained)
            self._changed_ns = now_ns
        return max(0, self._level // _UNITS)

    def take(self, count: int, now_ns: int) -> None:
        """Take tokens, more than there are if need be."""
        self.available(now_ns)
        self._level -= count * _UNITS

    def due_ns(self) -> int:
        """Return when there are enough tokens again to be worth a call."""
        rate_per_s = self._rate // 1000
        count = max(1, min(self._burst // 2, rate_per_s // _WAKES_PER_S))
        missing = max(0, count * _UNITS - self._level)
        return self._changed_ns - -missing // self._rate


class Limited(Protocol):
    """Hands out messages as far as the limit allows."""

    def pump(self) -> None:
        """Hand out what may be handed out."""


class RateLimit:
    """A rate limit that several queue channels share.

    Args:
        bucket: holds the tokens.
        clock: returns the time in nanoseconds, by the clock of the bucket.
        call_at: has `ring` called at a time.
    """

    __slots__ = ("_bucket", "_call_at", "_clock", "_is_empty", "_waiting")

    def __init__(
        self, bucket: TokenBucket, clock: Callable[[], int], call_at: Callable[[int], object]
    ) -> None:
        self._bucket = bucket
        self._clock = clock
        self._call_at = call_at
        self._is_empty = False
        """Whether nothing may be handed out before `ring`."""
        self._waiting: dict[Limited, None] = {}
        """Those to call then, the longest waiting first."""

    def room(self, limited: Limited) -> int:
        """Return how many messages one may hand out; if none, it is called again in time."""
        if not self._is_empty:
            count = self._bucket.available(self._clock())
            if count:
                return count
            self._is_empty = True
            self._call_at(self._bucket.due_ns())
        self._waiting[limited] = None
        return 0

    def take(self, count: int) -> None:
        """Count messages that were handed out."""
        self._bucket.take(count, self._clock())

    def ring(self) -> None:
        """Call those that wait, in turn."""
        self._is_empty = False
        waiting = self._waiting
        for limited in self._in_turn(list(waiting)):
            waiting.pop(limited, None)
            limited.pump()

    def _in_turn(self, waiting: list[Limited]) -> list[Limited]:
        """Return those that wait in turn: the first of the last time is the last."""
        return [*waiting[1:], *waiting[:1]]
