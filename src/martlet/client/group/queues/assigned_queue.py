"""A queue assigned to this consumer: its fetched messages that are not done.

::

    offset   100      103        107            140            396
             done     at work    waits to be    fetched, as    to be
             below    or done    tried again    it came        fetched
             ^ committed next                   ^ position     ^ fetch_offset

A queue that is being released hands out nothing more, and drops messages not handed out; those
handed out may still be finished. A closed queue has moved to another member, or was replaced when
the application moved to another offset: later finishes have no effect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING

from martlet.client.group.batch import FetchedChunk, PulledBatch, joined
from martlet.client.group.message import PulledMessage, PulledMessageState, pulled_messages
from martlet.client.group.queues.queue_id import QueueId
from martlet.client.group.settings import FlowLimits
from martlet.client.group.started import OnKnown, Say, StartedTracker
from martlet.client.group.stats import PullCounts, QueueStats
from martlet.protocol.nsq.message_run import FRAME_HEADER_BYTES, MessageRun

if TYPE_CHECKING:
    from martlet.client.group.queues.ready_queues import ReadyQueues

SHORT_WAIT_S = 0.001
_NO_MESSAGES = MessageRun(b"", ())


class AssignmentState(Enum):
    """The state of the assignment."""

    OPEN = "open"
    """Assigned to this consumer."""
    LEAVING = "leaving"
    """To be released once nothing of it is handled."""
    CLOSED = "closed"
    """Not assigned to this consumer."""


class OffsetTracker:
    """Track the lowest offset whose handling is not done, with any number of handlers.

    ::

        offset     4     5     6     7     8
                   done  begun done  begun done        lowest: 5

    The lowest offset that was begun and has not ended may be committed: all below it are done.
    """

    __slots__ = ("_begun", "_ended")

    def __init__(self) -> None:
        self._begun: list[int] = []
        """A heap; an ended offset leaves it when it is the lowest."""
        self._ended: set[int] = set()

    @property
    def lowest(self) -> int | None:
        """The lowest offset that was begun and has not ended; None if there is none."""
        return self._begun[0] if self._begun else None

    def begin(self, offset: int) -> None:
        """Note that its handling begins, or begins again after it had ended."""
        if offset in self._ended:
            self._ended.remove(offset)
        else:
            heappush(self._begun, offset)

    def end(self, offset: int) -> None:
        """Note that one that was begun is done."""
        begun, ended = self._begun, self._ended
        if offset != begun[0]:
            ended.add(offset)
            return
        heappop(begun)
        while ended and begun[0] in ended:
            ended.remove(heappop(begun))


class AssignedQueue:
    """Hold the fetched messages of a queue.

    Args:
        id_base: the base of ids: an id is the base plus the offset.
    """

    def __init__(
        self,
        topic: str,
        queue_id: QueueId,
        offset: int,
        id_base: int,
        limits: FlowLimits,
        ready_queues: ReadyQueues,
        counts: PullCounts,
    ) -> None:
        self.topic = topic
        self.id = queue_id
        self.id_base = id_base
        self.hold = AssignmentState.OPEN
        self.fetch_offset = offset
        """The next to fetch."""
        self.committed = offset
        """The last committed offset."""
        self.end_offset = offset
        """Of the queue, as of the last fetch."""
        self.count = self.size_bytes = 0
        """Of fetched messages that are not done."""
        self.at_work = 0
        """The number of messages or batches handed out."""
        self.is_set_back = False
        """Whether the next committed offset may be lower than the last."""
        self.is_paused = False
        """Whether the application paused it."""
        self.is_busy = False
        """Whether a handler runs on it that must be its only one."""
        self.is_queued = False
        """Whether it is among the ready queues."""
        self.run: tuple[int, int] | None = None
        """The offset at which a run began, and the number of its messages; None for no run."""
        self.starts: StartedTracker | None = None
        """The started messages, if the broker counts them as failed after a crash."""
        self.say_started: Say | None = None
        """Reports them to the broker."""
        self.on_settled: Callable[[], None] | None = None
        """Called when something of it was finished or put off, for hooks."""
        self.counts = counts
        self._limits = limits
        self._ready_queues = ready_queues
        self._again: list[PulledMessage] = []
        """A heap of messages to be handed out again."""
        self._ready: deque[PulledMessage] = deque()
        """The last messages of `_ready_run`."""
        self._ready_run = _NO_MESSAGES
        self._pieces: deque[FetchedChunk] = deque()
        self._progress = OffsetTracker()
        self._changed = asyncio.Event()
        self._newest = -1
        """The highest offset handed out by itself."""
        self._announced = -1
        """The last suspect that the broker was told of before it is handed out."""

    # state

    @property
    def is_ready(self) -> bool:
        """Whether a message can be handed out."""
        return (
            self.hold is AssignmentState.OPEN
            and not self.is_paused
            and bool(self._ready or self._pieces or self._again)
        )

    @property
    def position(self) -> int:
        """The offset of the message that is handed out next."""
        if self._again:
            return self._again[0].offset
        return self._untouched

    @property
    def _untouched(self) -> int:
        """The offset of the first message never handed out."""
        if self.run is not None:
            self.leave_run()
        if self._ready:
            return self._ready[0].offset
        return self._pieces[0].first if self._pieces else self.fetch_offset

    @property
    def waiting(self) -> int:
        """The number of messages fetched and not handed out."""
        self.leave_run()
        untouched = len(self._ready) + sum(piece.run.count for piece in self._pieces)
        return untouched + len(self._again)

    @property
    def lag(self) -> int:
        """The number of messages not done, as of the last fetch."""
        return max(0, self.end_offset - self.next_commit)

    def stats(self) -> QueueStats:
        """Its numbers."""
        self.leave_run()
        return QueueStats(
            place=self.id,
            position=self.position,
            committed=self.committed,
            lag=self.lag,
            in_flight=self.count,
            is_paused=self.is_paused,
        )

    @property
    def next_commit(self) -> int:
        """The offset below which all messages are done."""
        untouched = self._untouched
        lowest = self._progress.lowest
        return untouched if lowest is None else min(lowest, untouched)

    def room(self) -> tuple[int, int]:
        """Return the numbers of messages and bytes that may be fetched now; 0 for none.

        While there are messages to handle, a fetch has at least half of its maximum size: otherwise
        a full queue would fetch message by message.
        """
        limits = self._limits
        span = self.fetch_offset - self.next_commit
        messages = min(limits.max_messages - self.count, limits.fetch_messages)
        size_bytes = min(limits.max_bytes - self.size_bytes, limits.fetch_bytes)
        if self.hold is not AssignmentState.OPEN or self.is_paused or span >= limits.max_span:
            return 0, 0
        if self.count and (
            messages < min(limits.fetch_messages, limits.max_messages) // 2
            or size_bytes < min(limits.fetch_bytes, limits.max_bytes) // 2
        ):
            return 0, 0
        return max(0, messages), max(0, size_bytes)

    async def change(self) -> None:
        """Wait until more may be fetched, or it is revoked, or nothing of it is handled."""
        self._changed.clear()
        await self._changed.wait()

    # fetched messages

    def put(self, run: MessageRun | None, next_offset: int) -> None:
        """Add fetched messages, up to an offset."""
        if run is not None:
            self._pieces.append(FetchedChunk.of(run, self.id_base))
            self.counts.received += run.count
            self.count += run.count
            self.size_bytes += len(run.raw)
        self.fetch_offset = next_offset
        self._ready_queues.add(self)

    def learn(self, failures: Iterable[Sequence[int]] | None) -> None:
        """Note how often the handling of each message ended with a lost member; None if the broker
        does not count that.
        """
        if failures is None:
            self.starts = None
        elif self.say_started is not None:
            if self.starts is None:
                self.starts = StartedTracker(self.say_started)
            self.starts.learn(failures)

    # handing out

    def take(self) -> PulledMessage:
        """Take the next message, which must exist."""
        if self._again:
            message = heappop(self._again)
        else:
            if not self._ready:
                self._make_ready()
            message = self._ready.popleft()
            self._newest = message.offset
            self._progress.begin(message.offset)
        message._stage = PulledMessageState.OUT
        message.attempts += 1
        self.at_work += 1
        self._ready_queues.at_work += 1
        return message

    @property
    def may_run(self) -> bool:
        """Whether its next messages may be taken as a run."""
        return self.starts is None and not self._again and self.is_ready

    def begin_run(self) -> deque[PulledMessage]:
        """Begin to take messages for a handler that may return at once, and return those.

        The caller marks the first one as handed out, and takes it out when it is done, then the
        next, and calls `leave_run` where it stops. The counts are updated when the run ends, so
        that a message costs no bookkeeping of its own. Callers that read or change them must call
        `leave_run` first.
        """
        ready = self._ready
        if not ready:
            self._make_ready()
        first = ready[0].offset
        self.run = first, len(ready)
        self._progress.begin(first)
        self.at_work += 1
        self._ready_queues.at_work += 1
        return ready

    def leave_run(self) -> None:
        """End the run, if any: its current message stands alone, those behind it are handed out."""
        if self.run is None:
            return
        (first, count), self.run = self.run, None
        ready, run = self._ready, self._ready_run
        start, stop = run.count - count, run.count - len(ready)
        current = ready.popleft() if ready and ready[0].is_out else None
        if current is not None and start < stop:
            self._progress.begin(current.offset)
        if current is None or start < stop:
            self._progress.end(first)
        if current is None:
            self._end_work()
            self.is_busy = False
        else:
            self._newest = current.offset
        if start < stop:
            self.counts.finished += stop - start
            self.count -= stop - start
            self.size_bytes -= run.size_bytes(start, stop)
            if self.on_settled is not None:
                self.on_settled()
        self._changed.set()
        self._ready_queues.add(self)

    @property
    def is_charged(self) -> bool:
        """Whether the next message must be handled alone."""
        return self.starts is not None and self.starts.is_alone(self.position)

    @property
    def has_charged(self) -> bool:
        """Whether members were lost by the next message."""
        return self.starts is not None and self.position in self.starts.charged

    def announce(self, on_known: OnKnown) -> None:
        """Report that a suspect is to begin; `on_known` is called when the broker has answered."""
        assert self.starts is not None
        self._announced = self.position
        self.starts.announce(self._announced, on_known)

    @property
    def is_announced(self) -> bool:
        """Whether the announced suspect is still the next message."""
        return self.is_ready and self.is_charged and self.position == self._announced

    def take_back(self) -> None:
        """Report that the announced suspect does not begin now."""
        if self.starts is not None:
            self.starts.end(self._announced)

    def start(self, message: PulledMessage) -> None:
        """Report to the broker that the handling of a message begins."""
        if self.starts is not None:
            offset = message.offset
            fetched_end = self.fetch_offset if offset == self._newest else offset + 1
            self.starts.begin(offset, offset + 1, fetched_end)

    def withhold(self, message: PulledMessage, *, alone: bool) -> bool:
        """Return whether a taken message must not be handled now: its delay is not over, or it is a
        dead letter.

        Args:
            alone: whether nothing else is handled, so that a suspect may be.
        """
        charge = self.starts.charged.get(message.offset) if self.starts is not None else None
        if charge is None:
            return False
        if charge.is_over:
            message.attempts = charge.failures
            self._ready_queues.on_lost_often(message, charge.failures)
            return True
        message.attempts = max(message.attempts, charge.failures + 1)
        if alone:
            return False
        message.attempts -= 1
        self.retry_later(message, max(charge.wait_s(), SHORT_WAIT_S))
        return True

    def _end_work(self) -> None:
        ready_queues = self._ready_queues
        self.at_work -= 1
        ready_queues.at_work -= 1
        if ready_queues.is_held_back and not ready_queues.at_work:
            ready_queues.hand_out_again()

    def _make_ready(self) -> None:
        piece = self._pieces.popleft()
        self._ready_run = piece.run
        self._ready.extend(self._messages_of(piece))

    def _messages_of(self, piece: FetchedChunk) -> list[PulledMessage]:
        fields = zip(piece.offsets(), piece.run.fields(), strict=True)
        messages = pulled_messages(self, fields)
        for index, packed in piece.run.properties.items():
            messages[index]._packed = packed
        return messages

    def batch_of(self, message: PulledMessage) -> PulledBatch:
        """Return a batch of one taken message."""
        message._stage = PulledMessageState.DONE  # The batch must be finished from now on.
        self.start(message)
        return PulledBatch(self, FetchedChunk.again([message]), (message.offset,))

    def _before_charged(self, max_count: int) -> int:
        """Count the messages before the next suspect, up to a maximum."""
        if self.starts is None or not self.starts.charged:
            return max_count
        if self._again:
            ahead: Iterable[int] = sorted(message.offset for message in self._again)
        else:
            fetched = chain.from_iterable(piece.offsets() for piece in self._pieces)
            ahead = chain((message.offset for message in self._ready), fetched)
        charged = self.starts.charged
        return sum(
            1 for _ in takewhile(lambda offset: offset not in charged, islice(ahead, max_count))
        )

    def take_batch(self, max_count: int) -> PulledBatch:
        """Take the next messages up to a maximum, at least one, without suspects."""
        max_count = self._before_charged(max_count)
        batch = self._take_batch(max_count)
        if self.starts is not None:
            for key in batch.keys[1:]:
                self.starts.at_work[key] = key + 1
            first = batch.keys[0]
            end = first + 1 if len(batch.keys) > 1 else batch.piece.last + 1
            self.starts.begin(first, end, end)
        return batch

    def _take_batch(self, max_count: int) -> PulledBatch:
        self.at_work += 1
        self._ready_queues.at_work += 1
        if self._again:
            messages = [heappop(self._again) for _ in range(min(max_count, len(self._again)))]
            for message in messages:
                message._stage = PulledMessageState.DONE
            keys = tuple(message.offset for message in messages)
            return PulledBatch(self, FetchedChunk.again(messages), keys)
        if self._ready:
            self._pieces.appendleft(FetchedChunk.again(self._ready))
            self._ready.clear()
        taken = [self._pieces.popleft()]
        count = taken[0].run.count
        while count < max_count and self._pieces:
            taken.append(self._pieces.popleft())
            count += taken[-1].run.count
        if count > max_count:
            taken[-1], rest = taken[-1].split(taken[-1].run.count - (count - max_count))
            self._pieces.appendleft(rest)
        piece = joined(taken)
        self._progress.begin(piece.first)
        return PulledBatch(self, piece, (piece.first,))

    # done messages

    def finish(self, message: PulledMessage) -> None:
        """Mark a message as done."""
        self.leave_run()
        if message._stage is PulledMessageState.OUT:
            self._end(message)
        elif message in self._again:
            self._again.remove(message)
            heapify(self._again)
        message._stage = PulledMessageState.DONE
        self._progress.end(message.offset)
        if self.starts is not None:
            self.starts.charged.pop(message.offset, None)
        self.counts.finished += 1
        self.count -= 1
        self.size_bytes -= len(message.body) + FRAME_HEADER_BYTES
        self._settled()

    def finish_batch(self, batch: PulledBatch) -> None:
        """Mark the messages of a batch as done."""
        batch.is_finished = True
        self._end_batch(batch)
        if self.starts is not None:
            for key in batch.keys:
                self.starts.charged.pop(key, None)
        self.counts.finished += batch.count
        self.count -= batch.count
        self.size_bytes -= len(batch.piece.run.raw)
        self._settled()

    def retry_later(self, message: PulledMessage, delay_s: float) -> None:
        """Have it handed out again after a delay in seconds."""
        self.put_off(message)
        asyncio.get_running_loop().call_later(delay_s, self.put_back, message)

    def give_up(self, message: PulledMessage) -> None:
        """Mark it as done, since it is kept elsewhere."""
        self.counts.dead += 1
        if message.is_out:
            self.finish(message)

    def put_off(self, message: PulledMessage) -> None:
        """Note that its handling ended without success; it waits for its delay."""
        self.leave_run()
        message._stage = PulledMessageState.WAITING
        self.counts.requeued += 1
        self._end(message)
        self._changed.set()
        if self.on_settled is not None:
            self.on_settled()

    def put_back(self, message: PulledMessage) -> None:
        """Have it handed out again, before those with higher offsets."""
        self.leave_run()
        if message._stage is PulledMessageState.DONE:
            return  # It was finished while it waited.
        if message._stage is PulledMessageState.OUT:
            self.put_off(message)
        heappush(self._again, message)
        self.is_busy = False
        self._ready_queues.add(self)

    def put_back_batch(self, batch: PulledBatch) -> None:
        """Have the messages of a batch handed out again."""
        batch.is_finished = True
        self._end_batch(batch)
        for message in self._messages_of(batch.piece):
            self._progress.begin(message.offset)
            heappush(self._again, message)
        self._settled()

    def _end(self, message: PulledMessage) -> None:
        if self.starts is not None:
            self.starts.end(message.offset)
        self._end_work()

    def _end_batch(self, batch: PulledBatch) -> None:
        for key in batch.keys:
            self._progress.end(key)
            if self.starts is not None:
                self.starts.end(key)
        self._end_work()

    def _settled(self) -> None:
        if self.on_settled is not None:
            self.on_settled()
        self.is_busy = False
        self._changed.set()
        self._ready_queues.add(self)

    # assignment

    def pause(self) -> None:
        """Stop fetching and handing out until `resume`."""
        self.leave_run()
        self.is_paused = True

    def resume(self) -> None:
        """Resume fetching and handing out."""
        self.is_paused = False
        self._changed.set()
        self._ready_queues.add(self)

    def begin_leaving(self) -> None:
        """Stop handing out, and drop messages not handed out."""
        self.leave_run()
        self.hold = AssignmentState.LEAVING
        self.fetch_offset = self._untouched
        self.count -= len(self._ready) + sum(piece.run.count for piece in self._pieces)
        self.size_bytes -= sum(len(message.body) + FRAME_HEADER_BYTES for message in self._ready)
        self.size_bytes -= sum(len(piece.run.raw) for piece in self._pieces)
        self._ready.clear()
        self._pieces.clear()
        self._changed.set()

    def stay(self) -> None:
        """Keep a queue that was to be released."""
        self.hold = AssignmentState.OPEN
        self._changed.set()
        self._ready_queues.add(self)

    def close(self) -> None:
        """Drop the queue."""
        self.begin_leaving()
        self.hold = AssignmentState.CLOSED

    async def idle(self, timeout_s: float) -> bool:
        """Wait until nothing of it is handled. Returns False after the time limit."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.at_work and self.hold is AssignmentState.LEAVING:
                    await self.change()
        except TimeoutError:
            return False
        return True
