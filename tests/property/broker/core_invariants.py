"""The invariants of the core's objects, as docs/concepts/core.md lists them."""

from __future__ import annotations

from itertools import pairwise

from martlet.broker.broker import BrokerCore
from martlet.broker.channel.channel import Channel
from martlet.broker.topic.topic import Topic
from martlet.log.commit_log import CommitLog
from martlet.log.index import Index


def check_core(broker: BrokerCore) -> None:
    """Check all topics and channels, and the log, between two steps of the broker."""
    check_log(broker.log)
    for topic in broker.queues.values():
        check_topic(topic)
        check_index(topic.queue.index)
        for channel in topic.channels.values():
            check_cursor(channel)
            check_channel(broker, topic, channel)
            check_leases(channel)
            check_pending(channel)


def check_log(log: CommitLog) -> None:
    assert log.durable_position <= log.position
    assert log.position % 8 == 0
    for before, segment in pairwise(log.segments):
        assert before.base + before.capacity <= segment.base
    last = log.segments[-1]
    assert last.base <= log.position <= last.base + last.capacity


def check_index(index: Index) -> None:
    rows = index.rows(index.first_row, index.end_row)
    assert len(rows) == index.end_row - index.first_row
    assert all(before.end_offset <= row.first_offset for before, row in pairwise(rows))
    assert all(row.count > 0 for row in rows)


def check_topic(topic: Topic) -> None:
    queue = topic.queue
    assert topic.at_queues[topic.number] is topic
    assert topic.number == queue.number
    assert queue.start_offset <= queue.end_offset
    assert queue.visible_end <= queue.end_offset
    assert topic.backlog_offset <= queue.end_offset
    assert topic.paused_at is None or topic.paused_at <= queue.end_offset
    rows = queue.index.rows(queue.index.end_row - 1, queue.index.end_row)
    assert not rows or rows[0].end_offset <= queue.end_offset


def check_cursor(channel: Channel) -> None:
    cursor, window, queue = channel.cursor, channel.cursor.window, channel.queue
    assert cursor.lowest_needed <= window.floor <= window.next <= queue.end_offset
    assert not any(window.is_held(offset) for offset in cursor.pending.by_offset)
    limit = channel.source.limit
    is_paused = limit < queue.visible_end  # What is deferred behind the pause counts later.
    if channel.group is None and not is_paused:
        ahead = channel.source.stretches(cursor.next, limit)
        deferred = sum(queue.index.count_deferred(*stretch) for stretch in ahead)
        assert cursor.deferred_ahead == deferred
    assert window.floor == window.next or window.is_held(window.floor)


def check_channel(broker: BrokerCore, topic: Topic, channel: Channel) -> None:
    window, pending = channel.cursor.window, channel.cursor.pending
    assert set(channel.numbers.values()) == set(channel.consumers)
    assert all(number == consumer.number > 0 for number, consumer in channel.numbers.items())
    line = list(channel.delivery._line)
    for consumer in channel.consumers:
        held = window.held_by(consumer.number, window.floor, window.next)
        assert consumer.in_flight_count == len(held) + len(pending.owned_by(consumer))
        assert line.count(consumer) == consumer.is_ready
    assert (channel.delivery in topic.awaiting) == bool(line)
    moving = pending.owned_by(channel.moving.consumer)
    assert channel.moving.consumer.in_flight_count == len(moving)


def check_leases(channel: Channel) -> None:
    window = channel.cursor.window
    for consumer in channel.consumers:
        for before, lease in pairwise(consumer.leases):
            assert before.end <= lease.first
            assert before.deadline_ns <= lease.deadline_ns
            assert before.rank < lease.rank
        assert all(lease.first < lease.end for lease in consumer.leases)
        for offset in window.held_by(consumer.number, window.floor, window.next):
            lease = consumer.lease_of(offset)
            assert lease.first <= offset < lease.end


def check_pending(channel: Channel) -> None:
    pending = channel.cursor.pending
    assert pending.in_flight_count == sum(
        message.owner is not None for message in pending.by_offset.values()
    )
    assert pending._ready_set <= pending.by_offset.keys()
    times = set(pending._times)
    for offset, message in pending.by_offset.items():
        if offset in pending._ready_set:
            assert message.owner is None
        else:
            assert (message.due_ns, offset) in times
        assert message.first_rank <= message.rank
        assert message.attempts >= 0
    assert pending.changed <= pending.by_offset.keys()
    assert not pending.removed & pending.by_offset.keys()
