"""Verify a log: whether records, index rows and the checkpoint are consistent with each other.

Read-only, so it may run beside a broker.  It checks:

- every record of every segment: magic, own position, checksum, parts that fit each other;
- inside a batch: frames that follow each other, of type message, with ids that count up;
- between batches: offsets without gaps in each queue, except where segments were retired;
- each index row that the checkpoint covers: the record at its position is that batch, and if a
  channel still needs the batch, a segment holds it;
- the checkpoint itself, and that the log reaches its position.

Missing or inconsistent data is damage. A torn tail is not: it was never answered OK, and a broker
cuts it when it starts. Nor is an index that lags behind.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from martlet.log import checkpoint_file as checkpoint
from martlet.log.checkpoint_file import Checkpoint, Needed
from martlet.log.folder import Folder, ReadOnlySegment
from martlet.log.index import ENTRY, Rows, index_name
from martlet.log.record import (
    FRAME_HEADER_BYTES,
    FRAME_SIZE_EXTRA,
    FRAME_TYPE_MESSAGE,
    HEADER_BYTES,
    BadRecord,
    Header,
    RecordFlag,
    RecordKind,
    frame_ends,
    payload,
    read_header,
    read_record,
)
from martlet.log.recovery import RecoveryReport, scan
from martlet.log.storage import Segment
from martlet.text import counted

_LONE_HEAD = struct.Struct(">II10x16s")
_END = struct.Struct("<I")
_ID = re.compile(rb"[0-9a-f]{16}")
_HEAD_KINDS = frozenset(
    {
        RecordKind.TOPOLOGY,
        RecordKind.CURSOR,
        RecordKind.PRODUCERS,
        RecordKind.TRANSACTION,
        RecordKind.MARKS,
    }
)
"""The entries at the head of a segment."""
_JOURNAL_KINDS = _HEAD_KINDS | {
    RecordKind.EPOCH,
    RecordKind.BUNDLE,
    RecordKind.TRACE,
    RecordKind.ACCOUNTS,
    RecordKind.RETIRED,
}
_ATTEMPTS = 3
_NOTHING = Needed(1 << 63, ())
_MAX_DAMAGE_TEXTS = 100
"""Further damage is only counted."""


@dataclass
class QueueContent:
    """The content of a queue in the log."""

    start_offset: int
    end_offset: int
    batches: int = 0
    bytes: int = 0
    moved: int = 0
    """The number of batches copied by cleaning."""
    last: Header | None = None
    """The last batch that is not a copy."""


@dataclass
class Verification:
    """The result of a verification."""

    folder: str
    in_use: bool
    segments: int = 0
    records: int = 0
    journal_records: int = 0
    end_position: int = 0
    last_epoch: int = 0
    index_rows: int = 0
    queues: dict[tuple[int, int], QueueContent] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    damage_count: int = 0

    def add_damage(self, text: str) -> None:
        """Count damage, and keep its text unless there is too much."""
        self.damage_count += 1
        if self.damage_count <= _MAX_DAMAGE_TEXTS:
            self.damage.append(text)


@dataclass(frozen=True)
class _StoredIndex:
    """The rows of an index file that the checkpoint covers."""

    topic: int
    queue: int
    name: str
    rows: Rows
    needed: Needed
    """The messages that channels need of the queue."""


NeededBy = Callable[[Checkpoint], Mapping[int, Needed]]
"""Returns the messages that channels need, by topic number: the journal's meaning is not known
here. Topics that are missing need nothing.
"""


def _nothing_needed(loaded: Checkpoint) -> Mapping[int, Needed]:
    return {}


def verify(
    folder: Folder,
    progress: Callable[[int, int], None] = lambda done, all: None,
    needed_by: NeededBy = _nothing_needed,
) -> Verification:
    """Verify everything in a data folder.

    With a running broker, damage may be a half-written record, or a segment just retired: the
    folder is read again, and only damage found twice counts.

    Args:
        progress: called with the bytes done and all bytes, after each segment.
        needed_by: returns the messages that channels need, by a checkpoint.
    """
    result = _verify_once(folder, progress, needed_by)
    attempts = 1
    while result.in_use and result.damage and attempts < _ATTEMPTS:
        seen = set(result.damage)
        result = _verify_once(folder, progress, needed_by)
        result.damage = [text for text in result.damage if text in seen]
        result.damage_count = len(result.damage)
        attempts += 1
    return result


def _verify_once(
    folder: Folder, progress: Callable[[int, int], None], needed_by: NeededBy
) -> Verification:
    result = Verification(str(folder.path), folder.in_use)
    # Read the files that point into the log first: a running broker would otherwise make them
    # point behind the segments that were read.
    position, indexes, marks = _checkpoint(folder, result, needed_by)
    segments = folder.segments()
    head = _newest_head(segments, position)
    if head is not None:
        # A head that was written while the checkpoint was flushed doubts marks of which that is
        # certain, and marks are never taken back.
        needed = needed_by(Checkpoint([*head.entries, *marks]))
        indexes = [replace(i, needed=needed.get(i.topic, _NOTHING)) for i in indexes]
    result.segments = len(segments)
    _segments_in_order(segments, result)
    report = RecoveryReport()
    all_bytes, done = sum(segment.capacity for segment in segments), 0
    base = -1
    for header, record in scan(segments, 0, report):
        segment_base = _base_of(segments, header.position)
        if segment_base != base:
            base = segment_base
            progress(done, all_bytes)
        done = header.position - segments[0].base
        _record(header, record, segments, result)
    progress(all_bytes, all_bytes)
    result.records = report.records
    result.end_position = report.end_position
    result.last_epoch = report.last_epoch
    _judge_damage(report, segments, result)
    for index in indexes:
        _index_rows(index, segments, result)
    if position > report.end_position and not _gone_between(segments, 0, position):
        result.add_damage(
            f"the checkpoint is of position {position}, but the log ends at"
            f" {report.end_position}: {position - report.end_position} bytes are lost"
        )
    return result


def _base_of(segments: list[Segment], position: int) -> int:
    for segment in reversed(segments):
        if segment.base <= position:
            return segment.base
    raise AssertionError(f"position {position} comes before every segment")


def _segments_in_order(segments: list[Segment], result: Verification) -> None:
    for before, behind in pairwise(segments):
        if before.base + before.capacity > behind.base:
            result.add_damage(
                f"segments {before.base} and {behind.base} overlap: the first has"
                f" {before.capacity} bytes"
            )


# records


def _record(
    header: Header, record: memoryview, segments: list[Segment], result: Verification
) -> None:
    if header.kind != RecordKind.BATCH:
        result.journal_records += 1
        if header.kind not in _JOURNAL_KINDS:
            result.add_damage(f"position {header.position}: a record of unknown kind {header.kind}")
        return
    trouble = batch_trouble(header, record)
    if trouble:
        result.add_damage(f"position {header.position}: {trouble}")
        return
    end_offset = header.first_offset + header.count
    queue = result.queues.setdefault(
        (header.topic, header.queue), QueueContent(header.first_offset, end_offset)
    )
    queue.start_offset = min(queue.start_offset, header.first_offset)
    queue.end_offset = max(queue.end_offset, end_offset)
    queue.batches += 1
    queue.bytes += header.payload_length
    if header.flags & RecordFlag.RELOCATED:
        queue.moved += 1
        return
    if queue.last is not None:
        _offsets_go_on(queue.last, header, segments, result)
    queue.last = header


def _offsets_go_on(
    before: Header, header: Header, segments: list[Segment], result: Verification
) -> None:
    name = f"topic {header.topic} queue {header.queue}"
    next_offset = before.first_offset + before.count
    if header.first_offset < next_offset:
        result.add_damage(
            f"{name}: offset {header.first_offset} comes again at position {header.position}, in"
            " a batch that is not marked as moved"
        )
    elif header.first_offset > next_offset and not _is_gap(
        segments, before.next_position, header.position
    ):
        result.add_damage(f"{name}: offsets {next_offset} up to {header.first_offset} are missing")


def _is_gap(segments: list[Segment], start: int, end: int) -> bool:
    """Whether a retired segment lay between two positions."""
    return _gone_between(segments, start, end) or any(
        start <= before.base + before.capacity < behind.base <= end
        for before, behind in pairwise(segments)
    )


def _gone_between(segments: list[Segment], start: int, end: int) -> bool:
    """Whether a segment that holds some of these positions was retired while it was read."""
    return any(
        isinstance(segment, ReadOnlySegment) and segment.gone
        for segment in segments
        if segment.base < end and start < segment.base + segment.capacity
    )


def batch_trouble(header: Header, record: memoryview) -> str | None:
    """Return a text about an error inside a batch whose checksum is right; None for none."""
    if header.count == 0:
        return "a batch without messages"
    if header.count == 1:
        return _lone_trouble(header, record)
    ends = frame_ends(header, record).astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    if ends[-1] != header.payload_length or lengths.min() < FRAME_HEADER_BYTES:
        return "the ends of the frames do not fit the frames"
    uniform = bool((lengths == lengths[0]).all())
    if bool(header.flags & RecordFlag.UNIFORM) != uniform:
        return "the batch is wrong about whether its frames have one size"
    octets = np.frombuffer(payload(header, record), np.uint8)
    if uniform:
        heads = octets.reshape(header.count, -1)[:, :FRAME_HEADER_BYTES]
    else:
        heads = octets[(ends - lengths)[:, None] + np.arange(FRAME_HEADER_BYTES)]
    fixed = np.ascontiguousarray(heads[:, :8]).view(">u4")
    if (fixed[:, 0] - FRAME_SIZE_EXTRA + FRAME_HEADER_BYTES != lengths).any():
        return "a frame says another size than it has"
    if (fixed[:, 1] != FRAME_TYPE_MESSAGE).any():
        return "a frame is not of the type of messages"
    try:
        ids = np.frombuffer(bytes.fromhex(heads[:, 18:].tobytes().decode("ascii")), ">u8")
    except ValueError:
        return "an id is not hexadecimal"
    if (np.diff(ids.astype(np.uint64)) != 1).any():
        return "the ids do not count up"
    return None


def _lone_trouble(header: Header, record: memoryview) -> str | None:
    """Check a single-message batch as `batch_trouble`; a log may hold millions of them."""
    size, frame_type, id = _LONE_HEAD.unpack_from(record, HEADER_BYTES)
    if header.payload_length < FRAME_HEADER_BYTES or (
        _END.unpack_from(record, header.ends_at)[0] != header.payload_length
    ):
        return "the ends of the frames do not fit the frames"
    if not header.flags & RecordFlag.UNIFORM:
        return "the batch is wrong about whether its frames have one size"
    if size - FRAME_SIZE_EXTRA + FRAME_HEADER_BYTES != header.payload_length:
        return "a frame says another size than it has"
    if frame_type != FRAME_TYPE_MESSAGE:
        return "a frame is not of the type of messages"
    return None if _ID.fullmatch(id) else "an id is not hexadecimal"


def _judge_damage(report: RecoveryReport, segments: list[Segment], result: Verification) -> None:
    for damage in report.damaged:
        if not _gone_between(segments, damage.start, damage.end):
            result.add_damage(str(damage))
    if report.cut is not None and not _gone_between(segments, report.cut.start, report.cut.end):
        if result.in_use:
            result.notes.append(f"position {report.cut.start}: the broker is writing there")
        else:
            result.notes.append(
                f"a torn tail at position {report.cut.start} ({report.cut.reason}): it was never"
                " answered OK, and a broker cuts it when it starts"
            )


# the files that point into the log


def _checkpoint(
    folder: Folder, result: Verification, needed_by: NeededBy
) -> tuple[int, list[_StoredIndex], list[checkpoint.JournalEntry]]:
    """Return the position of the checkpoint, the indexes that it covers, and its marks."""
    loaded = checkpoint.load(folder)
    if isinstance(loaded, str):
        (result.add_damage if "damaged" in loaded else result.notes.append)(
            f"{loaded}; a broker reads the whole log when it starts"
        )
        return 0, [], []
    fields = json.loads(loaded.entries[0][2])
    needed = needed_by(loaded)
    queues = {topic["id"]: topic.get("queue", 0) for topic in fields["topics"]}
    indexes: list[_StoredIndex] = []
    for topic, (first_row, stored, _) in fields["indexes"].items():
        numbers = int(topic), queues.get(int(topic), 0)
        index = _index(folder, *numbers, first_row, stored, needed.get(int(topic), _NOTHING))
        if isinstance(index, _StoredIndex):
            indexes.append(index)
        elif not (result.in_use and checkpoint.load(folder) != loaded):
            # Not there, unless a running broker has replaced both files since.
            result.add_damage(f"{index}; a broker makes it from the log when it starts")
    marks = [entry for entry in loaded.entries if entry[0] == RecordKind.MARKS]
    return int(fields["position"]), indexes, marks


def _newest_head(segments: list[Segment], position: int) -> Checkpoint | None:
    """Return the head of the newest segment, if that is newer than the checkpoint's position.

    A broker that drops the oldest messages does not wait for a checkpoint.
    """
    if not segments or segments[-1].base < position:
        return None
    segment, at = segments[-1], 0
    entries: list[checkpoint.JournalEntry] = []
    while at < segment.capacity:
        try:
            header, record = read_record(segment.view, at, segment.base + at)
        except BadRecord:
            break
        if header.kind not in _HEAD_KINDS:
            break
        entries.append((RecordKind(header.kind), header.topic, bytes(payload(header, record))))
        at += header.length
    has_snapshot = entries and json.loads(entries[0][2]).get("op") == "snapshot"
    return Checkpoint(entries) if has_snapshot else None


def _index(
    folder: Folder, topic: int, queue: int, first_row: int, stored: int, needed_by: Needed
) -> _StoredIndex | str:
    name = index_name(topic, queue, first_row)
    data = folder.read(name) if stored else b""
    if data is None:
        return f"the index {name} is missing"
    if len(data) < stored * ENTRY.itemsize:
        return f"the index {name} is cut: {len(data)} bytes hold no {stored} rows"
    return _StoredIndex(topic, queue, name, np.frombuffer(data, ENTRY, stored), needed_by)


def _index_rows(index: _StoredIndex, segments: list[Segment], result: Verification) -> None:
    """Check that the record at each row's position is that row's batch."""
    rows = index.rows
    result.index_rows += len(rows)
    ends = rows["first_offset"] + rows["count"]
    # An index that was rebuilt from the log has gaps below the floor: only the batches with pending
    # messages are there.
    floor = index.needed[0]
    begins = rows["first_offset"][1:]
    for row in np.flatnonzero((ends[:-1] != begins) & (begins > floor)).tolist():
        result.add_damage(
            f"the index {index.name}: row {row} ends at offset {ends[row]}, and the next begins"
            f" at {rows['first_offset'][row + 1]}"
        )
    held = np.zeros(len(rows), np.bool_)
    for segment in segments:
        inside = (rows["position"] >= segment.base) & (
            rows["position"] < segment.base + segment.capacity
        )
        held |= inside
        for row in np.flatnonzero(inside).tolist():
            first_offset, position, count, length, stored_at_ns, deliver_at_ns = rows[row].item()
            try:
                header = read_header(segment.view, position - segment.base, position)
                batch = (index.topic, index.queue, first_offset, count, length)
                found_at = (header.topic, header.queue, header.first_offset, header.count)
                fits = (*found_at, header.length) == batch and (
                    (header.stored_at_ns, header.deliver_at_ns) == (stored_at_ns, deliver_at_ns)
                )
                trouble = "" if fits else f"there is offset {header.first_offset} of another batch"
            except BadRecord as error:
                trouble = str(error)
            if trouble and not (isinstance(segment, ReadOnlySegment) and segment.gone):
                result.add_damage(
                    f"the index {index.name}: row {row} (offset {first_offset}) points to"
                    f" position {position}: {trouble}"
                )
    missing = rows[~held & _is_needed(rows, index.needed)]
    if len(missing):
        needed = counted(int(missing["count"].sum()), "message")
        result.add_damage(
            f"the index {index.name}: {needed} that channels need,"
            f" offsets {missing['first_offset'][0]} to"
            f" {missing['first_offset'][-1] + missing['count'][-1] - 1}, are in no segment"
        )


def _is_needed(rows: Rows, by: Needed) -> npt.NDArray[np.bool_]:
    floor, below, voids = by
    begins = rows["first_offset"]
    ends = begins + rows["count"]
    offsets = np.array([*below, np.iinfo(np.uint64).max], np.uint64)
    next_below = offsets[np.searchsorted(offsets, begins)]
    needed: npt.NDArray[np.bool_] = (ends > floor) | (next_below < ends)
    for first, end in voids:
        needed &= (begins < first) | (ends > end)
    return needed
