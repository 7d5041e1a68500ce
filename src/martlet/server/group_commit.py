"""Group commit: what all connections stage in one tick is committed at once, and answered.

At the end of a tick there is one batch a queue, one write each, and one reply write a connection.
With ``--flush=sync`` the answers wait for a flush, which covers all that was committed before it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from martlet.broker.errors import WritesRefused
from martlet.broker.queue.queue_log import Receipt
from martlet.server.flusher import Flusher
from martlet.server.journal_writer import JournalWriter
from martlet.server.tick import LoopTicks

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.options import BrokerOptions


class StagingConnection(Protocol):
    """A connection whose publishes are staged, and that has answers due for them."""

    def settle(self, durable_position: int | None) -> bool:
        """Answer what has been committed, and is durable up to a position, None for all that was
        written. Returns whether any answer is still due.
        """

    def fail(self, error: WritesRefused) -> None:
        """Refuse what was not made durable, since it never will be."""


class GroupCommit:
    """Commits what was staged, and keeps the promise of the flush mode.

    Args:
        broker: holds what was staged.
        options: the flush mode and its intervals.
        log: takes the errors.

    Attributes:
        answers_at_once: whether a reply need not wait for a flush once its message is written.
        flusher: flushes the log and makes its checkpoints.
        ticks: a connection that has received bytes reports it here.
    """

    def __init__(self, broker: BrokerCore, options: BrokerOptions, log: logging.Logger) -> None:
        self._broker = broker
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._sync = options.flush == "sync"
        self._sync_every = options.sync_every or 1
        self.answers_at_once = not self._sync
        self.flusher = Flusher(broker, log, self._answer_durable)
        self.ticks = LoopTicks(self._loop.call_soon, self.end_tick)
        self._journal = JournalWriter(broker, options.journal_interval_ns)
        self._staged: dict[StagingConnection, None] = {}
        self._awaiting: dict[StagingConnection, None] = {}
        """The connections whose answers wait for a flush."""
        self._waiting: list[tuple[Receipt, asyncio.Future[None]]] = []
        """The callers of `settled`."""
        self._flushed_count = 0

    # connections

    def stage(self, connection: StagingConnection) -> None:
        """Settle a connection at the end of this tick: it has staged messages."""
        self._staged[connection] = None

    def forget(self, connection: StagingConnection) -> None:
        """Settle a connection no more: it is closed."""
        self._staged.pop(connection, None)
        self._awaiting.pop(connection, None)

    @property
    def durable_position(self) -> int | None:
        """The position up to which the log is durable; None where to be written is enough."""
        return self._broker.log.durable_position if self._sync else None

    # callers

    async def settled(self, receipt: Receipt) -> None:
        """Return when the flush mode's promise holds for a receipt. Raises WritesRefused."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((receipt, future))
        self.ticks.heard()
        if self._sync:
            self._loop.call_soon(self.flusher.flush)
        await future

    async def all_settled(self) -> None:
        """Return when the flush mode's promise holds for all that was changed until now.

        Raises:
            WritesRefused: it never will.
        """
        receipt = Receipt()
        receipt.position = self._broker.log.position
        await self.settled(receipt)

    async def all_on_disk(self) -> None:
        """Return when all that was changed until now survives a power cut, in any flush mode.

        Raises:
            WritesRefused: it may not.
        """
        log = self._broker.log
        position = log.position
        while log.durable_position < position:
            if log.failed is not None:
                raise WritesRefused(log.failed)
            await self.flusher.flushed()

    # ticks and flushes

    def end_tick(self) -> None:
        """Commit what was staged, and answer it where it need not wait."""
        self._commit()
        if self._staged:
            staged, self._staged = self._staged, {}
            if self._sync:
                self._awaiting.update(staged)
                self._answer_durable()
            else:
                for connection in staged:
                    connection.settle(None)
        if not self._sync:
            unflushed = self._broker.stored_count - self._flushed_count
            if unflushed >= self._sync_every and self.flusher.rested:
                self.flush_if_idle()
        if self._waiting:
            self._answer_durable()
        if self._sync and self._awaiting:
            self.flusher.flush()
        try:
            self._journal.turn_ended()
        except WritesRefused:  # Each publish is refused with it; the cursors are written later.
            return

    def _commit(self) -> None:
        """Commit everything, though committing one topic's messages may fail unexpectedly."""
        while True:
            try:
                return self._broker.commit()
            except Exception:
                # The publishers to the other topics have to be answered all the same.
                self._log.exception("a topic's messages could not be stored or delivered")

    def _answer_durable(self) -> None:
        """Answer for what has become durable, or never will."""
        log = self._broker.log
        if self._broker.transfers:
            self._broker.transfers.settle()
        position = self.durable_position
        for connection in list(self._awaiting):
            if log.failed is not None:
                connection.fail(WritesRefused(log.failed))
            if not connection.settle(position):
                del self._awaiting[connection]
        waiting, self._waiting = self._waiting, []
        for receipt, future in waiting:
            if future.done():
                continue
            if receipt.error is not None:
                future.set_exception(receipt.error)
            elif receipt.position and (position is None or receipt.position <= position):
                future.set_result(None)
            elif log.failed is not None:
                future.set_exception(WritesRefused(log.failed))
            else:
                self._waiting.append((receipt, future))

    def flush_if_idle(self) -> None:
        """Flush what is written, unless a flush runs."""
        if not self.flusher.flushing:
            self._flushed_count = self._broker.stored_count
            self.flusher.flush()

    async def write_journal(self) -> None:
        """Write down the cursors that have moved."""
        with suppress(WritesRefused):
            await self._journal.write()

    def close(self) -> None:
        """Commit what is left; with ``--flush=sync`` flush it too."""
        self.end_tick()
        if self._sync and self._broker.log.failed is None:
            self.flusher.flush()
