"""Positions of a query: their form in the checkpoint, and the limits of a micro-batch.

A position has the first unread offset of each queue, and the number of the topic, which a later
topic of the same name does not share::

    {"<broker id>": {"<topic>": {"<queue>": 17, "topic_id": 3}}}

Spark keeps it in the checkpoint as JSON with sorted keys.  A checkpoint of an older version lacks
the number and means any topic of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

Offsets = dict[str, dict[str, dict[str, int]]]
TOPIC_ID = "topic_id"
ANY = 0
"""In place of a topic's number: any topic of the name."""


class QueueKey(NamedTuple):
    """A queue among all brokers."""

    broker: str
    topic: str
    queue: int
    topic_id: int = ANY
    """The topic's number at its broker, never used again there."""

    def __str__(self) -> str:
        return f"topic {self.topic}, queue {self.queue} of broker {self.broker}"

    @property
    def name(self) -> QueueKey:
        """The same queue of any topic of the name."""
        return QueueKey(self.broker, self.topic, self.queue)


class Span(NamedTuple):
    """Offsets of one queue, from `start` up to `end`."""

    key: QueueKey
    start: int
    end: int


def flatten(offsets: Offsets) -> dict[QueueKey, int]:
    """Convert a position to one entry a queue."""
    return {
        QueueKey(broker, topic, int(queue), queues.get(TOPIC_ID, ANY)): offset
        for broker, topics in offsets.items()
        for topic, queues in topics.items()
        for queue, offset in queues.items()
        if queue != TOPIC_ID
    }


def nested(flat: Mapping[QueueKey, int]) -> Offsets:
    """Convert back from `flatten`, in sorted order."""
    offsets: Offsets = {}
    for key in sorted(flat):
        queues = offsets.setdefault(key.broker, {}).setdefault(key.topic, {})
        queues[str(key.queue)] = flat[key]
        if key.topic_id != ANY:
            queues[TOPIC_ID] = key.topic_id
    return offsets


def adopted(flat: Mapping[QueueKey, int], seen: Iterable[QueueKey]) -> dict[QueueKey, int]:
    """Add the numbers of existing topics to a position that lacks them."""
    if all(key.topic_id != ANY for key in flat):
        return dict(flat)
    named = {key.name: key for key in seen}
    return {
        named.get(key, key) if key.topic_id == ANY else key: offset for key, offset in flat.items()
    }


def spans(start: Mapping[QueueKey, int], end: Mapping[QueueKey, int]) -> Iterator[Span]:
    """Yield the offsets between two positions, by queue; none for a queue without a start."""
    for key in sorted(end):
        first = start.get(key, end[key])
        if first < end[key]:
            yield Span(key, first, end[key])


def step(
    start: Mapping[QueueKey, int], end: Mapping[QueueKey, int], max_offsets: int | None
) -> dict[QueueKey, int]:
    """Return the position at most `max_offsets` messages after `start`, and not after `end`.

    Queues share the limit in proportion to their unread messages, each at least 1 message.  If
    there are more queues than `max_offsets`, they take turns.
    """
    reached = dict(end)
    todo = list(spans(start, end))
    total = unread(todo)
    if max_offsets is None or total <= max_offsets:
        return reached
    left = max_offsets
    if max_offsets < len(todo):
        turn = in_turn(todo)
        for span in turn:
            reached[span.key] = span.start
        for span in turn[:max_offsets]:
            reached[span.key] += 1
        return reached
    # Smallest shares first: the largest ones pay for the rounding up to 1 message.
    for span in sorted(todo, key=lambda span: span.end - span.start):
        size = span.end - span.start
        share = min(left, max(1, left * size // total))
        reached[span.key] = span.start + share
        left -= share
        total -= size
    return reached


def in_turn(todo: list[Span]) -> list[Span]:
    """Rotate the spans so that the one whose turn it is comes first.

    The turn follows from the positions alone: after a step of 1 message for some queues it goes on
    behind the last of them.
    """
    turn = sum(span.start for span in todo) % len(todo) if todo else 0
    return todo[turn:] + todo[:turn]


Reach = Callable[[QueueKey, int, int, int], tuple[int, int]]
"""From a queue, two offsets and a size to the offset reached and its bytes; `Endpoint.reach`."""


def within_bytes(
    start: Mapping[QueueKey, int], end: Mapping[QueueKey, int], max_bytes: int, reach: Reach
) -> dict[QueueKey, int]:
    """Return the position about `max_bytes` of the log after `start`, and not after `end`.

    Queues share the limit in proportion, by entire batches, each at least 1.  If there is no room
    for 1 batch of each queue, they take turns.
    """
    todo = in_turn(list(spans(start, end)))
    furthest_of = {span.key: reach(*span, max_bytes) for span in todo}
    total = sum(size for _, size in furthest_of.values())
    reached = dict(end) | {key: offset for key, (offset, _) in furthest_of.items()}
    if total <= max_bytes:
        return reached
    left = max_bytes
    for key, first, _ in todo:
        furthest, size = furthest_of[key]
        if left <= 0:
            reached[key] = first
            continue
        share = max(1, left * size // total)
        total -= size
        if share < size:
            reached[key], size = reach(key, first, furthest, share)
        left -= size
    return reached


def unread(todo: Iterable[Span]) -> int:
    """Count the messages to read."""
    return sum(span.end - span.start for span in todo)


class Gathering:
    """Delays a micro-batch until it has `min_rows` messages or `max_delay_s` have passed."""

    def __init__(self, min_rows: int, max_delay_s: float) -> None:
        self._min_rows = min_rows
        self._max_delay_s = max_delay_s
        self._since_s: float | None = None

    def waits(self, count: int, now_s: float) -> bool:
        """Whether a batch of `count` messages shall wait for more."""
        if not count:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        if count < self._min_rows and now_s - self._since_s < self._max_delay_s:
            return True
        self._since_s = None
        return False
