"""The rate of a consumer: how many messages it hands out in a second."""

from __future__ import annotations

import asyncio
import time
from math import isfinite

from martlet.rate_limit import MAX_RATE_PER_S, MIN_RATE_PER_S, RateLimit, TokenBucket


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
