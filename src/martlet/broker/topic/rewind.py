"""Rewind: set a channel back, start a new channel in the past, or undo an empty.

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

An empty returns the channel's position before it: the offset that was to be delivered next, and the
messages below it that were in flight or waited to be redelivered. The undo rewinds the channel to
that offset, and makes those messages wait again, with their attempts::

    before the empty       | 1 at 41, 2 at 57 | never delivered | end
    emptied                                                     ^ next
    undone                 | 41 and 57 again  ^ next

So no message that was finished before the empty comes back; those delivered since then are
delivered again. The log keeps emptied messages for a time (`keep`), even if no retention does, as
part of the topic's history: where the disk is nearly full they go as early as other history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


MAX_RUNS = 10_000
MAX_RESTORED = 100_000
"""The maximum of runs in one queue, and of messages in all. With more, the undo rewinds to the
lowest unfinished offset, and so takes in what was finished behind it."""


class UnfinishedRun(NamedTuple):
    """Unfinished messages that had the same state, from offset `first` up to `end`."""

    first: int
    end: int
    attempts: int
    due_ns: int = 0
    """When they are to be delivered; 0 for at once."""
    failures: int = 0


class EmptiedQueue(NamedTuple):
    """The position of a channel in a queue before it was emptied."""

    queue: int
    """The queue's number."""
    offset: int
    """The first that was not delivered yet."""
    end_offset: int
    """The end of what was emptied."""
    unfinished: tuple[UnfinishedRun, ...] = ()
    """What was unfinished below `offset`, rising."""

    @property
    def lowest(self) -> int:
        """The lowest offset that is needed for the undo."""
        return self.unfinished[0].first if self.unfinished else self.offset


def emptied_queues(channels: Sequence[Channel]) -> list[EmptiedQueue]:
    """Return the position of a channel in each queue, by number."""
    left = MAX_RESTORED
    queues = []
    for number, channel in enumerate(channels):
        queues.append(_emptied_queue(channel, number, left))
        left -= sum(run.end - run.first for run in queues[-1].unfinished)
    return queues


def _emptied_queue(channel: Channel, number: int, max_unfinished: int) -> EmptiedQueue:
    cursor = channel.cursor
    now_ns = channel.context.clock()
    held = cursor.window.held_offsets(0, cursor.next).tolist()
    states = dict.fromkeys(held, (1, 0, 0))  # Each was delivered once.
    for offset, message in cursor.pending.by_offset.items():
        if offset >= cursor.next:
            continue  # A deferred message, which a rewind schedules again.
        waits = message.owner is None and message.due_ns > now_ns
        states[offset] = message.attempts, message.due_ns if waits else 0, message.failures
    runs: list[UnfinishedRun] = []
    for offset, state in sorted(states.items()):
        if runs and runs[-1].end == offset and runs[-1][2:] == state:
            runs[-1] = runs[-1]._replace(end=offset + 1)
        else:
            runs.append(UnfinishedRun(offset, offset + 1, *state))
    end = max(channel.source.limit, cursor.next)
    if len(runs) > MAX_RUNS or len(states) > max_unfinished:
        return EmptiedQueue(number, cursor.lowest_needed, end)
    return EmptiedQueue(number, cursor.next, end, tuple(runs))


def keep(topic: Topic, emptied: EmptiedQueue, now_ns: int, time_ns: int) -> None:
    """Keep what was emptied for a time, at one of the topic's queues."""
    queue = topic.queue
    is_keeping = now_ns < queue.emptied_until_ns
    queue.emptied_from = min(queue.emptied_from, emptied.lowest) if is_keeping else emptied.lowest
    queue.emptied_until_ns = now_ns + time_ns
    queue.history = None  # It has counted without what was emptied.


def restore(topic: Topic, name: str, emptied: Sequence[EmptiedQueue]) -> None:
    """Undo an empty. The caller journals the cursors.

    Raises:
        NotFound: there is no such channel, or queue.
        OutOfReach: a message was deleted meanwhile, or the channel was set back before that.
        WritesRefused: it could not be journaled, and nothing is changed.
    """
    for queue in emptied:
        queue_topic = topic.at_queue(queue.queue)
        check_is_stored(queue_topic, queue.lowest)
        behind = queue.unfinished[-1].end if queue.unfinished else 0
        if not 0 <= behind <= queue.offset <= queue_topic.limit:
            raise OutOfReach(
                f"what was emptied of {name!r} of topic {topic.name!r} is not of this topic: its"
                f" queue {queue_topic.number} ends at offset {queue_topic.limit}",
                queue=queue_topic.number,
            )
    channels = set_back(topic, name, {queue.queue: queue.offset for queue in emptied})
    for queue in emptied:
        channel = topic.at_queue(queue.queue).channels[name]
        channel.wait_again(
            (offset, run.attempts, run.due_ns, run.failures)
            for run in queue.unfinished
            for offset in range(run.first, run.end)
        )
    for channel in channels:
        channel.resume_delivery()
