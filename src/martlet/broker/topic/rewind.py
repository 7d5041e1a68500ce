"""Rewind: set a channel back, or start a new channel in the past.

::

    offsets   0 ...... 40 ......... 90 ........ 120 ...... 150
    the log   | gone   | stored                              |
    before             |             | in flight  | fresh    |
    set back           |    | fresh                          |
    to 60                   60

A channel may be set back to any offset up to its cursor, as long as everything from there on is
still stored. From that offset on it is as though nothing had been delivered:

- Messages in flight are revoked; a later FIN is answered "not in flight", as after a timeout.
- Requeued, timed-out and finished messages are redelivered in order, with new attempts. A deferred
  message waits for its time if it is not due yet.
- Messages emptied from the channel are redelivered, since they count as finished. Messages emptied
  from the topic never belonged to a channel, and are not.

Messages below the offset stay unchanged, in flight or not. Nothing is ever skipped:
`Channel.advance` moves forward. The change is journaled first, in one entry, so a restart finds it
done or not done.
"""

from __future__ import annotations

from collections.abc import Mapping

from martlet.broker.channel.channel import Channel
from martlet.broker.channel.priority_turns import highest_first
from martlet.broker.errors import OutOfReach
from martlet.broker.journal.entries import ChannelReplayedEntry
from martlet.broker.queue.queue_log import QueueLog
from martlet.broker.topic.topic import Topic
from martlet.log.index import IndexEntry


def first_entry(queue: QueueLog) -> IndexEntry | None:
    """Return the oldest batch from which on everything is stored; None where nothing is."""
    start = queue.start_offset
    return None if start >= queue.visible_end else queue.index.row(queue.index.find(start))


def offset_at(topic: Topic, time_ns: int) -> int:
    """Return the first offset stored at or after a time, or the queue's end. Raises OutOfReach if
    messages stored since then may have been deleted.
    """
    queue = topic.queue
    first = first_entry(queue)
    start = queue.start_offset
    if start and (first is None or time_ns < first.stored_at_ns):
        since = " of them" if first is None else f" up to {start}"
        raise OutOfReach(
            f"messages of {_describe(topic)} of that time may have been deleted: all{since} were",
            gone=True,
            queue=topic.number,
        )
    row = queue.index.find_time(time_ns)
    if row >= queue.index.end_row:
        return queue.visible_end
    return max(min(queue.index.row(row).first_offset, queue.visible_end), start)


def replay(topic: Topic, name: str, offsets: Mapping[int, int]) -> None:
    """Set a channel back as `set_back` does, and deliver."""
    for channel in set_back(topic, name, offsets):
        channel.resume_delivery()


def set_back(topic: Topic, name: str, offsets: Mapping[int, int]) -> list[Channel]:
    """Set a channel back to an offset at some queues of a topic, by queue number.

    Returns the channel at each of them, in the order in which the caller calls `resume_delivery`.

    Raises:
        NotFound: there is no such channel, or queue.
        OutOfReach: an offset was deleted, or is ahead of the channel's cursor.
        WritesRefused: it could not be journaled, and nothing is changed.
    """
    starts = [(topic.at_queue(number), offset) for number, offset in offsets.items()]
    for queue_topic, offset in starts:
        channel = queue_topic.find_channel(name)
        check_is_stored(queue_topic, offset)
        if offset > channel.cursor.next:
            raise OutOfReach(
                f"channel {name!r} of {_describe(queue_topic)} is at offset {channel.cursor.next}"
                f" and cannot be set back to {offset}; the offset must be {channel.cursor.next} or"
                " lower",
                queue=queue_topic.number,
            )
    channel = topic.find_channel(name)
    if channel.group is not None:
        raise OutOfReach(
            f"{name!r} of topic {topic.name!r} is a group: set its offsets with"
            " martlet groups reset"
        )
    if not channel.ephemeral:
        topic.journal(
            [
                ChannelReplayedEntry(queue_topic.id, channel.id, offset)
                for queue_topic, offset in starts
            ]
        )
    for queue_topic, offset in starts:
        channel = queue_topic.channels[name]
        channel.go_back(offset)
        queue_topic.schedule(channel, offset)
        channel.cursor.deferred_ahead = queue_topic.deferred_from(offset)
    return highest_first(queue_topic.channels[name] for queue_topic, _ in starts)


def channel_from(topic: Topic, name: str, offsets: Mapping[int, int]) -> Channel:
    """Create a channel that starts at an offset of some queues, by number; at others as any does.

    Raises:
        InvalidName: the name is not valid for a channel.
        NotFound: there is no such queue.
        OutOfReach: the channel exists already, an offset was deleted or does not exist yet, or the
            topic's backlog, which waits for its first channel, begins before it.
        WritesRefused: it could not be journaled.
    """
    if name in topic.channels:
        raise OutOfReach(
            f"there is a channel {name!r} of topic {topic.name!r} already; omit new=true to set it"
            " back"
        )
    for number, offset in offsets.items():
        queue_topic = topic.at_queue(number)
        check_is_stored(queue_topic, offset)
        if offset > queue_topic.limit:
            raise OutOfReach(
                f"{_describe(queue_topic)} ends at offset {queue_topic.limit}, before {offset}",
                queue=queue_topic.number,
            )
        if not queue_topic.holders and offset > queue_topic.backlog_offset:
            raise OutOfReach(
                f"the first channel of {_describe(queue_topic)} gets all from offset"
                f" {queue_topic.backlog_offset} on, and none of it would be left for others behind"
                f" {offset}",
                queue=queue_topic.number,
            )
    return topic.channel(name, start=offsets)


def check_is_stored(topic: Topic, offset: int) -> None:
    """Raise OutOfReach if an offset of a queue was deleted."""
    start = topic.queue.start_offset
    if offset < start:
        raise OutOfReach(
            f"offset {offset} of {_describe(topic)} was deleted: stored messages begin at {start}",
            gone=True,
            queue=topic.number,
        )


def _describe(topic: Topic) -> str:
    return f"topic {topic.name!r}" + (f", queue {topic.number}" if topic.several else "")
