"""Create a follower, the channel of an external reader, or move it to the reader's position.

`martlet.broker.groups.external_reader` describes such channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from martlet.broker.errors import Conflict, OutOfReach
from martlet.broker.groups.external_reader import ExternalReader
from martlet.broker.policy import BadPolicy, ChannelPolicy
from martlet.names import is_ephemeral

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.topic.topic import Topic


def follow(topic: Topic, name: str, offsets: Mapping[int, int], *, retain: bool) -> Channel:
    """Move a follower to its reader's offsets, by queue number; create it at the first stored
    offset if it is missing.

    Raises:
        Conflict: another kind of channel has that name.
        BadPolicy: an ephemeral channel cannot be a follower.
        OutOfReach: an offset is behind the end of its queue; nothing is changed.
        NotFound: there is no such queue; nothing is changed.
        InvalidName, LimitReached, WritesRefused: as `Topic.channel`.
    """
    for number, offset in offsets.items():
        part = topic.part(number)
        if offset > part.queue.visible_end:
            raise OutOfReach(
                f"offset {offset} of topic {topic.name!r}, queue {number} is behind its end,"
                f" {part.queue.visible_end}",
                queue=number,
            )
    wanted = ChannelPolicy(kind="follower", retain="on" if retain else "off")
    channel = topic.channels.get(name)
    if channel is None:
        if is_ephemeral(name):
            raise BadPolicy(f"an ephemeral channel cannot be a follower: {name!r}")
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
