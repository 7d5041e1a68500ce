"""Calls the application when queues come and go."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable

from martlet.client.group.queues.queue_id import QueueId

logger = logging.getLogger("martlet.client")

OnQueues = Callable[[Sequence[QueueId]], Awaitable[object] | object]
"""Gets queues; a function or a coroutine function, which is awaited."""


class RebalanceListener:
    """Calls the application's functions; what they raise is logged.

    Args:
        on_assigned: queues have come; nothing was fetched of them yet.
        on_revoked: queues go, or have gone; no handler is at work on them unless it took too long.
    """

    def __init__(
        self, on_assigned: OnQueues | None = None, on_revoked: OnQueues | None = None
    ) -> None:
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked

    async def assigned(self, places: Sequence[QueueId]) -> None:
        """Call ``on_assigned``."""
        await _notify("on_assigned", self._on_assigned, places)

    async def revoked(self, places: Sequence[QueueId]) -> None:
        """Call ``on_revoked``."""
        await _notify("on_revoked", self._on_revoked, places)


async def _notify(name: str, function: OnQueues | None, places: Sequence[QueueId]) -> None:
    if function is None or not places:
        return
    try:
        result = function(places)
        if isawaitable(result):
            await result
    except Exception:
        logger.exception("%s failed", name)
