"""The position of an archive: the first offset of each queue that is not archived.

A position is encoded like the offsets of a query in `martlet.spark.read.offsets`: with the number
of the topic, as a topic that was deleted and created again begins at offset 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from martlet.spark.read.offsets import QueueKey

Position = Mapping[QueueKey, int]


class Stretch(NamedTuple):
    """Offsets of one queue that one task reads, from `start` up to `end`."""

    key: QueueKey
    start: int
    end: int


class TwoWritersError(Exception):
    """Another writer has archived the same messages meanwhile."""


def started(position: Position, start: Position) -> dict[QueueKey, int]:
    """Add new queues to a position, with their starting offsets.

    A topic that was created again replaces the earlier topic of its name.
    """
    topic_ids = {(key.broker, key.topic): key.topic_id for key in position}
    fresh = {key: offset for key, offset in start.items() if key not in position}
    recreated = {
        (key.broker, key.topic)
        for key in fresh
        if topic_ids.get((key.broker, key.topic), key.topic_id) != key.topic_id
    }
    kept = {key: at for key, at in position.items() if (key.broker, key.topic) not in recreated}
    return kept | fresh


def advanced(position: Position, stretches: Iterable[Stretch]) -> dict[QueueKey, int]:
    """Advance a position past stretches that were archived.

    Raises:
        TwoWritersError: a stretch begins before the position.
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
