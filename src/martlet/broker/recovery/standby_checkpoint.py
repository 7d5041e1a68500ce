"""The checkpoint of a standby, whose state is that of a log that another replica writes.

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
from typing import TYPE_CHECKING

from martlet.broker.journal.entries import IndexRecord, SnapshotEntry, decode, encode
from martlet.log import checkpoint_file
from martlet.log.record import Header, RecordKind, payload
from martlet.names import is_ephemeral

if TYPE_CHECKING:
    from martlet.broker.delayed.done_bitmap import DoneBitmap
    from martlet.broker.recovery.journal_replay import RecoveredTopic
    from martlet.log.index import Index
    from martlet.log.storage import Storage


@dataclass(frozen=True)
class StandbyCheckpoint:
    """A checkpoint that is not saved yet.

    Attributes:
        position: the state is that before the record at this position.
        durable_from: with the log durable up to here it can be saved: behind the segment's first
            record, without which the log would end before the checkpoint.
        indexes: those that it covers, by the name that each file had then.
        data: the checkpoint file.
    """

    position: int
    durable_from: int
    indexes: Mapping[str, Index]
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

    Args:
        header, record: the record, an entry about topics.
        topics: those before it.
        marks: the delayed messages that were done before it, by bucket.

    Raises OSError where an index cannot be written.
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
