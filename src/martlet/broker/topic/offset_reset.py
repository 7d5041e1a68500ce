"""Offset reset: the start of a new group, or new offsets of an existing group or follower.

::

    queue     | gone | stored .......................|
                     ^ first      ^ time             ^ last
    deferred             x     x  keep their time, wherever the group is set

A group starts at ``last`` as a rule, with new messages; but the first reader of a topic starts with
the backlog. A start by time whose messages were deleted begins at the first stored one. Unlike a
channel a group may be set forward as well as back: the caller accepts that the messages between are
not handled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from martlet.broker.channel.channel import Channel
from martlet.broker.channel.policy_checks import wished
from martlet.broker.errors import Conflict, OutOfReach
from martlet.broker.groups.group_queue import ExternalReader
from martlet.broker.policy import BadPolicy, ChannelPolicy
from martlet.broker.topic.rewind import channel_from, offset_at
from martlet.broker.topic.topic import Topic
from martlet.names import is_ephemeral
from martlet.text import counted

STARTS = ("last", "first", "time", "offset")
_MILLISECOND_NS = 1_000_000


def begin_group(
    topic: Topic, name: str, start: str, time_ms: int, offset: int, policy: Mapping[str, object]
) -> Channel:
    """Return the group of that name with some policy set, created at a start position if it is new.

    A channel that was created only because lookup daemons name it becomes a group and keeps its
    position; any other channel is refused.

    Raises:
        BadPolicy: it cannot be a group.
        Conflict: it is a channel, or a member may not change that field of its policy.
        InvalidName, LimitReached, WritesRefused: as `Topic.channel`.
        OutOfReach: it cannot start at that offset.
    """
    channel = topic.channels.get(name)
    if channel is None:
        # Refuse an invalid policy before the channel is created.
        if is_ephemeral(name):
            raise BadPolicy(f"a group keeps its offsets, so it cannot be ephemeral: {name!r}")
        new_policy = ChannelPolicy(from_consumers=tuple(policy))
        new_policy = new_policy.changed({"kind": "offsets", **policy})
        if start == "last":
            channel = topic.channel(name)
        else:
            offsets = {
                queue_topic.number: start_offset(queue_topic, start, time_ms, offset)
                for queue_topic in topic.at_queues
            }
            if start != "offset" and not topic.holders:
                offsets = {n: min(o, topic.at_queues[n].backlog_offset) for n, o in offsets.items()}
            channel = channel_from(topic, name, offsets)
    else:
        if channel.policy.kind == "shared" and not channel.policy.from_lookup:
            depth = sum(queue_channel.depth for queue_channel in channel.at_queues)
            raise Conflict(
                f"{name!r} of topic {topic.name!r} is a channel with"
                f" {counted(depth, 'message')} waiting, to which consumers subscribe,"
                " and not a group: take another name for the group; or delete"
                " the channel; or make a group of it for good: martlet channel configure"
                f" {topic.name} {name} kind=offsets"
            )
        new_policy = replace(wished(channel, policy), kind="offsets", from_lookup=False)
    if new_policy != channel.policy:
        topic.configure_channel(name, new_policy)
    return channel


def start_offset(topic: Topic, where: str, time_ms: int, offset: int) -> int:
    """Return the offset of a start position in a queue. Raises OutOfReach."""
    limit = topic.limit
    start = min(topic.queue.start_offset, limit)
    if where == "first":
        return start
    if where == "last":
        return limit
    if where == "time":
        try:
            return min(max(offset_at(topic, time_ms * _MILLISECOND_NS), start), limit)
        except OutOfReach:
            return start
    if not start <= offset <= limit:
        raise OutOfReach(
            f"offset {offset} is not there: queue {topic.number} of topic {topic.name!r} has"
            f" {start} to {limit}",
            gone=offset < start,
            queue=topic.number,
        )
    return offset


def reset_group(
    topic: Topic,
    channel: Channel,
    numbers: Iterable[int],
    where: str,
    time_ms: int,
    offset: int,
    *,
    is_dry: bool = False,
) -> dict[int, int]:
    """Set a group to other offsets at some queues, unless it is a dry run; its members have to join
    again. Returns the new offset of each queue.

    Raises:
        OutOfReach: an offset is not stored, and nothing is changed.
        WritesRefused: it could not be journaled for all queues; the others are set.
    """
    new_offsets = {
        number: start_offset(topic.at_queues[number], where, time_ms, offset) for number in numbers
    }
    if is_dry:
        return new_offsets
    assert channel.group is not None
    channel.group.members.dismiss()
    for number, to in new_offsets.items():
        group = channel.at_queues[number].group
        assert group is not None
        group.set_to(to)
    return new_offsets


def follow(topic: Topic, name: str, offsets: Mapping[int, int], *, retain: bool) -> Channel:
    """Move a follower to its reader's offsets, by queue number; create it if it is missing.

    Raises:
        Conflict: another kind of channel has that name.
        BadPolicy: an ephemeral channel cannot be a follower.
        OutOfReach: an offset is behind the end of its queue; nothing is changed.
        NotFound: there is no such queue; nothing is changed.
        InvalidName, LimitReached, WritesRefused: as `Topic.channel`.
    """
    for number, offset in offsets.items():
        queue_topic = topic.at_queue(number)
        if offset > queue_topic.queue.visible_end:
            raise OutOfReach(
                f"offset {offset} of topic {topic.name!r}, queue {number} is behind its end,"
                f" {queue_topic.queue.visible_end}",
                queue=number,
            )
    new_policy = ChannelPolicy(kind="follower", retain="on" if retain else "off")
    channel = topic.channels.get(name)
    if channel is None:
        if is_ephemeral(name):
            raise BadPolicy(f"an ephemeral channel cannot be a follower: {name!r}")
        starts = {
            queue_topic.number: queue_topic.queue.start_offset for queue_topic in topic.at_queues
        }
        channel = topic.channel(name, starts, policy=new_policy)
    elif channel.policy.kind != "follower":
        what = "a group with members" if channel.group is not None else "a channel for consumers"
        raise Conflict(
            f"{name!r} of topic {topic.name!r} is {what}: give what follows the topic another name"
        )
    elif channel.policy.retain != new_policy.retain:
        topic.configure_channel(name, channel.policy.changed({"retain": new_policy.retain}))
    for number, offset in offsets.items():
        queue_channel = topic.at_queues[number].channels[name]
        queue, group = queue_channel.queue, queue_channel.group
        assert isinstance(group, ExternalReader)
        position = max(offset, queue.start_offset)
        if position != queue_channel.cursor.next:
            group.report(position)
    return channel
