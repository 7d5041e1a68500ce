"""Expand a topic by more queues, or by a queue for the messages of a priority.

One journal entry contains the topic at each queue, old and new, and its channels at each of them:
whatever a power cut loses, a start finds the new queues with all their channels, or none of them.

A new queue is empty, so its channels begin at its start and skip nothing. Existing consumers go on:
their messages in flight and ready counts apply to all queues from now on. A topic never gets fewer
queues, since the messages of a queue could neither be moved in order nor dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from martlet.broker.channel.channel import Channel
from martlet.broker.channel.partitioned import PartitionedChannel
from martlet.broker.channel.subscriber import Share
from martlet.broker.errors import QueuesRefused
from martlet.broker.journal.entries import ChannelEntry, TopicEntry, TopologyEntry
from martlet.broker.queue.queue_log import ID_MASK, MAX_QUEUES, OFFSET_BITS, QueueLog
from martlet.broker.topic.topic import Topic, TopicRegistry, join
from martlet.log.index import Index
from martlet.properties.model import NORMAL_PRIORITY


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
    now = len(topic.normal_queues)
    if count < now:
        raise QueuesRefused(
            f"topic {topic.name!r} has {now} queues and cannot have {count}: queues can only be"
            " added, as what is stored in one stays there until it is consumed; make a topic of"
            " another name"
        )
    if count > now:
        _add(registry, topic, [NORMAL_PRIORITY] * (count - now))


def add_priority(registry: TopicRegistry, topic: Topic, priority: int) -> Topic:
    """Add the queue for the messages of a priority that the topic has had none of.

    Raises:
        QueuesRefused: the topic has the maximum number of queues.
        WritesRefused: it could not be journaled, and nothing is changed.
    """
    assert priority != NORMAL_PRIORITY and priority not in topic.by_priority
    _add(registry, topic, [priority])
    return topic.by_priority[priority]


def _add(registry: TopicRegistry, topic: Topic, priorities: Sequence[int]) -> None:
    """Add a queue for each of some priorities."""
    first = len(topic.at_queues)
    if first + len(priorities) > MAX_QUEUES:
        raise QueuesRefused(
            f"topic {topic.name!r} has {first} queues, and cannot have {len(priorities)} more: the"
            f" maximum is {MAX_QUEUES}, those of priorities included"
        )
    fresh = [
        _queue_topic(registry, topic, number, priority)
        for number, priority in enumerate(priorities, first)
    ]
    queue_topics = topic.at_queues + fresh
    entries: list[TopologyEntry] = [
        TopicEntry(queue_topic.describe()) for queue_topic in queue_topics
    ]
    for name, channel in topic.channels.items():
        entries += [
            ChannelEntry(queue_topic.id, queue_topic.describe_channel(queue_topic.channels[name]))
            for queue_topic in topic.at_queues
        ]
        # At the new queues the channel starts at their beginning.
        entries += [
            ChannelEntry(
                queue_topic.id,
                replace(queue_topic.describe_channel(channel), start=0, limit=0, voids=()),
            )
            for queue_topic in fresh
        ]
    topic.journal(entries)
    for queue_topic in fresh:
        registry.adopt(queue_topic)
        topic.add_queue(queue_topic)
    for channel in topic.channels.values():
        _grow_channel(topic, channel, fresh)


def _queue_topic(registry: TopicRegistry, topic: Topic, number: int, priority: int) -> Topic:
    id = registry.next_id()
    id_base = (topic.queue.id_base + (number << OFFSET_BITS)) & ID_MASK
    index = Index(registry.log.storage, id, number)
    queue = QueueLog(registry.log, id, number, id_base, index, 0, priority=priority)
    made = Topic(registry, id, topic.name, queue)
    made.at_queues = topic.at_queues
    made.key_hash = topic.key_hash
    made.paused_at = 0 if topic.paused else None
    made.policy = topic.policy
    return made


def _grow_channel(topic: Topic, channel: Channel, fresh: list[Topic]) -> None:
    for queue_topic in fresh:
        fresh_channel = queue_topic.restore_channel(channel.id, channel.name, 0)
        fresh_channel.paused = channel.paused
        fresh_channel.configure(channel.policy)
    join(topic, channel.name)
    if channel.group is not None:
        channel.group.resize(len(topic.at_queues))
    for consumer in list(channel.consumers):
        subscriber = (
            consumer.subscriber if isinstance(consumer, Share) else channel.spread_out(consumer)
        )
        for queue_topic in fresh:
            queue_topic.channels[channel.name].add_share(subscriber)
        assert isinstance(channel.all_queues, PartitionedChannel)
        subscriber.turns = channel.all_queues.turns
        if not isinstance(consumer, Share):
            subscriber.client.channel_grown(channel.all_queues, subscriber)
        subscriber.resume_delivery()
