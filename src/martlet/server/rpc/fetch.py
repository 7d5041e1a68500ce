"""The calls that read a queue by offset.

================  ==================================================================================
``group.fetch``   for a ``member`` that has the ``queue``: messages from ``offset`` on, at most
                  ``max_messages`` and ``max_bytes``, but at least one, however large; without any
                  it waits up to ``wait_ms`` for some
``topic.fetch``   the same without a group: the broker retains nothing for the reader, so messages
                  stay only as long as channels need them, or by the topic's retention
================  ==================================================================================

A fetch answers ``queue``, ``offset`` (as requested), ``next_offset``, ``start_offset``,
``end_offset``, ``count`` and ``status`` (see `martlet.broker.groups.fetch.Status`), and as its
bytes the frames that a consumer gets, each message's properties before it. In a group with a retry
policy it answers ``failures`` too: for each message whose handling ended with a lost member its
offset, the number of members lost, the milliseconds until it may be handled, and whether to
dead-letter it. ``topic.fetch`` does not return messages that DPUB deferred when the topic had no
channel; it returns a message delayed by its producer when it is due.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from martlet.broker.errors import NotAMember, NotFound, OutOfReach
from martlet.broker.groups.fetch import (
    MAX_FETCH_BYTES,
    MAX_FETCH_MESSAGES,
    Fetch,
    Fetched,
    Status,
)
from martlet.broker.topic.rewind import offset_at
from martlet.schema.messages import OFFSET, FindOffset, OffsetFound
from martlet.server.rpc.registry import CallError, served

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.groups.membership import GroupConsumer, Membership
    from martlet.broker.topic.topic import Topic
    from martlet.server.rpc.registry import Answer, CallArguments, Caller, Methods

MAX_WAIT_MS = 300_000
MAX_WAITING = 10_000
"""The maximum number of fetches that wait for messages of one queue."""
_NAMES = ("topic", "queue", "offset", "max_messages", "max_bytes", "wait_ms")


class LongPoll:
    """The wait of a call for an event, or until its time is over.

    It can be registered in the place of a consumer, to be notified of messages.

    Args:
        wait_ms: the maximum time in all.
    """

    def __init__(self, wait_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + wait_ms / 1000
        self._rung = asyncio.Event()
        self.is_waiting = False
        """Whether it is registered to be notified."""

    @property
    def is_over(self) -> bool:
        """Return whether its time is over."""
        return self._loop.time() >= self._ends_at

    def ring(self) -> None:
        """Wake the caller."""
        self._rung.set()

    def pump(self) -> None:
        """Wake the caller: messages have arrived."""
        self._rung.set()

    def pump_lone(self, offset: int, frame: memoryview) -> None:
        """Wake the caller: a message has arrived."""
        self._rung.set()

    def clear(self) -> None:
        """Forget earlier events."""
        self._rung.clear()

    async def wait(self) -> None:
        """Wait for an event since the last `clear`, or until the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._ends_at):
                await self._rung.wait()


class FetchCalls:
    """The calls that read by offset."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker

    def methods(self) -> Methods:
        """The method of each name."""
        return {
            "group.fetch": self.group_fetch,
            "topic.fetch": self.topic_fetch,
            **served(OFFSET, self.offset),
        }

    async def group_fetch(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Fetch messages for a member of a group."""
        arguments.only("group", "member", *_NAMES)
        topic, members = group_of(self._broker, arguments)
        channel = part_of(topic, arguments).find_channel(arguments.name("group"))
        member = members.find(arguments.text("member"), caller.connection)
        return await self._fetch(caller, arguments, channel, member)

    async def topic_fetch(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Fetch messages for a reader that keeps its own offsets."""
        arguments.only(*_NAMES)
        return await self._fetch(caller, arguments)

    async def _fetch(
        self,
        caller: Caller,
        arguments: CallArguments,
        channel: Channel | None = None,
        member: GroupConsumer | None = None,
    ) -> Answer:
        part = part_of(arguments.topic(self._broker), arguments)
        first = offset = arguments.number("offset")
        max_count = arguments.number("max_messages", 32, min_value=1, max_value=MAX_FETCH_MESSAGES)
        max_bytes = arguments.number("max_bytes", 1 << 20, min_value=1, max_value=MAX_FETCH_BYTES)
        wait_ms = arguments.number("wait_ms", 15_000, max_value=MAX_WAIT_MS)
        if member is not None:
            wait_ms = min(wait_ms, patience_ms(member))
        poll = LongPoll(wait_ms)
        with ExitStack() as undo:
            while True:
                poll.clear()
                if caller.connection is not None:
                    await caller.connection.drained()
                if part.queue.topic not in self._broker.by_id or (channel and channel.closed):
                    raise CallError("NOT_FOUND", f"topic {part.name!r}, or the group, was deleted")
                status, fetched = self._read(part, channel, member, offset, max_count, max_bytes)
                offset = fetched.next_offset
                if status is not Status.NO_NEW or poll.is_over:
                    break
                if not fetched.is_end:
                    await asyncio.sleep(0)  # It has skipped many messages; yield to the event loop.
                    continue
                if not poll.is_waiting:
                    _enter(undo, poll, part, channel, member)
                await poll.wait()
        fields: dict[str, object] = {
            "queue": part.number,
            "offset": first,
            "next_offset": offset,
            "start_offset": _start(part, channel),
            "end_offset": part.limit,
            "count": fetched.count,
            "status": status,
        }
        if channel is not None and channel.group is not None and member is not None:
            if channel.retries:
                fields["failures"] = channel.group.charges_between(first, offset)
            channel.group.count(fetched, member)
        return fields, b"".join(fetched.frames)

    def _read(
        self,
        part: Topic,
        channel: Channel | None,
        member: GroupConsumer | None,
        offset: int,
        max_count: int,
        max_bytes: int,
    ) -> tuple[Status, Fetched]:
        """Read available messages, without waiting. Raises CallError."""
        if member is not None and member.is_gone:
            raise NotAMember(f"{member.id!r} is no member of the group any more: join again")
        if member is not None and part.number not in member.held:
            return Status.NOT_HELD, Fetched([], 0, offset, True)
        start, end = _start(part, channel), part.limit
        if not start <= offset <= end:
            return Status.OFFSET_MOVED, Fetched([], 0, min(max(start, offset), end), True)
        if channel is not None and channel.paused:
            return Status.NO_NEW, Fetched([], 0, offset, True)
        broker = self._broker
        fetch = Fetch(broker.log, part.queue, offset, 0 if channel is None else channel.id)
        if channel is None:
            fetch.on_lost = lambda first, end, why: broker.lost(part.name, "", first, end, why)
        else:
            fetch.on_lost = channel.cursor.on_lost
        try:
            fetched = fetch.read_on(
                part if channel is None else channel.source,
                max_count,
                max_bytes,
                None if channel is None else channel.channel_filter,
            )
        except OSError as error:
            raise CallError(
                "TRY_AGAIN", f"the queue cannot be read at the moment: {error}"
            ) from None
        return (Status.FOUND if fetched.count else Status.NO_NEW), fetched

    def offset(self, caller: Caller, request: FindOffset) -> OffsetFound:
        """Find the offset of a time in a queue."""
        part = self._broker.find_topic(request.topic).at_queue(request.queue)
        offset, is_gone = offset_since(part, request.time_ms)
        return OffsetFound(
            queue=part.number,
            offset=offset,
            is_gone=is_gone,
            start_offset=min(part.queue.start_offset, part.limit),
            end_offset=part.limit,
        )


def _start(part: Topic, channel: Channel | None) -> int:
    """Return the first offset that may be fetched; what a group has not committed is there."""
    start = min(part.queue.start_offset, part.limit)
    return start if channel is None else min(start, channel.cursor.next)


def _enter(
    undo: ExitStack,
    poll: LongPoll,
    part: Topic,
    channel: Channel | None,
    member: GroupConsumer | None,
) -> None:
    """Register a poll with every event that may end its wait. Raises CallError."""
    if len(part.awaiting) >= MAX_WAITING:
        raise CallError(
            "LIMIT_REACHED",
            f"{MAX_WAITING} fetches wait for messages of topic {part.name!r}, queue"
            f" {part.number}, and that is the limit; try again later",
        )
    poll.is_waiting = True
    part.awaiting[poll] = None
    undo.callback(part.awaiting.pop, poll, None)
    if channel is not None and channel.group is not None:
        waiting = channel.group.waiting
        waiting[poll] = None
        undo.callback(waiting.pop, poll, None)
    if member is not None:
        member.watchers[poll.ring] = None
        undo.callback(member.watchers.pop, poll.ring, None)


def group_of(broker: BrokerCore, arguments: CallArguments) -> tuple[Topic, Membership]:
    """Return the members of the named group. Raises CallError and NotFound."""
    return find_group(broker, arguments.name("topic"), arguments.name("group"))


def find_group(broker: BrokerCore, topic_name: str, name: str) -> tuple[Topic, Membership]:
    """Return the members of a group. Raises CallError and NotFound."""
    topic = broker.find_topic(topic_name)
    channel = topic.channels.get(name)
    if channel is None:
        raise NotFound(f"there is no group {name!r} of topic {topic.name!r}")
    if channel.group is None:
        raise CallError(
            "NOT_A_GROUP", f"{name!r} of topic {topic.name!r} is a channel that consumers share"
        )
    return topic, channel.group.members


def patience_ms(member: GroupConsumer) -> int:
    """Return how long a member's call may wait: less than its lease."""
    return member.lease_ns // 2_000_000


def part_of(topic: Topic, arguments: CallArguments) -> Topic:
    """Return the topic's named queue. Raises NotFound."""
    return topic.at_queue(arguments.number("queue", 0))


def offset_since(part: Topic, time_ms: int) -> tuple[int, bool]:
    """Return the first offset since a time, and whether earlier ones since then have gone."""
    try:
        return min(offset_at(part, time_ms * 1_000_000), part.limit), False
    except OutOfReach:
        return min(part.queue.start_offset, part.limit), True
