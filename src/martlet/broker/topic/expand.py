"""Expand a topic by more queues.

One journal entry contains the topic at each queue, old and new, and its channels at each of them:
whatever a power cut loses, a start finds the new queues with all their channels, or none of them.

A new queue is empty, so its channels begin at its start and skip nothing. Existing consumers
continue: their messages in flight and ready counts apply to all queues from now on. A topic never
gets fewer queues, since the messages of a queue could neither be moved in order nor dropped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from martlet.broker.channel.partitioned import PartitionedChannel
from martlet.broker.channel.subscriber import Share
from martlet.broker.errors import QueuesRefused
from martlet.broker.journal.entries import ChannelEntry, TopicEntry
from martlet.broker.queue.queue_log import ID_MASK, MAX_QUEUES, OFFSET_BITS, QueueLog
from martlet.broker.topic.topic import Topic, join
from martlet.log.index import Index

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.subscriber import Subscriber
    from martlet.broker.journal.entries import TopologyEntry
    from martlet.broker.topic.registry import TopicRegistry


def check_count(count: int) -> None:
    """Raise QueuesRefused if no topic can have that many queues."""
    if not 1 <= count <= MAX_QUEUES:
        raise QueuesRefused(f"a topic has 1 to {MAX_QUEUES} queues, not {count}")


def grow(registry: TopicRegistry, topic: Topic, count: int) -> None:
    """Increase a topic's queues to `count`.

    Raises:
        QueuesRefused: it has more already.
        WritesRefused: it could not be journaled, and nothing is changed.
    """
    if count < len(topic.parts):
        raise QueuesRefused(
            f"topic {topic.name!r} has {len(topic.parts)} queues and cannot have {count}: queues"
            " can only be added, as what is stored in one stays there until it is consumed; make a"
            " topic of another name"
        )
    fresh = [_part(registry, topic, number) for number in range(len(topic.parts), count)]
    if not fresh:
        return
    parts = topic.parts + fresh
    entries: list[TopologyEntry] = [TopicEntry(part.describe()) for part in parts]
    for name, channel in topic.channels.items():
        entries += [
            ChannelEntry(part.id, part.describe_channel(part.channels[name]))
            for part in topic.parts
        ]
        # At the new queues the channel starts at their beginning.
        entries += [
            ChannelEntry(
                part.id, replace(part.describe_channel(channel), start=0, limit=0, voids=())
            )
            for part in fresh
        ]
    topic.journal(entries)
    topic.parts += fresh
    for part in fresh:
        registry.adopt(part)
    for part in topic.parts:
        part.parts, part.several = topic.parts, True
    for channel in topic.channels.values():
        _grow_channel(topic, channel, fresh)


def _part(registry: TopicRegistry, topic: Topic, number: int) -> Topic:
    id = registry.next_id()
    id_base = (topic.queue.id_base + (number << OFFSET_BITS)) & ID_MASK
    index = Index(registry.log.storage, id, number)
    part = Topic(registry, id, topic.name, QueueLog(registry.log, id, number, id_base, index, 0))
    part.parts = topic.parts
    part.paused_at = 0 if topic.paused else None
    part.policy = topic.policy
    return part


def _grow_channel(topic: Topic, channel: Channel, fresh: list[Topic]) -> None:
    for part in fresh:
        fresh_channel = part.restore_channel(channel.id, channel.name, 0)
        fresh_channel.paused = channel.paused
        fresh_channel.configure(channel.policy)
    join(topic, channel.name)
    if channel.group is not None:
        channel.group.resize(len(topic.parts))
    for consumer in list(channel.consumers):
        subscriber = (
            consumer.subscriber if isinstance(consumer, Share) else channel.spread_out(consumer)
        )
        for part in fresh:
            part.channels[channel.name].add_share(subscriber)
        if not isinstance(consumer, Share):
            _notify(channel, subscriber)
        subscriber.resume_delivery()


def _notify(channel: Channel, subscriber: Subscriber) -> None:
    assert isinstance(channel.all_queues, PartitionedChannel)
    subscriber.client.channel_grown(channel.all_queues, subscriber)
