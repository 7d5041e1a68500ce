"""Notify the application of a rebalance."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable

from martlet.client.group.queues.queue_id import QueueId

logger = logging.getLogger("martlet.client")

OnQueues = Callable[[Sequence[QueueId]], Awaitable[object] | object]
"""Called with queues; a function or a coroutine function, which is awaited."""


class RebalanceListener:
    """Call the application's functions, and log their exceptions.

    Args:
        on_assigned: called with new queues, before anything is fetched from them.
        on_revoked: called with queues that go or have gone; none of their handlers runs unless it
            took too long.
    """

    def __init__(
        self, on_assigned: OnQueues | None = None, on_revoked: OnQueues | None = None
    ) -> None:
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked

    async def assigned(self, queues: Sequence[QueueId]) -> None:
        """Call ``on_assigned``."""
        await _notify("on_assigned", self._on_assigned, queues)

    async def revoked(self, queues: Sequence[QueueId]) -> None:
        """Call ``on_revoked``."""
        await _notify("on_revoked", self._on_revoked, queues)


async def _notify(name: str, function: OnQueues | None, queues: Sequence[QueueId]) -> None:
    if function is None or not queues:
        return
    try:
        result = function(queues)
        if isawaitable(result):
            await result
    except Exception:
        logger.exception("%s failed", name)
