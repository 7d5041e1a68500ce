"""Undo of an empty: a channel gets again what was emptied from it.

::

    offsets         0 ... 40 ............. 90 ............... 150 ....
    before the empty       | 1 at 41, 2 at 57 | never delivered | end
    emptied                                                     ^ next
    undone                 | 41 and 57 again  ^ next

An empty returns the channel's position before it: the offset that was to be delivered next, and the
messages below it that were in flight or waited to be redelivered. The undo rewinds the channel to
that offset, and makes those messages wait again, with their attempts. So no message that was
finished before the empty comes back; those delivered since then are delivered again.

The log keeps emptied messages for a time (`keep`), even if no retention does, as part of the
topic's history: where the disk is nearly full they go as early as other history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from martlet.broker.channel.channel import Channel
from martlet.broker.errors import OutOfReach
from martlet.broker.topic.rewind import check_is_stored, set_back
from martlet.broker.topic.topic import Topic

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
