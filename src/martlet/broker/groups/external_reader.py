"""The follower: a channel that stands for a reader which keeps its place elsewhere.

Such a reader, a query of Spark for one, reads the log by offset, and its place is in a checkpoint
of its own.  It tells the broker how far it is, so that people see it among the groups, with its
lag; nothing depends on what is told but that::

    kind      | who keeps the place   | what it has yet to read
    ----------|-----------------------|----------------------------------------------------
    shared    | the broker            | is kept
    offsets   | the broker            | is kept
    follower  | its reader            | is kept with retain=on; with off the topic lets go of
              |                       | messages, and new channels begin, as if it were not there

The place may go back as well as forward, since the reader may: it is told and not asked for.
Deferred messages are read where they stand, at once, so none waits for a follower.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from martlet.broker.errors import Conflict, OutOfReach, WritesRefused
from martlet.broker.groups.group_queue import GroupQueue
from martlet.broker.policy import BadPolicy, ChannelPolicy
from martlet.broker.tracing.recorder import TraceStep
from martlet.names import is_ephemeral

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.delivery import ChannelContext
    from martlet.broker.topic.topic import Topic


class ExternalReader(GroupQueue):
    """A follower at one queue."""

    @property
    def own_ahead(self) -> int:
        """Deferred messages are ahead of it like others."""
        return self._channel.cursor.deferred_ahead

    def pump(self) -> None:
        """Nobody waits for anything."""

    def move(self, offset: int) -> None:
        """Go on at an offset, before or behind the present one."""
        cursor = self._channel.cursor
        cursor.window.reset(offset)
        cursor.deferred_ahead = 0
        self._channel.moved()

    def report(self, offset: int) -> None:
        """Its reader is at an offset now. It is written down at once, since who told it does not
        tell it again: a kill would leave it behind for as long as nothing is published.
        """
        before = self._channel.cursor.next
        self.move(offset)
        with suppress(WritesRefused):  # Then it is written with all others.
            self._context.write_cursor(self._channel)
        self._trace(TraceStep.COMMITTED, before, offset, None)
        self._trace(TraceStep.SET_BACK, offset, before, None)


def group_queue(channel: Channel, context: ChannelContext, kind: str) -> GroupQueue:
    """What a channel of that kind is at one queue."""
    return (ExternalReader if kind == "follower" else GroupQueue)(channel, context)


def follow(topic: Topic, name: str, offsets: Mapping[int, int], *, retain: bool) -> Channel:
    """Let a follower be where its reader says that it is, by the queue's number; it is made, at the
    first offset that is stored, where it is missing.

    Raises:
        Conflict: there is another channel of that name.
        BadPolicy: an ephemeral channel can not be one.
        OutOfReach: an offset is behind the end of its queue; nothing is done.
        NotFound: there is no such queue; nothing is done.
        InvalidName, LimitReached, WritesRefused: as `Topic.channel`.
    """
    for number, offset in offsets.items():
        part = topic.part(number)
        if offset > part.queue.end_offset:
            raise OutOfReach(
                f"offset {offset} of topic {topic.name!r}, queue {number} is behind its end,"
                f" {part.queue.end_offset}",
                queue=number,
            )
    wanted = ChannelPolicy(kind="follower", retain="on" if retain else "off")
    channel = topic.channels.get(name)
    if channel is None:
        if is_ephemeral(name):
            raise BadPolicy(f"a follower is there to be seen later, and {name!r} is ephemeral")
        starts = {part.number: part.queue.start_offset for part in topic.parts}
        channel = topic.channel(name, starts, policy=wanted)
    elif channel.policy.kind != "follower":
        what = "a group with members" if channel.group is not None else "a channel for consumers"
        raise Conflict(
            f"{name!r} of topic {topic.name!r} is {what}: give what follows the topic another name"
        )
    elif channel.policy.retain != wanted.retain:
        topic.configure_channel(name, channel.policy.changed({"retain": wanted.retain}))
    for number, offset in offsets.items():
        part_channel = topic.parts[number].channels[name]
        queue, group = part_channel.queue, part_channel.group
        assert isinstance(group, ExternalReader)
        place = max(offset, queue.start_offset)
        if place != part_channel.cursor.next:
            group.report(place)
    return channel
