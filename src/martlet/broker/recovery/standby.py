"""A standby: its topics as readers of the log see them, and its checkpoint.

Its state is that of a log that another replica writes.

Each segment begins with the full journal, so a checkpoint at a segment's base needs little of it: a
start reads the rest from the log::

    log        | ... | segment: snapshot | cursors | ... | batch | ...
                     ^ position
    checkpoint | the same snapshot, with the position and the indexes as of there | marks |

The marks are those of delayed messages: the primary leaves out of its journal what was forwarded by
a batch that was not durable yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from martlet.broker.delayed.done_bitmap import DoneBitmap
from martlet.broker.errors import NotFound
from martlet.broker.journal.entries import HALF, IndexRecord, SnapshotEntry, decode, encode
from martlet.broker.recovery.journal_replay import RecoveredState, RecoveredTopic
from martlet.log import checkpoint_file
from martlet.log.index import Index
from martlet.log.record import Header, RecordKind, payload
from martlet.log.segmented import SegmentedLog
from martlet.log.storage import Storage
from martlet.names import is_ephemeral


@dataclass(frozen=True)
class StandbyCheckpoint:
    """A checkpoint that is not saved yet."""

    position: int
    """The state is that before the record at this position."""
    durable_from: int
    """With the log durable up to here it can be saved: behind the segment's first record, without
    which the log would end before the checkpoint.
    """
    indexes: Mapping[str, Index]
    """The indexes that it covers, by the name that each file had then."""
    data: bytes

    def save(self, storage: Storage) -> None:
        """Make the indexes and then the checkpoint durable. May block. Raises OSError."""
        for name, index in self.indexes.items():
            if name != index.name:
                storage.sync(name)
            elif not index.synced:
                storage.sync(name)
                index.synced = True
        storage.replace(checkpoint_file.NAME, self.data)


def at_head(
    header: Header,
    record: memoryview,
    topics: Iterable[RecoveredTopic],
    marks: Mapping[int, DoneBitmap],
) -> StandbyCheckpoint | None:
    """Return a checkpoint before the first record of a segment; None where that is no snapshot.

    `topics` and `marks`, of the done messages of each bucket, are those before it. Raises OSError
    where an index cannot be written.
    """
    assert header.kind == RecordKind.TOPOLOGY
    snapshot = decode(RecordKind.TOPOLOGY, bytes(payload(header, record)))
    if not isinstance(snapshot, SnapshotEntry):
        return None
    named: dict[str, Index] = {}
    indexes: dict[int, IndexRecord] = {}
    for topic in topics:
        if is_ephemeral(topic.record.name):
            continue
        index = topic.index
        index.write()
        indexes[topic.record.id] = IndexRecord(index.first_row, index.stored, index.crc)
        named[index.name] = index
    entry = replace(snapshot, position=header.position, epoch=header.epoch, indexes=indexes)
    entries = [(RecordKind.TOPOLOGY, 0, encode(entry))]
    entries += [(RecordKind.MARKS, id, marks[id].pack()) for id in indexes if id in marks]
    data = checkpoint_file.pack(entries, epoch=header.epoch, stored_at_ns=header.stored_at_ns)
    return StandbyCheckpoint(header.position, header.next_position, named, data)


class StandbyTopic:
    """A topic at one of its queues: a `martlet.broker.queue.queue_log.TopicView`."""

    def __init__(self, state: RecoveredState, log: SegmentedLog, recovered: RecoveredTopic) -> None:
        self.id = recovered.record.id
        self.name = recovered.record.name
        self.number = recovered.record.queue
        self.queue = recovered.stored_in(log)
        held_from = state.transactions.held_from(self.id)
        if held_from is not None:
            self.queue.visible_end = min(held_from, self.queue.visible_end)
        self._state = state
        self._log = log

    @property
    def at_queues(self) -> list[StandbyTopic]:
        """The topic at each of its queues, by number."""
        topics = [] if self.number else [self]
        while (recovered := self._state.find(self.name, len(topics))) is not None:
            topics.append(StandbyTopic(self._state, self._log, recovered))
        return topics

    def at_queue(self, number: int) -> StandbyTopic:
        """Return the topic at the queue of that number. Raises NotFound."""
        recovered = self._state.find(self.name, number)
        if recovered is None:
            raise NotFound(f"topic {self.name!r} has no queue {number}")
        return StandbyTopic(self._state, self._log, recovered)


def is_shown(topic: RecoveredTopic) -> bool:
    """Whether clients know of a topic, and it survives a failover."""
    record = topic.record
    return record.delayed is None and record.name != HALF and not is_ephemeral(record.name)
