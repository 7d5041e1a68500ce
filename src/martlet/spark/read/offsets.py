"""Positions in queues: how a query writes them down, compares them and limits a step.

A query's position is one offset a queue, the first one not yet read, and the number of the topic,
which another topic of the same name does not have::

    {"<broker id>": {"<topic>": {"<queue>": 17, "topic_id": 3}}}

which is what Spark keeps in the checkpoint, as JSON with sorted keys.  Where the number is missing,
as in a checkpoint of an older version, any topic of that name is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

Offsets = dict[str, dict[str, dict[str, int]]]
TOPIC_ID = "topic_id"
ANY = 0
"""The number of no topic: whichever has the name."""


class QueueKey(NamedTuple):
    """A queue among all brokers.

    Attributes:
        broker: the broker's id.
        topic: the topic's name.
        queue: the queue's number.
        topic_id: the topic's number at its broker, which no other topic ever has there.
    """

    broker: str
    topic: str
    queue: int
    topic_id: int = ANY

    def __str__(self) -> str:
        return f"topic {self.topic}, queue {self.queue} of broker {self.broker}"

    @property
    def name(self) -> QueueKey:
        """The same of whichever topic has the name."""
        return QueueKey(self.broker, self.topic, self.queue)


class Span(NamedTuple):
    """Offsets of one queue, from `start` up to `end`."""

    key: QueueKey
    start: int
    end: int


def flatten(offsets: Offsets) -> dict[QueueKey, int]:
    """The position as one entry a queue."""
    return {
        QueueKey(broker, topic, int(queue), queues.get(TOPIC_ID, ANY)): offset
        for broker, topics in offsets.items()
        for topic, queues in topics.items()
        for queue, offset in queues.items()
        if queue != TOPIC_ID
    }


def nested(flat: Mapping[QueueKey, int]) -> Offsets:
    """The inverse of `flatten`, in one order whatever the order of `flat`."""
    offsets: Offsets = {}
    for key in sorted(flat):
        queues = offsets.setdefault(key.broker, {}).setdefault(key.topic, {})
        queues[str(key.queue)] = flat[key]
        if key.topic_id != ANY:
            queues[TOPIC_ID] = key.topic_id
    return offsets


def adopted(flat: Mapping[QueueKey, int], seen: Iterable[QueueKey]) -> dict[QueueKey, int]:
    """The position with the numbers of the topics that are there, where it has none."""
    if all(key.topic_id != ANY for key in flat):
        return dict(flat)
    known = {key.name: key for key in seen}
    return {
        known.get(key, key) if key.topic_id == ANY else key: offset for key, offset in flat.items()
    }


def spans(start: Mapping[QueueKey, int], end: Mapping[QueueKey, int]) -> Iterator[Span]:
    """What lies between two positions, queue by queue; a queue without a start has nothing."""
    for key in sorted(end):
        first = start.get(key, end[key])
        if first < end[key]:
            yield Span(key, first, end[key])


def step(
    start: Mapping[QueueKey, int], end: Mapping[QueueKey, int], max_offsets: int | None
) -> dict[QueueKey, int]:
    """A position between `start` and `end` with at most `max_offsets` messages before it.

    What there is to read is shared out in proportion, and a queue that has anything to read gets at
    least one message.  Where they are more than that, they take turns.
    """
    reached = dict(end)
    todo = list(spans(start, end))
    total = sum(span.end - span.start for span in todo)
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
    # Smallest shares first: what rounding gives them up is taken from those that have most.
    for span in sorted(todo, key=lambda span: span.end - span.start):
        size = span.end - span.start
        share = min(left, max(1, left * size // total))
        reached[span.key] = span.start + share
        left -= share
        total -= size
    return reached


def in_turn(todo: list[Span]) -> list[Span]:
    """The spans from the one on whose turn it is.

    It follows from the positions alone, so that nothing has to be kept from step to step: where
    each step is one message for some of them, the turn goes on behind the last of those.
    """
    turn = sum(span.start for span in todo) % len(todo) if todo else 0
    return todo[turn:] + todo[:turn]
