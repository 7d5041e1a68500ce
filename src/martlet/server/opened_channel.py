"""Opening a channel for a consumer, of NSQ's protocol or of HTTP: made where missing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.broker.topic.topic import Topic


def open_channel(topic: Topic, name: str) -> Channel | PartitionedChannel:
    """Return a channel at all queues of its topic, which is in use from now on.

    Raises NameRefused, LimitReached and WritesRefused, as `Topic.channel`.
    """
    known = topic.channel(name)
    if known.policy.from_lookup:
        with suppress(WritesRefused):
            topic.configure_channel(name, replace(known.policy, from_lookup=False))
    return known.all_queues
