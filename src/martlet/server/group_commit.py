"""Group commit: commit and answer at once all that connections stage in one tick.

At the end of a tick each queue gets one batch in one write, and each connection one write of
replies. With ``--flush=sync`` the answers wait for a flush, which covers all earlier commits; with
replicas they may wait until enough of them have what was committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter, thread_time
from typing import Protocol

from martlet.broker.broker import BrokerCore
from martlet.broker.errors import WritesRefused
from martlet.broker.queue.queue_log import Receipt
from martlet.options import BrokerOptions
from martlet.server.flusher import Flusher
from martlet.server.tick import LoopTicks

REST = 19
"""The pause after a write, as a multiple of its duration: the journal takes 5 % of the time."""
_BESIDE_BATCHES_S = 0.01
_BESIDE_BATCHES_BYTES = 1 << 16
"""The minimum pause between writes behind batches, and the minimum of bytes stored between them."""
MAX_BESIDE_BATCHES = 8
"""The maximum number of cursors, those unwritten for longest, behind the batches of one turn."""


class JournalWriter:
    """Schedules when moved cursors are written.

    Each moved cursor is written within ``--journal-interval``, and sooner behind the batches of a
    busy broker, since a crash redelivers each message that was finished after the last write. A
    cursor costs some microseconds and up to 200 bytes of the log, so two things are bounded:

    - Time: after some cursors the loop serves other work for 19 times as long, but never for longer
      than the interval. With thousands of busy channels a round takes longer than the interval, and
      each cursor is written less often.
    - Bytes: behind batches a few cursors go once the log has grown by several times their size.
    """

    def __init__(self, broker: BrokerCore, interval_ns: int) -> None:
        self._broker = broker
        self._max_rest_s = interval_ns / 1e9
        self._position = broker.log.position
        self._not_before_s = 0.0

    async def write(self) -> None:
        """Write all cursors that have moved by now, a few at a time. Raises WritesRefused."""
        # Processor time, not wall time: a wait for other programs does not predict the next write.
        began_s = thread_time()
        for _ in self._broker.write_some_journal():
            await asyncio.sleep(min(REST * (thread_time() - began_s), self._max_rest_s))
            began_s = thread_time()

    def turn_ended(self) -> None:
        """Write some cursors after a turn's batches, if they add little. Raises WritesRefused."""
        broker = self._broker
        grown_bytes = broker.log.position - self._position
        if grown_bytes < _BESIDE_BATCHES_BYTES or not broker.moved_channels:
            return
        now_s = perf_counter()
        if now_s >= self._not_before_s:
            broker.moved.write(MAX_BESIDE_BATCHES)
            self._position = broker.log.position
            self._not_before_s = now_s + _BESIDE_BATCHES_S


class StagedReplies(Protocol):
    """The due answers of a connection with staged publishes."""

    def settle(self, durable_position: int | None) -> bool:
        """Answer publishes that are durable up to a position; return whether any is due."""

    def fail(self, error: WritesRefused) -> None:
        """Refuse all publishes that are not durable, since they never will be."""


class GroupCommit:
    """Commit staged messages, and answer as the flush mode promises.

    Args:
        answers_confirmed: whether answers wait until replicas have what they are about.
    """

    def __init__(
        self,
        broker: BrokerCore,
        options: BrokerOptions,
        log: logging.Logger,
        *,
        answers_confirmed: bool = False,
    ) -> None:
        self._broker = broker
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._sync = options.flush == "sync"
        self._sync_every = options.sync_every or 1
        self.answers_confirmed = answers_confirmed
        self.answers_at_once = not self._sync and not answers_confirmed
        """Whether a reply need not wait once its message is written."""
        self.answers_flushed = self._sync and not answers_confirmed
        """Whether a reply waits for nothing but this broker's flush."""
        self.flusher = Flusher(broker, log, self._became_durable)
        broker.transactions.on_unflushed = self.flush_if_idle
        self.on_log_moved: Callable[[], None] = lambda: None
        """Called when the log has grown in a tick, or has become durable."""
        self.ticks = LoopTicks(self._loop.call_soon, self.end_tick)
        self._journal = JournalWriter(broker, options.journal_interval_ns)
        self._staged: dict[StagedReplies, None] = {}
        self._awaiting: dict[StagedReplies, None] = {}
        """Those that wait for a flush."""
        self._waiting: list[tuple[Receipt, asyncio.Future[None]]] = []
        """The callers of `settled`."""
        self._flushed_count = 0

    # connections

    def stage(self, replies: StagedReplies) -> None:
        """Settle the answers to staged messages at the end of this tick."""
        self._staged[replies] = None

    def forget(self, replies: StagedReplies) -> None:
        """Stop settling those of a closed connection."""
        self._staged.pop(replies, None)
        self._awaiting.pop(replies, None)

    @property
    def durable_position(self) -> int | None:
        """The position up to which answers may be given; None in the modes that answer on write."""
        if self.answers_confirmed:
            return self._broker.confirmed_position
        return self._broker.log.durable_position if self._sync else None

    @property
    def changed_position(self) -> int:
        """The position of the last change of topics or channels."""
        return self._broker.changed_position

    def covers(self, position: int) -> bool:
        """Return whether the flush mode's promise holds for the log up to a position."""
        durable = self.durable_position
        return durable is None or position <= durable

    @property
    def has_settled(self) -> bool:
        """Whether the flush mode's promise holds for all changes until now."""
        return not self._broker.has_unwritten and self.covers(self._broker.log.position)

    # callers

    async def settled(self, receipt: Receipt) -> None:
        """Return when the flush mode's promise holds for a receipt. Raises WritesRefused."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((receipt, future))
        self.ticks.note_input()
        if self._sync:
            # After the end of this tick, so that the flush covers its commit.
            self._loop.call_soon(self.flusher.flush)
        await future

    async def all_settled(self) -> None:
        """Return when the flush mode's promise holds for all changes until now. Raises
        WritesRefused: it never will.
        """
        if self._broker.has_unwritten:
            self._commit()
            self._broker.write_noted()
        await self._settled_to(self._broker.log.position)

    async def changes_settled(self) -> None:
        """Return when the flush mode's promise holds for all changes of topics and channels. Raises
        WritesRefused: it never will.
        """
        await self._settled_to(self.changed_position)

    async def _settled_to(self, position: int) -> None:
        if not self.covers(position):
            receipt = Receipt()
            receipt.position = position
            await self.settled(receipt)

    async def all_on_disk(self) -> None:
        """Return when all changes until now survive a power cut, in any flush mode. Raises
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
        """Commit all staged messages, and answer those that need not wait for a flush."""
        self._commit()
        if self._staged:
            staged, self._staged = self._staged, {}
            if not self.answers_at_once:
                self._awaiting.update(staged)
                self.answer()  # Refusals need not wait.
            else:
                for replies in staged:
                    replies.settle(None)
        if not self._sync:
            unflushed = self._broker.stored_count - self._flushed_count
            # No client waits for this flush, so it leaves the disk most of the time to others.
            if unflushed >= self._sync_every and self.flusher.rested:
                self.flush_if_idle()
        if self._waiting:
            self.answer()
        self.on_log_moved()  # Replicas flush it meanwhile.
        if self._sync and self._awaiting:
            # A disk that hangs must not stop a primary: its standbys may have flushed meanwhile.
            self.flusher.flush(is_awaited=self.answers_flushed)
        try:
            self._journal.turn_ended()
        except WritesRefused:  # Each publish is refused with it; the cursors are written later.
            return

    def _commit(self) -> None:
        """Commit all topics, even if one fails unexpectedly."""
        while True:
            try:
                return self._broker.commit()
            except Exception:
                # Publishers to the other topics must get their answers all the same.
                self._log.exception("a topic's messages could not be stored or delivered")

    def _became_durable(self) -> None:
        self.on_log_moved()
        self.answer()

    def answer(self) -> None:
        """Answer publishes that have become durable or confirmed, or have failed to."""
        log = self._broker.log
        if self._broker.transfers:
            self._broker.transfers.settle()
        position = self.durable_position
        for replies in list(self._awaiting):
            if log.failed is not None:
                replies.fail(WritesRefused(log.failed))
            if not replies.settle(position):
                del self._awaiting[replies]
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

    def refuse_waiting(self, error: WritesRefused) -> None:
        """Refuse all publishes that wait for replicas, which may never confirm them."""
        for replies in list(self._awaiting):
            replies.fail(error)
            replies.settle(self.durable_position)
        self._awaiting.clear()
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)

    def flush_if_idle(self) -> None:
        """Flush all that is written, unless a flush is running."""
        if not self.flusher.flushing:
            self._flushed_count = self._broker.stored_count
            self.flusher.flush()

    async def write_journal(self) -> None:
        """Write the moved cursors to the journal."""
        with suppress(WritesRefused):
            await self._journal.write()

    def close(self) -> None:
        """Commit the rest; with ``--flush=sync`` flush it too."""
        self.end_tick()
        if self._sync and self._broker.log.failed is None:
            self.flusher.flush()
