"""The group queue: a channel at one queue whose consumers keep their own positions.

A group is a channel of the kind ``offsets``. Clients do not subscribe to it: its members (see
`martlet.broker.groups.membership`) fetch from the queues assigned to them and commit offsets. The
committed offset is the channel's cursor, so a group is kept, counted and restored like any channel,
and sees the same messages as other channels of its topic.

A deferred message has no position in the queue at which it could be fetched when it is due. As in
any channel it is a pending message until then; when it is due it is appended again, as a batch for
this channel alone, with an offset behind all others. The end of the pending one is journaled when
the batch is as safe as a publish that was answered OK: a crash may duplicate it and loses nothing.

Committed offsets only increase, except for a reset by the operator, and for a member that goes back
explicitly, which is journaled at once. Otherwise they are journaled at the journal's interval, like
any cursor, after the commit was answered. So after a kill of the broker, the messages committed
within that interval may be delivered again (RocketMQ persists its offsets every 5 s).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused
from martlet.broker.groups.membership import GroupConsumer, Membership
from martlet.broker.retry import CrashCharges, RetryPolicy, StartedRange
from martlet.broker.tracing.recorder import TraceStep
from martlet.text import MILLISECOND_NS

if TYPE_CHECKING:
    from martlet.broker.groups.fetch import Fetched
    from martlet.broker.queue.channel_state import ChannelState, Waiting


class GroupQueue:
    """A group at one queue."""

    def __init__(self, channel: ChannelState) -> None:
        self._channel = channel
        self._context = context = channel.context
        generation = context.stored_at_ns() // MILLISECOND_NS
        self.members = Membership(channel.topic, context.clock, context.schedule, generation)
        """The members and their queues, shared by all queues, at queue 0."""
        self.waiting: dict[Waiting, None] = {}
        """Called when the channel is unpaused."""

    def resize(self, count: int) -> None:
        """Handle a new number of queues of the topic."""
        self.members.resize(replace(self.members.allocated, count=count))

    def pump(self) -> None:
        """Append due messages again where members fetch, and wake waiting members."""
        channel = self._channel
        for waiting in list(self.waiting):
            waiting.pump()
        pending = channel.cursor.pending
        for offset in pending.take_ready():
            attempts = pending.by_offset[offset].attempts
            self._context.append_again(channel, offset, attempts)

    def end(self) -> None:
        """Handle the deletion of the channel."""
        self.members.dismiss()

    @property
    def own_ahead(self) -> int:
        """The number of messages for this channel alone that are not fetched yet."""
        channel = self._channel
        if not channel.cursor.deferred_ahead:
            return 0
        index = channel.queue.index
        unread = channel.source.stretches(channel.cursor.next)
        return sum(index.count_marked(first, end, -channel.id) for first, end in unread)

    def count(self, fetched: Fetched, member: GroupConsumer) -> None:
        """Count a member's fetched messages."""
        self._channel.delivered_before += fetched.count
        for first, end in fetched.runs:
            self._trace(TraceStep.FETCHED, first, end, member)

    def _trace(self, step: TraceStep, first: int, end: int, member: GroupConsumer | None) -> None:
        channel = self._channel
        if channel.recorder is not None and first < end:
            channel.recorder.note(step, first, end, self._context.wall(), member)
            channel.moved()  # The journal writes the traces of moved channels.

    def commit(self, offset: int, member: GroupConsumer | None = None) -> int:
        """Commit that everything below an offset has been handled. Returns the group's
        offset, which is higher if a higher one was committed before.
        """
        channel = self._channel
        cursor = channel.cursor
        offset = min(offset, channel.source.limit)
        if offset > cursor.next:
            index = channel.queue.index
            passed = list(channel.source.stretches(cursor.next, offset))
            deferred = sum(index.count_deferred(*stretch) for stretch in passed)
            channel.committed_count += sum(end - first for first, end in passed) - deferred
            if deferred:
                own = (index.count_marked(*stretch, -channel.id) for stretch in passed)
                channel.committed_count += sum(own)
            self._trace(TraceStep.COMMITTED, cursor.next, offset, member)
            cursor.skip_to(offset, cursor.deferred_ahead - deferred)
            if cursor.charges is not None:
                cursor.charges.drop_below(offset)
            channel.moved()
        return cursor.next

    def go_back(self, offset: int, member: GroupConsumer | None = None) -> int:
        """Commit an offset that may be lower than the committed one, as far as messages are stored.
        Returns the offset that counts. Raises WritesRefused, and nothing is changed.
        """
        channel = self._channel
        before = channel.cursor.next
        offset = max(offset, min(channel.queue.start_offset, before))
        if offset >= before:
            return self.commit(offset, member)
        self.set_to(offset, member)
        return offset

    def set_to(self, offset: int, member: GroupConsumer | None = None) -> None:
        """Set the offset, forward or back, for a member or, without one, for an operator. Raises
        WritesRefused, and nothing is changed.
        """
        channel = self._channel
        before, charges = channel.cursor.next, channel.cursor.charges
        if member is None and charges is not None:
            channel.cursor.charges = CrashCharges()
        self.move(offset)
        try:
            self._context.write_cursor(channel)
        except WritesRefused:
            channel.cursor.charges = charges
            self.move(before)
            raise
        self._trace(TraceStep.SET_BACK, offset, before, member)
        self._trace(TraceStep.SET_FORWARD, before, offset, member)

    # lost members

    def charge(self, started: StartedRange, member: GroupConsumer) -> None:
        """Charge a failure to the messages that a lost member had started here and not committed.
        It is journaled at once: losses are few, and must survive a kill of the broker.
        """
        channel = self._channel
        cursor, retry = channel.cursor, RetryPolicy.of(channel.policy)
        offsets = sorted(set(started.between(cursor.next, channel.source.limit)))
        if retry is None or not offsets:
            return
        if cursor.charges is None:
            cursor.charges = CrashCharges()
        now_ns = self._context.clock()
        cursor.charges.add(offsets, alone=started.alone, retry=retry, now_ns=now_ns)
        for offset in offsets:
            self._trace(TraceStep.GIVEN_BACK, offset, offset + 1, member)
        channel.moved()
        with suppress(WritesRefused):  # Then the next journal write has it.
            self._context.write_cursor(channel)

    def charges_between(self, first: int, end: int) -> list[tuple[int, int, int, bool]]:
        """Return the charged messages: offset, failures, remaining delay in milliseconds, and
        whether the message is to be a dead letter.
        """
        charges = self._channel.cursor.charges
        if charges is None:
            return []
        now_ns = self._context.clock()
        return [
            (
                offset,
                charge.failures,
                max(0, -(-(charge.due_ns - now_ns) // 1_000_000)),
                charge.is_over,
            )
            for offset, charge in sorted(charges.by_offset.items())
            if first <= offset < end
        ]

    def move(self, offset: int) -> None:
        """Set the cursor to an offset, forward or back. Deferred messages stay deferred."""
        channel = self._channel
        channel.cursor.window.reset(offset)
        channel.cursor.deferred_ahead = channel.source.deferred_from(offset)
        channel.moved()


class ExternalReader(GroupQueue):
    """A follower at one queue: a channel that represents a reader which stores its own position.

    Such a reader, for example a Spark query, reads the log by offset and keeps its position in a
    checkpoint of its own. It reports the position to the broker, so that the broker lists it among
    the groups, with its lag; nothing else depends on the report::

        kind      | position kept by      | unread messages
        ----------|-----------------------|------------------------------------------------
        shared    | the broker            | are kept
        offsets   | the broker            | are kept
        follower  | its reader            | are kept with retain=on; with off the topic deletes
                  |                       | messages, and starts new channels, as without it

    The position may move back as well as forward: the broker only records it. The reader reads
    deferred messages at once, where they are stored, so none waits for a follower.
    """

    @property
    def own_ahead(self) -> int:
        """All unread messages are ahead of it, deferred ones included."""
        return self._channel.cursor.deferred_ahead

    def pump(self) -> None:
        """Do nothing: no member waits for messages here."""

    def move(self, offset: int) -> None:
        """Set the position, before or behind the present one."""
        cursor = self._channel.cursor
        cursor.window.reset(offset)
        cursor.deferred_ahead = 0
        self._channel.moved()

    def report(self, offset: int) -> None:
        """Record the position of the reader. It is journaled at once: the reader does not repeat
        its report, which a kill would lose for as long as nothing is published.
        """
        before = self._channel.cursor.next
        self.move(offset)
        with suppress(WritesRefused):  # Then the next journal write has it.
            self._context.write_cursor(self._channel)
        self._trace(TraceStep.COMMITTED, before, offset, None)
        self._trace(TraceStep.SET_BACK, offset, before, None)


def group_queue(channel: ChannelState, kind: str) -> GroupQueue:
    """Return the group queue for a channel of that kind."""
    return (ExternalReader if kind == "follower" else GroupQueue)(channel)
