"""Needed messages: those that channels need, by a checkpoint or the head of a segment alone."""

from __future__ import annotations

from collections.abc import Iterator

from martlet.broker.delayed.done_bitmap import DoneBitmap
from martlet.broker.journal.cursor_entry import CursorState, channel_of
from martlet.broker.journal.entries import HALF, AllTransactionsEntry, SnapshotEntry, decode
from martlet.log.checkpoint_file import Checkpoint, Needed
from martlet.log.record import BadRecord, RecordKind


def needed_by(loaded: Checkpoint) -> dict[int, Needed]:
    """Return the messages that channels need as of a checkpoint or a segment's head, by topic
    number.

    Raises BadRecord.
    """
    snapshot = decode(RecordKind.TOPOLOGY, loaded.entries[0][2])
    if not isinstance(snapshot, SnapshotEntry):
        raise BadRecord("a checkpoint that does not begin with a snapshot")
    floors = {topic.id: topic.backlog_offset for topic in snapshot.topics if not topic.channels}
    pending: dict[int, set[int]] = {}
    marks: dict[int, DoneBitmap] = {}
    for kind, topic, entry in loaded.entries:
        if kind == RecordKind.CURSOR and channel_of(entry)[1]:
            cursor = CursorState(0, 0)
            cursor.apply(entry)
            floor = min([cursor.next, *(first for first, _ in cursor.ranges)])
            floors[topic] = min(floors.get(topic, floor), floor)
            pending.setdefault(topic, set()).update(cursor.pending)
        elif kind == RecordKind.MARKS:
            marks.setdefault(topic, DoneBitmap()).apply(entry)
        elif kind == RecordKind.TRANSACTION:
            half = next((topic.id for topic in snapshot.topics if topic.name == HALF), 0)
            pending.setdefault(half, set()).update(_held_by(entry))
    for bucket in snapshot.topics:
        if bucket.delayed is not None and bucket.id in marks:
            floor, below = marks[bucket.id].kept(bucket.end_offset or 0)
            floors[bucket.id], pending[bucket.id] = floor, set(below.tolist())
    voids = {topic.id: topic.voids for topic in snapshot.topics}
    return {
        topic: Needed(
            floor, sorted(o for o in pending.get(topic, ()) if o < floor), voids.get(topic, ())
        )
        for topic, floor in floors.items()
    }


def _held_by(entry: bytes) -> Iterator[int]:
    """Yield the first offsets of the batches that transactions hold."""
    found = decode(RecordKind.TRANSACTION, entry)
    if isinstance(found, AllTransactionsEntry):
        for transaction in found.transactions:
            for batches in transaction.branches.values():
                yield from (batch.first_offset for batch in batches)
