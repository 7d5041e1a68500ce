"""Flush timeouts: a SEND that waits too long for a flush is answered that its messages are stored,
though a power cut may still lose them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from martlet.server.group_commit import GroupCommit, StagingConnection

_GRAIN_S = 0.01
"""The time within which timeouts are handled together."""


class FlushWait(Protocol):
    """An answer that waits for a flush.

    Attributes:
        is_answered: whether it was sent.
    """

    is_answered: bool

    def hurry(self) -> None:
        """Stop waiting for the flush."""


class FlushTimeouts:
    """The sends that wait for a flush.

    Args:
        commits: has the position up to which the log is durable.
        connections: the open ones.
    """

    def __init__(self, commits: GroupCommit, connections: Container[object]) -> None:
        self._commits = commits
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[float, int, StagingConnection, FlushWait]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: StagingConnection, stored: FlushWait, timeout_ms: int) -> None:
        """Answer a send after its timeout, unless it is answered by then."""
        waiting = self._waiting
        while waiting and waiting[0][3].is_answered:
            heappop(waiting)
        deadline_s = self._loop.time() + timeout_ms / 1000
        heappush(waiting, (deadline_s, next(self._numbers), connection, stored))
        if self._timer is None or waiting[0][3] is stored:
            self._set_timer()

    def _set_timer(self) -> None:
        self.close()
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._answer_late)

    def _answer_late(self) -> None:
        now_s = self._loop.time() + _GRAIN_S
        late: dict[StagingConnection, None] = {}
        while self._waiting and (self._waiting[0][0] <= now_s or self._waiting[0][3].is_answered):
            _, _, connection, stored = heappop(self._waiting)
            if not stored.is_answered and connection in self._connections:
                stored.hurry()
                late[connection] = None
        for connection in late:
            connection.settle(self._commits.durable_position)
        self._set_timer()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
