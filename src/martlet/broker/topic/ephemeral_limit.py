"""The limit of ephemeral topics and channels: of more waiting messages, the oldest are dropped.

nsqd keeps ``#ephemeral`` topics and channels in memory alone, up to ``--mem-queue-size`` messages.
Here their messages are in the log like all others, and a stalled consumer would keep its segments.
So with each stored batch their cursors skip the excess::

    in flight     oldest that wait   kept: `max_count` at most      the topic's end
    | 7 . 7 |     x x x x x x x x x | . . . . . . . . . . . . . . . |

The messages waiting for delivery are limited, and so are those waiting for a time. Those in flight
are not, but once the cursor is far ahead, they keep only their own batches of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.offset_ranges import with_stretch

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.topic.retained import SingleQueueTopic

_AT_ONCE = 16
"""With pending messages beyond the limit, a sixteenth of it is dropped: finding them is slow."""
_MIN_SPAN = 1024


def keep_within(topic: SingleQueueTopic, max_count: int) -> None:
    """Drop the excess of an ephemeral topic or of ephemeral channels, at one queue."""
    for channel in topic.channels.values():
        if channel.ephemeral:
            _bound_channel(channel, max_count)
    if topic.ephemeral:
        _bound_topic(topic, max_count)


def _bound_channel(channel: Channel, max_count: int) -> None:
    cursor, source = channel.cursor, channel.source
    pending = cursor.pending
    # A cheap test first: this runs for each batch.
    waiting = len(pending) - pending.in_flight_count
    if source.limit - cursor.next + waiting <= max_count:
        return
    before = channel.depth + pending.waiting_count
    _drop(channel, channel.depth - max_count, max_count, ready=True)
    while (excess := channel.depth - max_count) > 0:
        end = cursor.next + excess
        cursor.skip_to(end, source.deferred_from(end) if cursor.deferred_ahead else 0)
    window = cursor.window
    if window.next - window.floor > max(_MIN_SPAN, max_count):
        channel.spread()
    _drop(channel, pending.waiting_count - max_count, max_count, ready=False)
    dropped = before - channel.depth - pending.waiting_count
    if dropped > 0:
        channel.drop(dropped)


def _drop(channel: Channel, excess: int, max_count: int, *, ready: bool) -> None:
    """Drop the oldest pending messages that are ready, or that wait for a time."""
    if excess <= 0:
        return
    pending = channel.cursor.pending
    offsets = [
        offset
        for offset, message in pending.by_offset.items()
        if message.owner is None and pending.is_ready(offset) is ready
    ]
    for offset in sorted(offsets)[: excess + max_count // _AT_ONCE]:
        pending.remove(offset)


def _bound_topic(topic: SingleQueueTopic, max_count: int) -> None:
    """Without a channel, start the backlog later; in a pause, skip the hidden messages."""
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
        topic.drop_ranges([(topic.paused_at, end)])
    topic.dropped_count += excess
