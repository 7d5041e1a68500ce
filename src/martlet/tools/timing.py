"""Timing: how long requests take, told in the log after every so many of them."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Timing:
    """Gathers the times of requests.

    Args:
        every: after how many to log; 0 for never.
        prefix: what a log line begins with.
    """

    def __init__(self, every: int, prefix: str) -> None:
        self._every = every
        self._prefix = prefix
        self._seconds: list[float] = []

    def note(self, seconds: float, count: int = 1) -> None:
        """So many requests took so many seconds each."""
        if not self._every:
            return
        while count:
            some = min(count, self._every - len(self._seconds))
            self._seconds += [seconds] * some
            count -= some
            if len(self._seconds) == self._every:
                self._log()

    def _log(self) -> None:
        times = sorted(self._seconds)
        self._seconds.clear()
        last = len(times) - 1
        log.info(
            "%s finished %d requests - 99th: %.2fms - 95th: %.2fms - avg: %.2fms",
            self._prefix,
            len(times),
            1000 * times[round(0.99 * last)],
            1000 * times[round(0.95 * last)],
            1000 * sum(times) / len(times),
        )


class Timings:
    """The times of several hosts, and of all together.

    Args:
        every: after how many requests to log; 0 for never.
        hosts: whose times are told apart, where there are several.
    """

    def __init__(self, every: int, hosts: tuple[str, ...]) -> None:
        alone = len(hosts) < 2
        self._each = {host: Timing(0 if alone else every, f"[{host}]:") for host in hosts}
        self._all = Timing(every, "[aggregate]:")

    def note_host(self, host: str, seconds: float, count: int = 1) -> None:
        """One host has done so many requests, in so many seconds each."""
        self._each[host].note(seconds, count)

    def note(self, seconds: float, count: int = 1) -> None:
        """So many are done, by whichever host, or by all that it takes."""
        self._all.note(seconds, count)
