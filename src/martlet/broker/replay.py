"""Replay: a channel set back, or a new channel that begins in the past.

::

    offsets   0 ...... 40 ......... 90 ........ 120 ...... 150
    the log   | gone   | stored                              |
    before             |             | in flight  | fresh    |
    set back           |    | fresh                          |
    to 60                   60

A channel may be set back to any offset up to where it has come, as far as everything from there on
is still in the log.  From that offset on it is as though nothing had been delivered:

- What is in flight is taken from its consumers, who are told "not in flight" if they finish it
  later, as after a timeout.
- What was requeued, timed out or finished comes again in its order, and its attempts begin anew.
  A deferred message waits for its time if that has not come yet.
- What was emptied out of the channel comes again, since for the channel that is the same as being
  finished.  What was emptied out of the topic never belonged to a channel, and does not come.

What is below the offset stays as it is, in flight or not.  Nothing is ever skipped: to go forward
is `Channel.advance`'s.  The journal tells of it before it is done, in an entry of its own, so it is
done wholly or not at all, and a restart finds it done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.errors import OutOfReach

if TYPE_CHECKING:
    from martlet.broker.broker import Broker
    from martlet.broker.channel import Channel
    from martlet.broker.queue import Queue
    from martlet.broker.topic import Topic
    from martlet.log.index import Entry


def first_entry(queue: Queue) -> Entry | None:
    """The oldest batch from which on everything is stored; None where nothing is."""
    start = queue.start_offset
    return None if start >= queue.end_offset else queue.index.row(queue.index.find(start))


def offset_at(topic: Topic, time_ns: int) -> int:
    """The first offset stored at or after a time; the queue's end where nothing was stored since.

    Raises:
        OutOfReach: messages stored since then may have gone.
    """
    queue = topic.queue
    first = first_entry(queue)
    start = queue.start_offset
    if start and (first is None or time_ns < first.stored_at_ns):
        since = " of them" if first is None else f" up to {start}"
        raise OutOfReach(
            f"what topic {topic.name!r} got at that time may have gone: all{since} was let go",
            gone=True,
        )
    row = queue.index.find_time(time_ns)
    if row >= queue.index.end_row:
        return queue.end_offset
    return max(queue.index.row(row).first_offset, start)


def replay(broker: Broker, topic: Topic, name: str, offset: int) -> Channel:
    """Set a channel back to an offset.

    Raises:
        NotFound: there is no such channel.
        OutOfReach: the offset has gone, or the channel has not come so far yet.
        WritesRefused: it could not be written down, and nothing is done.
    """
    channel = topic.find_channel(name)
    _check_is_stored(topic, offset)
    if offset > channel.cursor.next:
        raise OutOfReach(
            f"channel {name!r} of topic {topic.name!r} has come to offset {channel.cursor.next} and"
            f" cannot be set back to {offset}"
        )
    if not channel.ephemeral:
        broker.journal_topology(
            "channel_replayed", topic.id, topic_id=topic.id, id=channel.id, offset=offset
        )
    channel.go_back(offset)
    topic.schedule(channel, offset)
    channel.cursor.deferred_ahead = topic.deferred_from(offset)
    channel.pump()
    return channel


def channel_from(topic: Topic, name: str, offset: int) -> Channel:
    """A new channel that begins at an offset.

    Raises:
        InvalidName: no channel can have that name.
        OutOfReach: there is such a channel already, the offset has gone or is yet to come, or the
            topic's backlog, which waits for its first channel, begins before it.
        WritesRefused: it could not be written down.
    """
    if name in topic.channels:
        raise OutOfReach(f"there is a channel {name!r} of topic {topic.name!r} already")
    _check_is_stored(topic, offset)
    if offset > topic.limit:
        raise OutOfReach(f"topic {topic.name!r} ends at offset {topic.limit}, before {offset}")
    if not topic.channels and offset > topic.backlog_offset:
        raise OutOfReach(
            f"the first channel of topic {topic.name!r} gets all from offset {topic.backlog_offset}"
            f" on, and none of it would be left for others behind {offset}"
        )
    return topic.channel(name, start=offset)


def _check_is_stored(topic: Topic, offset: int) -> None:
    start = topic.queue.start_offset
    if offset < start:
        raise OutOfReach(
            f"offset {offset} of topic {topic.name!r} has gone: what is stored begins at {start}",
            gone=True,
        )
