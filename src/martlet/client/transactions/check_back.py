"""Check-back: a producer of a group reports the outcome of silent transactions to the broker.

At each broker that the producer is connected to, one of its calls waits.  The broker answers it
when there are transactions whose producers, in any process, are silent.  The application looks up
what it has done, and the outcome is reported.  Where it does not know, or fails, nothing is
reported, and the broker asks again later.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from martlet.client.errors import CallRefused, ConnectionLost

if TYPE_CHECKING:
    from martlet.client.transport.connection import Connection

logger = logging.getLogger("martlet.client")

_WAIT_MS = 30_000
_AGAIN_S = 5.0
"""After an error of the broker it is asked again so much later."""


class Outcome(Enum):
    """The outcome of a transaction, as far as the application knows."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    """Not known, or not yet: the broker asks again."""


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction that the broker asks about.

    Attributes:
        id: by which it was begun.
        group: whose it is.
        is_prepared: whether it was prepared, so that nothing is missing.
        message_count: how many messages it has.
        topics: how many for each topic.
        branches: how many each process has added.
        begun_at: when it began.
        checks: how often the broker has asked, this time included.
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
"""A function of the application, which may be a coroutine function."""


class CheckBackListener:
    """Answers the check-backs of a group for one producer.

    Args:
        group: its name.
        check: looks up the outcome of a transaction.
    """

    def __init__(self, group: str, check: Check) -> None:
        self._group = group
        self._check = check
        self._tasks: set[asyncio.Task[None]] = set()

    def connected(self, connection: Connection) -> None:
        """Let a broker that is connected ask from now on."""
        if connection.features.extensions:
            task = asyncio.create_task(self._listen(connection), name="martlet check-back")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Answer no more."""
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
            except CallRefused as error:
                logger.warning("%s: check-back of %s: %s", connection.address, self._group, error)
                await asyncio.sleep(_AGAIN_S)

    async def _answer(self, connection: Connection, pending: PendingTransaction) -> None:
        try:
            found = self._check(pending)
            outcome = await found if inspect.isawaitable(found) else found
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
