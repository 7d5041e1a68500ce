"""Wait for received messages, and share the event loop fairly.

Each worker waits with a future of its own, first come first served, so that a message wakes one of
them and not all. The wake-up of a cancelled one goes to another. After ``TURN_S`` of handling in
one turn of the loop workers rest, so that it can do other work.

With a limit of the rate, nothing is taken while that is used up; a timer wakes a worker then.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from math import isfinite

from martlet.rate_limit import MAX_RATE_PER_S, MIN_RATE_PER_S, RateLimit, TokenBucket

TURN_S = 0.001
"""The maximum time of handling in one turn of the event loop, by all workers together."""


class SharedRate(RateLimit):
    """A limit of messages a second, for all consumers together that get it as ``rate_per_s``.

    ::

        rate = SharedRate(100)
        Consumer("orders", "mail", rate_per_s=rate)
        Consumer("returns", "mail", rate_per_s=rate)

    The consumers run in one event loop, or all of them are blocking ones.

    Args:
        rate_per_s: messages a second, such as 100 or 0.5.
        burst: the maximum number of messages at once after a pause; 0 for a tenth of a second's, at
            least 1.

    Raises:
        ValueError: one of them is out of its limits.
    """

    __slots__ = ()

    def __init__(self, rate_per_s: float, burst: int = 0) -> None:
        check_rate(rate_per_s, burst)
        bucket = TokenBucket(rate_per_s, burst, time.monotonic_ns())
        super().__init__(bucket, time.monotonic_ns, self._ring_at)

    def _ring_at(self, time_ns: int) -> None:
        pause_s = max(0, time_ns - time.monotonic_ns()) / 1e9
        asyncio.get_running_loop().call_later(pause_s, self.ring)


def check_rate(rate_per_s: float, burst: int) -> None:
    """Check a rate and its burst. Raises ValueError."""
    if not (isfinite(rate_per_s) and MIN_RATE_PER_S <= rate_per_s <= MAX_RATE_PER_S):
        raise ValueError(
            f"rate_per_s={rate_per_s}: must be from {MIN_RATE_PER_S} to {MAX_RATE_PER_S:,}; 0"
            " stands for no limit"
        )
    if type(burst) is not int or not 0 <= burst <= MAX_RATE_PER_S:
        raise ValueError(
            f"rate_burst={burst}: must be a whole number from 0 to {MAX_RATE_PER_S:,}; 0 stands for"
            " a tenth of a second's messages"
        )


def rate_limit_of(rate_per_s: float | SharedRate, burst: int) -> SharedRate | None:
    """Return the limit that a consumer's settings name; None for none. Raises ValueError."""
    if isinstance(rate_per_s, SharedRate):
        if burst:
            raise ValueError("rate_burst belongs to the SharedRate: SharedRate(rate_per_s, burst)")
        return rate_per_s
    if rate_per_s == 0 and burst == 0:
        return None
    if rate_per_s == 0:
        raise ValueError(f"rate_burst={burst} needs a rate_per_s")
    return SharedRate(rate_per_s, burst)


class Waiters:
    """Wake workers and iterators that wait for messages."""

    def __init__(self) -> None:
        self.is_closed = False
        self.turn_ends_at_s = 0.0
        """When a worker must `rest`."""
        self.rate_limit: SharedRate | None = None
        self.waits_for_rate = False
        """Whether nothing may be taken until `pump` is called."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._error: Exception | None = None
        self._is_resting = False

    def close(self, error: Exception | None = None) -> None:
        """Stop handing out; iterators and ``run`` raise the error, if any."""
        self.is_closed = True
        self.turn_ends_at_s = 0.0
        self._error = self._error or error
        self._wake(len(self._waiters))

    def check(self) -> None:
        """Raise the error that it was closed with, if any."""
        if self._error is not None:
            raise self._error

    def limit_rate(self, limit: SharedRate | None) -> None:
        """Limit the rate from now on, or no longer."""
        self.rate_limit = limit
        self.turn_ends_at_s = 0.0  # A run of messages ends too.
        self.pump()

    def pump(self) -> None:
        """Let a worker take a message, since the rate allows it again."""
        self.waits_for_rate = False
        if self._waiters:
            self._begin_turn()
            self._wake(1)

    def _allowed(self, max_count: int) -> int:
        """Return how many messages of a number may be taken now."""
        if self.rate_limit is None:
            return max_count
        count = min(max_count, self.rate_limit.room(self))
        self.waits_for_rate = not count
        return count

    def _took(self, count: int) -> None:
        """Count taken messages."""
        if self.rate_limit is not None:
            self.rate_limit.take(count)

    async def rest(self) -> None:
        """Let the event loop do other work before the next message is handled."""
        if not self._is_resting:
            self._is_resting = True
            asyncio.get_running_loop().call_soon(self._begin_turn)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._wake(1)  # If it was woken, another one must be.
            raise

    def _begin_turn(self) -> None:
        self._is_resting = False
        self.turn_ends_at_s = time.monotonic() + TURN_S

    async def _wait(self) -> None:
        """Wait until a message may be available, or it is closed."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(1)  # Another one must be woken.
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
