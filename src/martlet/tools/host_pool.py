"""The host pool: which of several hosts is next, and which are left alone because they failed.

===============  ==================================================================================
round-robin      each in its turn, whether it works or not
hostpool         each in its turn of those that work; one that failed is left alone for 30 seconds,
                 then for twice as long each time, up to 15 minutes
epsilon-greedy   the same, but those that answer quickly are taken more often: nine times out of ten
                 by chance, with weights of 1 / seconds, else each in its turn
===============  ==================================================================================

Where none works all are taken to work again, for the sender has no other choice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MODES = ("round-robin", "hostpool", "epsilon-greedy")
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
    """How long it takes, the latest weighing most."""


class HostPool:
    """Some hosts.

    Args:
        names: theirs.
        mode: one of `MODES`.
        clock: seconds.
        dice: for epsilon-greedy.
    """

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
        """Those to be tried now, one after the other until one does it."""
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
        """The next one."""
        return self.order()[0]

    def succeeded(self, name: str, seconds: float) -> None:
        """One has done it, in so many seconds."""
        host = self._host(name)
        host.dead_until_s = host.delay_s = 0.0
        host.seconds += (max(seconds, _MIN_S) - host.seconds) * _LATEST_WEIGHS

    def failed(self, name: str) -> None:
        """One has not: leave it alone for a while."""
        host = self._host(name)
        now_s = self._clock()
        if host.dead_until_s <= now_s:  # what fails at once fails once
            host.delay_s = min(max(FIRST_DELAY_S, 2 * host.delay_s), MAX_DELAY_S)
            host.dead_until_s = now_s + host.delay_s

    def _host(self, name: str) -> _Host:
        return next(host for host in self._hosts if host.name == name)
