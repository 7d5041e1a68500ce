"""Choose among several destinations, and log their request times.

===============  ==============================================================================
round-robin      each in its turn, whether it works or not
hostpool         each in its turn of those that work; one that failed is left alone for
                 30 seconds, then for twice as long each time, up to 15 minutes
epsilon-greedy   the same, but those that answer quickly are taken more often: nine times out
                 of ten at random, with weights of 1 / seconds, else each in its turn
===============  ==============================================================================

If none works, all are tried again: the sender has no other choice.
"""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from martlet.options.flag import option

_MODES = {
    "hostpool": "each in its turn of those that work",
    "epsilon-greedy": "those that answer quickly more often",
    "round-robin": "each in its turn",
    "multicast": "all of them",
}


def mode_option(of: str, *, multicast: bool = False) -> Any:
    """``--mode``: how to choose among several."""
    modes = [name for name in _MODES if multicast or name != "multicast"]
    meanings = "; ".join(f"{name}, {_MODES[name]}" for name in modes)
    choices = tuple((name, name) for name in modes)
    return option(modes[0], f"of several {of}: {meanings}", choices=choices)


def status_option(description: str) -> Any:
    """``--status-every``: the number of messages between log lines of request times."""
    return option(250, description, limits=(0, 10**6))


FIRST_DELAY_S = 30.0
MAX_DELAY_S = 900.0
EPSILON = 0.1
_LATEST_WEIGHS = 0.2
_MIN_S = 1e-4


@dataclass(slots=True)
class _Host:
    name: str
    dead_until_s: float = 0.0
    delay_s: float = 0.0
    seconds: float = _MIN_S
    """The mean time of a request, the latest weighted most."""


class HostPool:
    """Hosts to choose from."""

    def __init__(
        self,
        names: Sequence[str],
        mode: str,
        clock: Callable[[], float] = time.monotonic,
        dice: random.Random | None = None,
    ) -> None:
        self._hosts = [_Host(name) for name in dict.fromkeys(names)]
        self._mode = mode
        self._clock = clock
        self._dice = dice or random.Random()
        self._next = 0

    def order(self) -> list[str]:
        """Return the hosts to try now, in order."""
        hosts = self._hosts
        turn = hosts[self._next :] + hosts[: self._next]
        if self._mode != "round-robin":
            now_s = self._clock()
            turn = [host for host in turn if host.dead_until_s <= now_s] or turn
        first = turn[0]
        if self._mode == "epsilon-greedy" and self._dice.random() >= EPSILON:
            weights = [1 / host.seconds for host in turn]
            (first,) = self._dice.choices(turn, weights)
        self._next = (hosts.index(first) + 1) % len(hosts)
        return [first.name, *(host.name for host in turn if host is not first)]

    def pick(self) -> str:
        """Return the next host."""
        return self.order()[0]

    def succeeded(self, name: str, seconds: float) -> None:
        """Record a success of a host, with its time."""
        host = self._host(name)
        host.dead_until_s = host.delay_s = 0.0
        host.seconds += (max(seconds, _MIN_S) - host.seconds) * _LATEST_WEIGHS

    def failed(self, name: str) -> None:
        """Record a failure of a host, which is not tried for a while."""
        host = self._host(name)
        now_s = self._clock()
        if host.dead_until_s <= now_s:  # concurrent failures count once
            host.delay_s = min(max(FIRST_DELAY_S, 2 * host.delay_s), MAX_DELAY_S)
            host.dead_until_s = now_s + host.delay_s

    def _host(self, name: str) -> _Host:
        return next(host for host in self._hosts if host.name == name)


log = logging.getLogger(__name__)


class Timings:
    """The times of requests to several hosts, and of all together."""

    def __init__(self, every: int, hosts: tuple[str, ...]) -> None:
        self._every = every
        self._has_hosts = len(hosts) > 1
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        """The times since the last log line, by what it is of."""

    def note_host(self, host: str, seconds: float, count: int = 1) -> None:
        """Record requests of one host."""
        if self._has_hosts:
            self._note(host, seconds, count)

    def note(self, seconds: float, count: int = 1) -> None:
        """Record requests for the log line of all hosts."""
        self._note("aggregate", seconds, count)

    def _note(self, of: str, seconds: float, count: int) -> None:
        times = self._seconds[of]
        while count and self._every:
            some = min(count, self._every - len(times))
            times += [seconds] * some
            count -= some
            if len(times) == self._every:
                self._log(of, sorted(times))
                times.clear()

    def _log(self, of: str, times: Sequence[float]) -> None:
        last = len(times) - 1
        log.info(
            "[%s]: finished %d requests - 99th: %.2fms - 95th: %.2fms - avg: %.2fms",
            of,
            len(times),
            1000 * times[round(0.99 * last)],
            1000 * times[round(0.95 * last)],
            1000 * sum(times) / len(times),
        )
