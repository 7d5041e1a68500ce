"""The position of an archive, and the manifests that advance it.

The position is the first offset of each queue that is not archived.  A manifest is a task's report
to the driver about the files that it has written.

A position is encoded like the offsets of a query in `martlet.reader.offsets`: with the number
of the topic, as a topic that was deleted and created again begins at offset 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from martlet.reader.offsets import QueueKey, Span

Position = Mapping[QueueKey, int]


class TwoWritersError(Exception):
    """Another writer has archived the same messages meanwhile."""


def started(position: Position, start: Position) -> dict[QueueKey, int]:
    """Add new queues to a position. A topic that was created again replaces the earlier one."""
    topic_ids = {(key.broker, key.topic): key.topic_id for key in position}
    fresh = {key: offset for key, offset in start.items() if key not in position}
    recreated = {
        (key.broker, key.topic)
        for key in fresh
        if topic_ids.get((key.broker, key.topic), key.topic_id) != key.topic_id
    }
    kept = {key: at for key, at in position.items() if (key.broker, key.topic) not in recreated}
    return kept | fresh


def advanced(position: Position, stretches: Iterable[Span]) -> dict[QueueKey, int]:
    """Advance a position past stretches. Raises TwoWritersError: one begins before the position."""
    ordered = sorted(stretches)
    further = started(position, {stretch.key: stretch.start for stretch in reversed(ordered)})
    for key, start, end in ordered:
        if start < further[key]:
            raise TwoWritersError(
                f"{key}: offset {start} is archived already, up to {further[key]}:"
                " another archive job writes to it"
            )
        further[key] = end
    return further


class Written(NamedTuple):
    """A file that a task has written."""

    staged: str
    name: str
    rows: int
    size_bytes: int
    partition: dict[str, str | None]


@dataclass(frozen=True)
class Manifest:
    """The files of one stretch of a queue; none if retention has removed all of its messages."""

    stretch: Span
    folder: str
    files: Sequence[Written]

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)

    def format(self) -> str:
        """Encode the manifest as the text that Spark passes to the driver."""
        return json.dumps([self.stretch, self.folder, self.files])

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """Decode the text of a manifest."""
        (key, start, end), folder, files = json.loads(text)
        stretch = Span(QueueKey(*key), start, end)
        return cls(stretch, folder, [Written(*file) for file in files])
