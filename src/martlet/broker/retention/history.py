"""History: what a topic keeps though every channel has finished it, so that it can be replayed.

::

    offsets     0 ....... 40 ......... 90 ........ 150 ..... 180
    stored       | expired | history    | needed     | fresh   |
                           first row    floor

A topic keeps what was stored within a time, and of that no more than the newest so many bytes;
what no channel has finished is kept beside that, whatever the limits say.  The limits say what
holds a segment back from being let go.  So what is past them can still be read for a while, until
nothing else holds the segment that it is in, and each batch goes with its segment as a whole.

The first row that is kept only rises while the limits stay as they are.  It never stands before
what has gone: a channel can be set back only as far as everything is stored.  So a gap that a power
cut has left in what was not yet durable ends the history before it.

History never stands in the way of new messages.  The fuller the disk, the less it is spared:

====================  ==============================================================================
above `clean` %       what is past its limits goes at once: what is left of the history around it is
                      copied for that, where else it would be waited for (`martlet.log.retention`)
above `force` %       history within its limits goes too, the oldest segment first
no room for a segment the same, at once, before a publisher is refused (`.retention.reclaim`)
====================  ==============================================================================

What a channel has yet to finish is no history, and is not touched by any of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from martlet.log.retention import NeedCounter
from martlet.names import is_system

if TYPE_CHECKING:
    from collections.abc import Iterator

    from martlet.broker.policy import TopicPolicy
    from martlet.broker.queue.queue_log import KeptHistory, QueueLog
    from martlet.broker.topic.retained import Retained
    from martlet.log.retention import SegmentLocator
    from martlet.log.storage import DiskUsage

USUAL_TIME_NS = 72 * 3600 * 10**9
"""How long history is kept where only its bytes are limited."""
_MILLISECOND_NS = 1_000_000


class Retention(NamedTuple):
    """How much history is kept.

    Attributes:
        time_ns: how long; 0 for none.
        bytes: how much at most, of the newest; 0 for no such limit.
    """

    time_ns: int = 0
    bytes: int = 0

    @classmethod
    def asked(cls, time_ns: int, bytes: int) -> Self:
        """As a broker is told: who limits the bytes alone wants history, for the usual time."""
        return cls(time_ns or (USUAL_TIME_NS if bytes else 0), bytes)

    def of(self, policy: TopicPolicy) -> Retention:
        """The same for a topic whose policy may say otherwise."""
        time_ms, max_bytes = policy.retention_ms, policy.retention_bytes
        wanted = self.bytes if max_bytes is None else max_bytes
        if time_ms is not None:
            return Retention(time_ms * _MILLISECOND_NS, wanted)
        return Retention(self.time_ns or (USUAL_TIME_NS if max_bytes else 0), wanted)

    def shared(self, queues: int) -> Retention:
        """What each of some queues keeps of it: an equal share of the bytes, by its own end."""
        return self if queues == 1 else Retention(self.time_ns, -(-self.bytes // queues))


class Watermarks(NamedTuple):
    """How full the disk may be before history is spared less, in percent; 0 for never."""

    clean: int = 75
    force: int = 85

    def cleans(self, fill: DiskUsage) -> bool:
        """Whether what is past its limits is to go at once."""
        return self.clean > 0 and fill.percent > self.clean

    def excess_bytes(self, fill: DiskUsage) -> int:
        """How many bytes of history are to go before their time; 0 for none."""
        if not self.force or not fill.all:
            return 0
        return max(0, fill.used - fill.all * self.force // 100)


class History:
    """The history of one queue.

    Args:
        queue: whose.
        retention: what is kept.
    """

    def __init__(self, queue: QueueLog, retention: Retention) -> None:
        self.retention = retention
        self.tally = NeedCounter(queue.index)
        """What is kept, and what is needed from there on."""
        self._queue = queue
        self._row = 0

    def count(self, places: SegmentLocator, now_ns: int) -> Iterator[None]:
        """Let go what is past the limits, and count what is kept, some rows at a time."""
        queue, retention = self._queue, self.retention
        in_time = queue.index.find_time(now_ns - retention.time_ns)
        self._row = max(self._row, queue.start_row, in_time)
        yield from self.tally.count(places, self._row)
        if retention.bytes:
            self._row = max(self._row, self.tally.row_within(retention.bytes))
            yield from self.tally.count(places, self._row)


def history_of(topic: Retained, usual: Retention) -> KeptHistory | None:
    """The history of a topic's queue as its policy is now; None where none is kept.

    Nothing is kept of what the broker notes for itself, nor of what no restart looks for.
    """
    queue = topic.queue
    retention = usual.of(topic.policy).shared(len(topic.parts))
    if retention.time_ns <= 0 or topic.ephemeral or is_system(topic.name):
        queue.history = None
    elif queue.history is None or queue.history.retention != retention:
        queue.history = History(queue, retention)
    return queue.history
