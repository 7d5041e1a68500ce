"""The topic: where messages are published, and the channels that read it.

While a topic has no channel, its messages wait for the first one, which begins where the backlog
does.  While it is paused, messages are stored and handed to no channel: each channel sees the
topic end at the offset where it was paused.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from martlet.broker.channel import Channel
from martlet.broker.cursor import Cursor
from martlet.broker.delivery import Delivery, Surroundings
from martlet.broker.errors import InvalidName, LimitReached, NotFound, WritesRefused
from martlet.broker.journal import Description
from martlet.broker.latency import Latency
from martlet.broker.policy import ChannelPolicy, Policy, TopicPolicy
from martlet.broker.queue import MOST_BATCH_BYTES, Queue, Receipt
from martlet.broker.stretch import apart_from, with_stretch
from martlet.broker.view import View
from martlet.log.commitlog import CommitLog
from martlet.name import is_ephemeral, is_valid_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from martlet.broker.stretch import Stretch
    from martlet.log.batch import Batch, Bytes

_NO_OFFSETS = np.empty(0, np.uint64)


class TopicSurroundings(Surroundings, Protocol):
    """What a topic needs of the house around it."""

    log: CommitLog
    most_consumers: int
    most_channels: int
    max_timeout_ns: int
    latency_window_ns: int

    def on_channel(self, topic: Topic, channel: Channel, /) -> None:
        """A channel was made or deleted."""

    def staged(self, topic: Topic) -> Batch:
        """A new batch that takes a topic's messages; what it had before is appended."""

    def commit_topic(self, topic: Topic, deliver_at_ns: int) -> Receipt:
        """Append what is staged for a topic, to be delivered at a time, 0 for at once."""

    def next_id(self) -> int:
        """A number that no topic or channel ever had."""

    def journal_topology(self, op: str, topic_number: int, /, **fields: object) -> None:
        """Write a topology entry. Raises WritesRefused."""

    def lost(self, topic: str, channel: str, first: int, end: int, reason: str) -> None:
        """Messages of a channel can not be read any more."""


class Topic:
    """A topic and its channels.

    Args:
        around: the broker.
        id: its number in the log.
        name: its name, which must be valid.
        queue: its messages.
    """

    def __init__(self, around: TopicSurroundings, id: int, name: str, queue: Queue) -> None:
        self.id = id
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.queue = queue
        self.channels: dict[str, Channel] = {}
        self.message_count = 0
        self.dropped_count = 0
        """Messages that were given up, to make room, before every channel had finished them."""
        self.backlog_offset = queue.start_offset
        """Where the first channel will begin."""
        self.paused_at: int | None = None
        self.voids: list[tuple[int, int]] = []
        """Offsets that were emptied before any channel had them: none gets them. By offset."""
        self.policy = TopicPolicy()
        self._around = around
        self._waiting: dict[Delivery, None] = {}

    @property
    def paused(self) -> bool:
        """Whether messages are kept from the channels."""
        return self.paused_at is not None

    @property
    def limit(self) -> int:
        """The offset up to which channels see the topic."""
        return self.queue.end_offset if self.paused_at is None else self.paused_at

    def limit_of(self, cursor: Cursor) -> int:
        """The offset up to which a cursor may go from where it is; it is taken over a void."""
        voids = self.voids
        number = len(voids)
        while number and cursor.next < voids[number - 1][1]:
            number -= 1
        for first, end in voids[number:]:
            if cursor.next < first:
                return min(first, self.limit)
            cursor.skip_to(end, self.deferred_from(end))
        return self.limit

    def stretches(self, first: int, end: int | None = None) -> Iterator[Stretch]:
        """What the channels get of the offsets from `first` on, up to `end` or the limit."""
        return apart_from(self.voids, first, self.limit if end is None else end)

    def count_from(self, offset: int) -> int:
        """How many messages the channels get of those from an offset on."""
        return sum(end - first for first, end in self.stretches(offset))

    def deferred_from(self, offset: int) -> int:
        """How many of them are deferred ones."""
        index = self.queue.index
        return sum(index.count_deferred(first, end) for first, end in self.stretches(offset))

    @property
    def message_bytes(self) -> int:
        """The bytes of all bodies stored since the start."""
        return self.queue.message_bytes

    @property
    def depth(self) -> int:
        """How many messages wait for a channel, or for the topic to go on."""
        waiting = 0 if self.channels else self.count_from(self.backlog_offset)
        hidden = self.stretches(self.limit, self.queue.end_offset)
        return waiting + sum(end - first for first, end in hidden)

    @property
    def lowest_needed(self) -> int:
        """Below this offset, no channel needs a message any more, and no new one will."""
        if not self.channels:
            return self.backlog_offset
        lowest = min(channel.cursor.lowest_needed for channel in self.channels.values())
        return min(lowest, self.limit)

    @property
    def floor(self) -> int:
        """From this offset on the channels, and new ones, need every message."""
        if not self.channels:
            return self.backlog_offset
        floors = [channel.cursor.window.floor for channel in self.channels.values()]
        return min(*floors, self.limit)

    def stragglers_below(self, floor: int) -> npt.NDArray[np.uint64]:
        """The offsets below a floor that some channel has yet to finish, rising."""
        some = [
            np.fromiter(by_offset, np.uint64, len(by_offset))
            for channel in self.channels.values()
            if (by_offset := channel.cursor.stragglers.by_offset)
        ]
        if not some:
            return _NO_OFFSETS
        offsets = np.unique(np.concatenate(some))
        return offsets[: np.searchsorted(offsets, floor)]

    def describe(self) -> Description:
        """The topic as the journal tells it, without its channels.

        Ephemeral channels are not told of when all is told: without others, what they have got is
        no backlog for the first channel that comes after a restart.
        """
        backlog_offset = self.backlog_offset
        if self.channels and all(channel.ephemeral for channel in self.channels.values()):
            backlog_offset = self.limit
        return {
            "id": self.id,
            "name": self.name,
            "id_base": self.queue.id_base,
            "paused_at": self.paused_at,
            "backlog_offset": backlog_offset,
            "voids": self.voids,
            **_told(self.policy),
        }

    def configure(self, policy: TopicPolicy) -> None:
        """Set its policy. Raises WritesRefused."""
        told = self.describe() | {"policy": policy.told()}
        self._around.journal_topology("topic", self.id, topic=told)
        self.policy = policy

    def configure_channel(self, name: str, policy: ChannelPolicy) -> None:
        """Set a channel's policy. Raises NotFound and WritesRefused."""
        channel = self.find_channel(name)
        self.journal_channel(channel, policy=policy.told())
        channel.policy = policy

    def _change(self, **changes: object) -> None:
        """Write down what changes, and then change it: all stays as it is where that is refused."""
        self._around.journal_topology("topic", self.id, topic=self.describe() | changes)
        for name, value in changes.items():
            setattr(self, name, value)

    # messages

    def stage(
        self,
        bodies: list[bytes] | Bytes,
        deliver_at_ns: int = 0,
        properties: Sequence[tuple[int, bytes]] = (),
    ) -> Receipt:
        """Take messages, to be appended with all that this turn brings.

        Bodies are copied, so the caller may use their buffer again.  A matrix ``uint8[n, size]``
        holds n of one size.  `properties` has the number, rising, of each message that has any,
        and those, packed (see `martlet.properties`).
        """
        queue = self.queue
        batch = queue.batch
        if batch is None or deliver_at_ns or batch.end > MOST_BATCH_BYTES:
            batch = self._around.staged(self)
        if properties:
            batch.tell(batch.count, properties)
        if type(bodies) is list:
            if len(bodies) == 1:
                batch.add(bodies[0])
            else:
                batch.add_many(bodies)
        else:
            batch.add_matrix(cast("Bytes", bodies))
        if deliver_at_ns:
            return self._around.commit_topic(self, deliver_at_ns)
        return queue.receipt

    @property
    def next_offset(self) -> int:
        """The offset of the message that is staged next."""
        batch = self.queue.batch
        return self.queue.end_offset + (0 if batch is None else batch.count)

    def stored(self, first: int, deferred: bool) -> None:
        """A batch was appended that begins at offset `first`: hand it to the channels."""
        end = self.queue.end_offset
        self.message_count += end - first
        if self.paused_at is not None:
            return
        if deferred:
            for channel in self.channels.values():
                channel.schedule(first, end)
        for waiting in list(self._waiting):
            waiting.pump()

    def stored_lone(self, offset: int, frame: memoryview) -> None:
        """A message was appended by itself: hand it to the channels."""
        self.message_count += 1
        if self.paused_at is None and self._waiting:
            for waiting in list(self._waiting):
                waiting.pump_lone(offset, frame)

    # channels

    def channel(
        self, name: str, start: int | None = None, voids: Sequence[tuple[int, int]] = ()
    ) -> Channel:
        """The channel of that name, made if it is new.

        A new one begins at the topic's end, the first of a topic where its backlog does, unless
        an offset to start at is given.  It passes over the offsets in `voids` (see
        `martlet.broker.view`).

        Raises:
            InvalidName: no channel can have it.
            LimitReached: the topic has as many channels as it may have.
            WritesRefused: a new channel could not be written down, and is no ephemeral one.
        """
        channel = self.channels.get(name)
        if channel is None:
            if not is_valid_name(name):
                raise InvalidName(f"channel name {name!r} is not valid")
            most = self._around.most_channels
            if most and len(self.channels) >= most:
                raise LimitReached(
                    f"channel {name!r} would be one too many: topic {self.name!r} has"
                    f" {len(self.channels)}, and --max-channels-per-topic is {most}; delete one"
                    " that is not needed"
                )
            if start is None:
                start = self.limit if self.channels else self.backlog_offset
            channel = self.restore_channel(self._around.next_id(), name, start, voids)
            try:
                # Before it is written down: that may begin a segment, whose head tells all of it.
                self.schedule(channel, start)
                channel.counted_from = self.limit - self.count_from(start)
                with self._unless_refused(channel):
                    self.journal_channel(channel)
            except Exception:
                del self.channels[name]
                channel.close()
                raise
            self._around.on_channel(self, channel)
        return channel

    @contextmanager
    def _unless_refused(self, channel: Channel) -> Iterator[None]:
        """Write down what becomes of a channel; an ephemeral one does not depend on that.

        Where it is refused, the next record begins a segment, and with it the whole journal: a
        restart must not take later messages for what an ephemeral channel got.
        """
        try:
            yield
        except WritesRefused:
            if not channel.ephemeral:
                raise
            self._around.log.end_segment()

    def schedule(self, channel: Channel, first: int) -> None:
        """See that a channel gets the deferred messages from an offset on at their time."""
        for start, end in self.stretches(max(first, channel.cursor.next)):
            channel.schedule(start, end)

    def restore_channel(
        self, id: int, name: str, start: int, voids: Sequence[tuple[int, int]] = ()
    ) -> Channel:
        """Put a channel in place that begins at an offset, and passes over voids."""
        around = self._around
        cursor = Cursor(around.log, self.queue, start)
        cursor.on_lost = lambda first, end, why: around.lost(self.name, name, first, end, why)
        channel = Channel(
            around,
            id,
            self.name,
            name,
            cursor,
            View(self, voids) if voids else self,
            self._waiting,
            most_consumers=around.most_consumers,
            max_timeout_ns=around.max_timeout_ns,
        )
        if around.latency_window_ns:
            channel.finishes.latency = Latency(around.clock, around.latency_window_ns)
        channel.voids = voids
        self.channels[name] = channel
        return channel

    def journal_channel(self, channel: Channel, **fields: object) -> None:
        """Write down that a channel is there, or has changed."""
        self._around.journal_topology(
            "channel", self.id, topic_id=self.id, channel=describe_channel(self, channel) | fields
        )

    def find_channel(self, name: str) -> Channel:
        """The channel of that name. Raises NotFound."""
        try:
            return self.channels[name]
        except KeyError:
            raise NotFound(f"there is no channel {name!r} of topic {self.name!r}") from None

    def delete_channel(self, name: str) -> None:
        """Delete a channel and disconnect its consumers. Raises NotFound and WritesRefused."""
        channel = self.find_channel(name)
        backlog_offset = self.limit if len(self.channels) == 1 else self.backlog_offset
        with self._unless_refused(channel):
            self._around.journal_topology(
                "channel_deleted",
                self.id,
                topic_id=self.id,
                id=channel.id,
                backlog_offset=backlog_offset,
            )
        self.backlog_offset = backlog_offset
        del self.channels[name]
        channel.close()
        self._around.on_channel(self, channel)

    # what the operator does

    def set_paused(self, paused: bool) -> None:
        """Keep messages from the channels, or hand them on again."""
        if paused == self.paused:
            return
        before = self.paused_at
        self._change(paused_at=self.queue.end_offset if paused else None)
        if before is not None:
            for channel in self.channels.values():
                self.schedule(channel, before)
                channel.pump()

    def pause_channel(self, name: str, paused: bool) -> None:
        """Stop a channel's delivery, or let it go on. Raises NotFound."""
        channel = self.find_channel(name)
        if channel.paused != paused:
            self.journal_channel(channel, paused=paused)
            channel.set_paused(paused)

    def empty(self) -> None:
        """Drop the messages that no channel has got yet."""
        end = self.queue.end_offset
        if not self.channels:
            voids = with_stretch(self.voids, self.backlog_offset, end)
            paused_at = end if self.paused else None
            self._change(backlog_offset=end, paused_at=paused_at, voids=voids)
        elif self.paused_at is not None and self.paused_at < end:
            dropped = end - self.paused_at
            self._change(voids=with_stretch(self.voids, self.paused_at, end), paused_at=end)
            for channel in self.channels.values():
                channel.counted_from += dropped

    @property
    def passed(self) -> int:
        """Every channel has come to this offset, and none can begin, or go back, below it."""
        nexts = [channel.cursor.next for channel in self.channels.values()]
        return min([self.queue.start_offset, *nexts])

    def drop_voids(self, passed: int) -> None:
        """Forget the voids below an offset that every channel has passed for good.

        Only where a checkpoint says so: of entries behind it, any may be lost in a power cut, and
        a cursor's that had passed a void more easily than what tells of the void.
        """
        self.voids = [void for void in self.voids if void[1] > passed]

    def close(self) -> None:
        """The topic is deleted: so are its channels."""
        for channel in list(self.channels.values()):
            channel.close()
        self.channels.clear()


def describe_channel(topic: Topic, channel: Channel) -> Description:
    """A channel as the journal tells it.

    Where it began, or has come to, and how much of its topic it has seen is always told: what else
    tells it may be lost in a power cut.
    """
    return {
        "id": channel.id,
        "name": channel.name,
        "paused": channel.paused,
        "start": channel.cursor.lowest_needed,
        **({"voids": list(channel.voids)} if channel.voids else {}),
        "limit": topic.limit,
        **_told(channel.policy),
    }


def _told(policy: Policy) -> Description:
    told = policy.told()
    return {"policy": told} if told else {}
