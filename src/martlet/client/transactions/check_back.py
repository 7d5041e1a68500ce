"""Check-back: report the outcome of a group's silent transactions to the broker.

The producer has one call waiting at each connected broker. The broker answers it when there are
transactions whose producers, in any process, are silent. The application looks up the outcome, and
the producer reports it. If the outcome is unknown, or the lookup fails, nothing is reported, and
the broker asks again later.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from martlet.client.errors import CallRefused, ConnectionLost
from martlet.client.transport.connection import Connection

logger = logging.getLogger("martlet.client")

_WAIT_MS = 30_000
_AGAIN_S = 5.0
"""The pause after an error of the broker."""
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, OSError)
"""The errors of reading an unexpected answer."""


class Outcome(Enum):
    """The outcome of a transaction, as the application reports it."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    """Unknown, or not decided yet: the broker asks again."""


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction that the broker asks about.

    Attributes:
        id: of the transaction.
        group: of its producer.
        is_prepared: whether it was prepared, so that it is complete.
        message_count: the number of its messages.
        topics: the number for each topic.
        branches: the number that each process has added.
        begun_at: when it began.
        checks: the number of check-backs, this one included.
    """

    id: str
    group: str
    is_prepared: bool
    message_count: int
    topics: Mapping[str, int]
    branches: Mapping[str, int]
    begun_at: datetime
    checks: int

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> PendingTransaction:
        """Decode it from the broker's answer."""
        return cls(
            fields["id"],
            fields["group"],
            fields["state"] in ("prepared", "in-doubt"),
            fields["messages"],
            fields["topics"],
            fields["branches"],
            datetime.fromtimestamp(fields["begun_at_ms"] / 1000, UTC),
            fields["checks"],
        )


Check = Callable[[PendingTransaction], Awaitable[Outcome] | Outcome]
"""The application's lookup: a function or a coroutine function."""


class CheckBackListener:
    """Answer the check-backs of a group for one producer.

    Args:
        check: looks up the outcome of a transaction.
    """

    def __init__(self, group: str, check: Check) -> None:
        self._group = group
        self._check = check
        self._tasks: set[asyncio.Task[None]] = set()

    def connected(self, connection: Connection) -> None:
        """Start answering a connected broker."""
        if connection.features.extensions:
            task = asyncio.create_task(self._listen(connection), name="martlet check-back")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Stop answering."""
        for task in self._tasks:
            task.cancel()

    async def _listen(self, connection: Connection) -> None:
        while True:
            try:
                answer = await connection.call(
                    "transaction.checks", group=self._group, wait_ms=_WAIT_MS
                )
                for fields in answer.fields["transactions"]:
                    await self._answer(connection, PendingTransaction.read(fields))
            except ConnectionLost:
                return
            except (CallRefused, *_UNREADABLE) as error:
                logger.warning("%s: check-back of %s: %r", connection.address, self._group, error)
                await asyncio.sleep(_AGAIN_S)

    async def _answer(self, connection: Connection, pending: PendingTransaction) -> None:
        try:
            answer = self._check(pending)
            outcome = await answer if inspect.isawaitable(answer) else answer
            if not isinstance(outcome, Outcome):
                raise TypeError(f"a check returns an Outcome, not {outcome!r}")
        except Exception:
            logger.exception("the check of transaction %s failed; it is asked again", pending.id)
            return
        if outcome is Outcome.UNKNOWN:
            return
        try:
            await connection.call(f"transaction.{outcome.value}", id=pending.id)
        except CallRefused as error:
            logger.warning("transaction %s was not ended by its check: %s", pending.id, error)
