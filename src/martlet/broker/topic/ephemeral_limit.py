"""The bound of what is ephemeral: no more than so many messages wait, and the oldest go.

nsqd keeps ``#ephemeral`` topics and channels in memory alone, up to ``--mem-queue-size`` messages.
Here they are in the log as all others are, and one whose consumer has stalled would hold segments
back.  So with each batch that is stored their cursors go past what is too much::

    in flight     oldest that wait   kept: `max_count` at most      the topic's end
    | 7 . 7 |     x x x x x x x x x | . . . . . . . . . . . . . . . |

What waits to be delivered is bounded, and so is what waits for a time; what is in flight is not,
but once the cursor is far ahead of it, it holds no more of the log than its own batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.offset_ranges import with_stretch

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.topic.topic import Topic

_AT_ONCE = 16
"""Of stragglers a sixteenth of the bound goes beside what must, since to find them takes long."""
_MIN_SPAN = 1024


def keep_within(topic: Topic, max_count: int) -> None:
    """See that what is ephemeral of a topic, at one of its queues, keeps so many at most."""
    for channel in topic.channels.values():
        if channel.ephemeral:
            _bound_channel(channel, max_count)
    if topic.ephemeral:
        _bound_topic(topic, max_count)


def _bound_channel(channel: Channel, max_count: int) -> None:
    cursor, source = channel.cursor, channel.source
    stragglers = cursor.stragglers
    # A glance, since this comes with each batch.
    waiting = len(stragglers) - stragglers.in_flight_count
    if source.limit - cursor.next + waiting <= max_count:
        return
    before = channel.depth + stragglers.waiting_count
    _drop(channel, channel.depth - max_count, max_count, ready=True)
    while (excess := channel.depth - max_count) > 0:
        end = cursor.next + excess
        cursor.skip_to(end, source.deferred_from(end) if cursor.deferred_ahead else 0)
    window = cursor.window
    if window.next - window.floor > max(_MIN_SPAN, max_count):
        channel.spread()
    _drop(channel, stragglers.waiting_count - max_count, max_count, ready=False)
    dropped = before - channel.depth - stragglers.waiting_count
    if dropped > 0:
        channel.drop(dropped)


def _drop(channel: Channel, excess: int, max_count: int, *, ready: bool) -> None:
    """Drop the oldest stragglers that are ready, or of those that wait for a time."""
    if excess <= 0:
        return
    stragglers = channel.cursor.stragglers
    found = [
        offset
        for offset, straggler in stragglers.by_offset.items()
        if straggler.owner is None and stragglers.is_ready(offset) is ready
    ]
    for offset in sorted(found)[: excess + max_count // _AT_ONCE]:
        stragglers.remove(offset)


def _bound_topic(topic: Topic, max_count: int) -> None:
    """Without a channel the backlog begins later; in a pause what is hidden is passed over."""
    excess = topic.depth - max_count
    if excess <= 0:
        return
    if not topic.holders:
        topic.backlog_offset += excess
        if topic.paused_at is not None:
            topic.paused_at = max(topic.paused_at, topic.backlog_offset)
    elif topic.paused_at is not None:
        end = topic.paused_at + excess
        topic.voids = with_stretch(topic.voids, topic.paused_at, end)
        topic.give_up([(topic.paused_at, end)])
    topic.dropped_count += excess
