"""Reset: where a group begins, or begins anew.

::

    queue     | gone | stored .......................|
                     ^ first      ^ time             ^ last
    deferred             x     x  keep their time, wherever the group is set

A group begins ``last`` as a rule, with what comes from now on; but the first reader of a topic
begins with what has waited for one.  What is asked for by a time, and has gone, begins with the
first that is there.  Unlike a channel a group may be set forward as well as back: who asks for that
knows that what lies between is not handled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from martlet.broker.channel.requested_policy import wished
from martlet.broker.errors import Conflict, OutOfReach
from martlet.broker.policy import BadPolicy, ChannelPolicy
from martlet.broker.topic.rewind import channel_from, offset_at
from martlet.names import is_ephemeral
from martlet.plural import counted

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.topic.topic import Topic

STARTS = ("last", "first", "time", "offset")
_MILLISECOND_NS = 1_000_000


def begin_group(
    topic: Topic, name: str, start: str, time_ms: int, offset: int, policy: Mapping[str, object]
) -> Channel:
    """The group of that name, made to begin somewhere if it is new, with some of its policy set.

    A channel that was made only because other brokers have it becomes a group, and goes on where
    it is; any other is refused, as is what changes a group that has members.

    Raises:
        BadPolicy: it cannot be a group.
        Conflict: it is a channel, or what is wanted of its policy is not for a member to change.
        InvalidName, LimitReached, WritesRefused: as `Topic.channel`.
        OutOfReach: it cannot begin at that offset.
    """
    channel = topic.channels.get(name)
    if channel is None:
        # Refused before it is there, where its policy can not be.
        if is_ephemeral(name):
            raise BadPolicy(f"a group is there to keep its offsets, and {name!r} is ephemeral")
        wanted = ChannelPolicy(from_consumers=tuple(policy))
        wanted = wanted.changed({"kind": "offsets", **policy})
        if start == "last":
            channel = topic.channel(name)
        else:
            offsets = {part.number: place(part, start, time_ms, offset) for part in topic.parts}
            if start != "offset" and not topic.holders:
                offsets = {n: min(o, topic.parts[n].backlog_offset) for n, o in offsets.items()}
            channel = channel_from(topic, name, offsets)
    else:
        if channel.policy.kind == "shared" and not channel.policy.from_lookup:
            depth = sum(part.depth for part in channel.parts)
            raise Conflict(
                f"{name!r} of topic {topic.name!r} is a channel with"
                f" {counted(depth, 'message')} waiting, to which consumers subscribe,"
                " and not a group: take another name for the group; or delete"
                " the channel; or make a group of it for good: martlet channel configure"
                f" {topic.name} {name} kind=offsets"
            )
        wanted = replace(wished(channel, policy), kind="offsets", from_lookup=False)
    if wanted != channel.policy:
        topic.configure_channel(name, wanted)
    return channel


def place(part: Topic, where: str, time_ms: int, offset: int) -> int:
    """The offset in a queue that is meant. Raises OutOfReach."""
    limit = part.limit
    start = min(part.queue.start_offset, limit)
    if where == "first":
        return start
    if where == "last":
        return limit
    if where == "time":
        try:
            return min(max(offset_at(part, time_ms * _MILLISECOND_NS), start), limit)
        except OutOfReach:
            return start
    if not start <= offset <= limit:
        raise OutOfReach(
            f"offset {offset} is not there: queue {part.number} of topic {part.name!r} has"
            f" {start} to {limit}",
            gone=offset < start,
            queue=part.number,
        )
    return offset


def reset_group(
    topic: Topic,
    channel: Channel,
    numbers: Iterable[int],
    where: str,
    time_ms: int,
    offset: int,
) -> None:
    """Set a group to other offsets, at some queues; who is a member has to join again.

    Raises:
        OutOfReach: an offset is not there, and nothing is done.
        WritesRefused: it could not be written down for all queues; those for which it was are set.
    """
    places = {number: place(topic.parts[number], where, time_ms, offset) for number in numbers}
    assert channel.group is not None
    channel.group.members.dismiss()
    for number, to in places.items():
        part = channel.parts[number]
        assert part.group is not None
        part.group.set_to(to)
