"""The group queue: a channel at one queue whose consumers keep their places themselves.

A group is a channel of the kind ``offsets``.  Nobody subscribes to it: its members (see
`martlet.broker.groups.membership`) fetch from the queues that they have, and commit how far they
have come.  That is the channel's cursor, so a group is kept, counted and restored like any channel,
and sees all that other channels of its topic see.

A deferred message has no place in the queue that would be read at its time.  As for any channel it
is a straggler until then; when it is due it is appended again, as a batch for this channel alone,
and gets an offset behind all others.  That it is a straggler no more is written down when the batch
is as safe as a publish that was answered OK: a crash may double it and loses nothing.

Committed offsets only rise, but for a reset by the operator, and where a member says that it wants
to go back, which is written down at once.  Else they are in the journal within its
interval, as any cursor is; a commit is answered before that.  So after a broker was killed, what
was committed within the journal's interval may come again (RocketMQ writes its offsets each 5 s).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused
from martlet.broker.groups.membership import Membership
from martlet.broker.queue.crash_charges import CrashCharges
from martlet.broker.retry import RetryPolicy
from martlet.broker.tracing.recorder import TraceStep

if TYPE_CHECKING:
    from martlet.broker.groups.fetch import Fetched
    from martlet.broker.groups.member import GroupConsumer
    from martlet.broker.queue.channel_state import ChannelState, Waiting
    from martlet.broker.queue.crash_charges import StartedRange


class GroupQueue:
    """A group at one queue.

    Args:
        channel: the channel there.
    """

    def __init__(self, channel: ChannelState) -> None:
        self._channel = channel
        self._context = context = channel.context
        self.members = Membership(channel.topic, context.clock, context.schedule)
        """Those of all queues, at number 0."""
        self.waiting: dict[Waiting, None] = {}
        """Who waits until it is paused no more."""

    def resize(self, count: int) -> None:
        """The topic has so many queues."""
        self.members.resize(replace(self.members.place, count=count))

    def pump(self) -> None:
        """Bring what is due to where it is fetched, and wake those who wait."""
        channel = self._channel
        for waiting in list(self.waiting):
            waiting.pump()
        stragglers = channel.cursor.stragglers
        for offset in stragglers.take_ready():
            attempts = stragglers.by_offset[offset].attempts
            self._context.append_again(channel, offset, attempts)

    def end(self) -> None:
        """The channel is deleted."""
        self.members.dismiss()

    @property
    def own_ahead(self) -> int:
        """How many of the messages that are for this channel alone are yet to be fetched."""
        channel = self._channel
        if not channel.cursor.deferred_ahead:
            return 0
        index = channel.queue.index
        found = 0
        for first, end in channel.source.stretches(channel.cursor.next):
            found += index.count_marked(first, end, -channel.id)
        return found

    def count(self, found: Fetched, member: GroupConsumer) -> None:
        """A member gets what was found."""
        self._channel.delivered_before += found.count
        for first, end in found.runs:
            self._trace(TraceStep.FETCHED, first, end, member)

    def _trace(self, step: TraceStep, first: int, end: int, member: GroupConsumer | None) -> None:
        channel = self._channel
        if channel.trail is not None and first < end:
            channel.trail.note(step, first, end, self._context.clock(), member)
            channel.moved()  # What is written down with the journal is looked for there.

    def commit(self, offset: int, member: GroupConsumer | None = None) -> int:
        """Everything below an offset has been handled. Returns the offset that counts, which is
        higher where a higher one was committed before.
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
        """Commit an offset that may be lower than what was committed; what has gone stays gone.
        Returns the offset that counts. Raises WritesRefused, and nothing is done.
        """
        channel = self._channel
        before = channel.cursor.next
        offset = max(offset, min(channel.queue.start_offset, before))
        if offset >= before:
            return self.commit(offset, member)
        self.set_to(offset, member)
        return offset

    def set_to(self, offset: int, member: GroupConsumer | None = None) -> None:
        """Go on at an offset, before or behind the present one, as a member or, where that is none,
        an operator wants it. Raises WritesRefused, and nothing is done.
        """
        channel = self._channel
        before = channel.cursor.next
        if member is None and channel.cursor.charges is not None:
            channel.cursor.charges = CrashCharges()
        self.move(offset)
        try:
            self._context.write_cursor(channel)
        except WritesRefused:
            self.move(before)
            raise
        self._trace(TraceStep.SET_BACK, offset, before, member)
        self._trace(TraceStep.SET_FORWARD, before, offset, member)

    # members that are lost

    def charge(self, started: StartedRange, member: GroupConsumer) -> None:
        """What a member had started here, and not committed, has failed. It is written down at
        once: losses are few, and a broker that is killed is to know of them.
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
        with suppress(WritesRefused):  # Then it is written with all others.
            self._context.write_cursor(channel)

    def charges_between(self, first: int, end: int) -> list[tuple[int, int, int, bool]]:
        """Of messages that were charged: offset, failures, how many milliseconds it is to wait, and
        whether it is to be a dead letter.
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
        """Go on at an offset, before or behind the present one. What is deferred stays so."""
        channel = self._channel
        channel.cursor.window.reset(offset)
        channel.cursor.deferred_ahead = channel.source.deferred_from(offset)
        channel.moved()
