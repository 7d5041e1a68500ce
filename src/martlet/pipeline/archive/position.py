"""How far an archive has come, queue by queue: what was archived once is not archived again.

A position is one offset a queue, the first one that is not archived, written down as a query's is
in `martlet.spark.read.offsets`: with the number of the topic, as a topic that was deleted and made
anew begins at offset 0 again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from martlet.spark.read.offsets import QueueKey

Position = Mapping[QueueKey, int]


class Stretch(NamedTuple):
    """Offsets of one queue that were read together, from `start` up to `end`."""

    key: QueueKey
    start: int
    end: int


class TwoWritersError(Exception):
    """Somebody else has archived the same messages meanwhile."""


def started(position: Position, start: Position) -> dict[QueueKey, int]:
    """The position with the queues that it has not, where they start.

    A topic that was made anew takes the place of the one that had its name.
    """
    known = {(key.broker, key.topic): key.topic_id for key in position}
    fresh = {key: offset for key, offset in start.items() if key not in position}
    anew = {
        (key.broker, key.topic)
        for key in fresh
        if known.get((key.broker, key.topic), key.topic_id) != key.topic_id
    }
    kept = {key: at for key, at in position.items() if (key.broker, key.topic) not in anew}
    return kept | fresh


def advanced(position: Position, stretches: Iterable[Stretch]) -> dict[QueueKey, int]:
    """The position once these were archived too.

    Raises:
        TwoWritersError: some of it lies below the position.
    """
    ordered = sorted(stretches)
    further = started(position, {stretch.key: stretch.start for stretch in reversed(ordered)})
    for key, start, end in ordered:
        if start < further[key]:
            raise TwoWritersError(
                f"{key}: offset {start} is archived already, up to {further[key]}:"
                " another archive job writes to the same place"
            )
        further[key] = end
    return further
