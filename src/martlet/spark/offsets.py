"""Positions in queues: how a query writes them down, compares them and limits a step.

A query's position is one offset a queue, the first one not yet read::

    {"<broker id>": {"<topic>": {"<queue>": 17}}}

which is what Spark keeps in the checkpoint, as JSON with sorted keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

Offsets = dict[str, dict[str, dict[str, int]]]


class QueueKey(NamedTuple):
    """A queue among all brokers."""

    broker: str
    topic: str
    queue: int

    def __str__(self) -> str:
        return f"topic {self.topic}, queue {self.queue} of broker {self.broker}"


class Span(NamedTuple):
    """Offsets of one queue, from `start` up to `end`."""

    key: QueueKey
    start: int
    end: int


def flatten(offsets: Offsets) -> dict[QueueKey, int]:
    """The position as one entry a queue."""
    return {
        QueueKey(broker, topic, int(queue)): offset
        for broker, topics in offsets.items()
        for topic, queues in topics.items()
        for queue, offset in queues.items()
    }


def nested(flat: Mapping[QueueKey, int]) -> Offsets:
    """The inverse of `flatten`, in one order whatever the order of `flat`."""
    offsets: Offsets = {}
    for key in sorted(flat):
        queues = offsets.setdefault(key.broker, {}).setdefault(key.topic, {})
        queues[str(key.queue)] = flat[key]
    return offsets


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

    What there is to read is shared out in proportion, so that no queue starves; a queue that has
    anything to read gets at least one message, as far as they go round.
    """
    reached = dict(end)
    todo = list(spans(start, end))
    total = sum(span.end - span.start for span in todo)
    if max_offsets is None or total <= max_offsets:
        return reached
    left = max_offsets
    # Smallest shares first: what rounding gives them up is taken from those that have most.
    for span in sorted(todo, key=lambda span: span.end - span.start):
        size = span.end - span.start
        share = min(left, max(1, left * size // total))
        reached[span.key] = span.start + share
        left -= share
        total -= size
    return reached
