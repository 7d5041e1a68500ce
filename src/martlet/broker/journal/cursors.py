"""Cursors in the journal: the entry of a channel at one queue, and writing those that have moved.

The entry is binary, little-endian, since a busy broker writes many::

     0 channel u32 | 4 flags u32 (1 = full, 2 = charges) | 8 next u64 | 16 scheduled end u64
    24 ranges u32  | 28 changed u32 | 32 removed u32 | 36 number u32
    40 ranges x (first u64, end u64)      in flight: unfinished, and below `next`
     . changed x (offset u64, due i64 ns, attempts u32, failures u32)
     .                                    failures: 31 bits, count + 1; highest bit: suspect
     . removed x offset u64
     . with charges: count u64, count x (offset u64, due i64 ns, failures u32, is over u32)
     . errors, up to the end: offset u64 | first length u32 | last length u32 | first | last

Changed and removed are pending messages: messages below `next` that wait for redelivery. A full
entry replaces the pending messages known before; any other updates them. Partial entries are
numbered, and a full one has the number of the last partial one: if one is missing because the log
was damaged, the following ones are ignored up to the next full one. An older state causes
redeliveries; an incomplete newer one would lose messages.

Charges (see `martlet.broker.retry`), if any, replace those known before. A message in
flight is written as due at once, since it is redelivered after a restart. Where failures are 0, as
earlier versions wrote them, each delivery counts as one failure, except the last delivery of a
message due at once, which was in flight.

With a moved cursor go the trace of the channel's messages, if they are traced, and the channel's
counters. An entry is small, so one write contains many.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from martlet.broker.errors import WritesRefused
from martlet.broker.retry import Charge, CrashCharges
from martlet.broker.tracing.counters import write_accounts
from martlet.log.commit_log import CommitLog
from martlet.log.record import RecordKind, record_length

if TYPE_CHECKING:
    from martlet.broker.queue.channel_state import ChannelState
    from martlet.broker.queue.cursor import Cursor

_CURSOR = struct.Struct("<IIQQIIII")
_ERRORS = struct.Struct("<QII")
_FULL = 1
_CHARGED = 2
_NUMBER_MASK = 0xFFFF_FFFF
_CHANGED = np.dtype(
    [("offset", "<u8"), ("due_ns", "<i8"), ("attempts", "<u4"), ("failures", "<u4")]
)
_COUNT = struct.Struct("<Q")
_CHARGES = np.dtype([("offset", "<u8"), ("due_ns", "<i8"), ("failures", "<u4"), ("is_over", "<u4")])
_MAX_U32 = (1 << 32) - 1
_SUSPECT = 1 << 31
_AT_ONCE = 32
"""The maximum number of cursors in one write: the loop is blocked only for that long."""
_MAX_BYTES = 1 << 14
"""The maximum size of one write, unless a single cursor is larger."""


def encode_cursor(channel: int, cursor: Cursor, scheduled_end: int, *, full: bool) -> bytes:
    """Encode a cursor: all of it, or its changes since the last entry. Deferred messages below
    offset `scheduled_end` are pending or finished.
    """
    pending = cursor.pending
    offsets = pending.by_offset.keys() if full else pending.changed
    removed = [] if full else sorted(pending.removed)
    ranges = cursor.window.held_ranges()
    changed = [
        (
            offset,
            0 if s.owner is not None else s.deliver_at_ns or s.due_ns + pending.stored_ahead_ns,
            min(s.attempts, _MAX_U32),
            min(s.failures + 1, _SUSPECT - 1) | _SUSPECT * s.is_suspect,
        )
        for offset in sorted(offsets)
        for s in (pending.by_offset[offset],)
    ]
    entry = _CURSOR.pack(
        channel,
        (_FULL if full else 0) | (_CHARGED if cursor.charges is not None else 0),
        cursor.next,
        scheduled_end,
        len(ranges),
        len(changed),
        len(removed),
        (cursor.journal_number if full else cursor.journal_number + 1) & _NUMBER_MASK,
    )
    if len(ranges):
        entry += ranges.astype("<u8", copy=False).tobytes()
    if changed:
        entry += np.array(changed, _CHANGED).tobytes()
    if removed:
        entry += np.array(removed, "<u8").tobytes()
    if cursor.charges is not None:
        entry += _encode_charges(cursor.charges, pending.stored_ahead_ns)
    if pending.errors:
        entry += _encode_errors(pending.errors, offsets)
    return entry


def _encode_charges(charges: CrashCharges, ahead_ns: int) -> bytes:
    rows = [
        (offset, charge.due_ns + ahead_ns, min(charge.failures, _MAX_U32), charge.is_over)
        for offset, charge in charges.by_offset.items()
    ]
    return _COUNT.pack(len(rows)) + np.array(rows, _CHARGES).tobytes()


def _decode_charges(entry: bytes, at: int) -> tuple[dict[int, Charge], int]:
    """Return the charges of an entry, and their end."""
    (count,) = _COUNT.unpack_from(entry, at)
    at += _COUNT.size
    rows = np.frombuffer(entry, _CHARGES, count, at).tolist()
    charges = {offset: Charge(failures, due, bool(over)) for offset, due, failures, over in rows}
    return charges, at + _CHARGES.itemsize * count


def _encode_errors(errors: Mapping[int, tuple[str, str]], offsets: Collection[int]) -> bytes:
    pieces: list[bytes] = []
    for offset, (first, last) in errors.items():
        if offset in offsets:
            texts = first.encode("utf-8", "replace"), last.encode("utf-8", "replace")
            pieces += (_ERRORS.pack(offset, len(texts[0]), len(texts[1])), *texts)
    return b"".join(pieces)


def _decode_errors(entry: bytes, at: int) -> Iterator[tuple[int, tuple[str, str]]]:
    while at < len(entry):
        offset, first, last = _ERRORS.unpack_from(entry, at)
        at += _ERRORS.size
        texts = entry[at : at + first + last]
        at += first + last
        yield offset, (texts[:first].decode(), texts[first:].decode())


def channel_of(entry: bytes) -> tuple[int, bool]:
    """Return the number of a cursor entry's channel, and whether the entry is a full one."""
    channel, flags, *_ = _CURSOR.unpack_from(entry)
    return channel, bool(flags & _FULL)


def number_of(entry: bytes) -> int:
    """Return the number of a cursor entry."""
    number: int = _CURSOR.unpack_from(entry)[-1]
    return number


@dataclass(slots=True)
class CursorState:
    """A cursor as of an entry."""

    next: int
    """The first offset that was not delivered yet."""
    scheduled_end: int
    """Deferred messages below this offset are pending or finished."""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """The offsets in flight, as (first, end)."""
    pending: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """(attempts, due_ns, failures) by offset."""
    suspects: set[int] = field(default_factory=set)
    """The pending ones whose last failure was a lost connection."""
    errors: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By offset, the texts of the first and the last failure."""
    charges: dict[int, Charge] = field(default_factory=dict)
    number: int = 0
    limit: int = 0
    """The end of the topic as the channel saw it at that time."""

    def apply(self, entry: bytes) -> bool:
        """Apply a cursor entry; False, and nothing is changed, where an earlier one is missing."""
        _, flags, next, scheduled_end, ranges, changed, removed, number = _CURSOR.unpack_from(entry)
        if not flags & _FULL and number != (self.number + 1) & _NUMBER_MASK:
            return False
        self.next, self.scheduled_end, self.number = next, scheduled_end, number
        self.limit = scheduled_end
        at = _CURSOR.size
        rows = np.frombuffer(entry, "<u8", 2 * ranges, at).reshape(-1, 2)
        self.ranges = [(first, end) for first, end in rows.tolist()]
        at += 16 * ranges
        if flags & _FULL:
            self.pending, self.suspects = {}, set()
            self.errors, self.charges = {}, {}
        for offset, due_ns, attempts, packed in np.frombuffer(
            entry, _CHANGED, changed, at
        ).tolist():
            failures = packed % _SUSPECT - 1 if packed else max(0, attempts - (not due_ns))
            self.pending[offset] = (attempts, due_ns, failures)
            (self.suspects.add if packed >= _SUSPECT else self.suspects.discard)(offset)
        at += _CHANGED.itemsize * changed
        for offset in np.frombuffer(entry, "<u8", removed, at).tolist():
            self.pending.pop(offset, None)
            self.suspects.discard(offset)
            self.errors.pop(offset, None)
        at += 8 * removed
        if flags & _CHARGED:
            self.charges, at = _decode_charges(entry, at)
        self.errors.update(_decode_errors(entry, at))
        return True

    def go_back(self, offset: int) -> None:
        """Set it back to an offset, and forget everything from there on. If the state is older than
        the entry that says so, more messages are redelivered.
        """
        self.next = min(self.next, offset)
        self.scheduled_end = min(self.scheduled_end, offset)
        self.ranges = [(first, min(end, offset)) for first, end in self.ranges if first < offset]
        self.pending = {o: row for o, row in self.pending.items() if o < offset}
        self.errors = {o: row for o, row in self.errors.items() if o < offset}
        self.charges = {o: row for o, row in self.charges.items() if o < offset}


class MovedCursors:
    """The channels whose cursors have to be written, the longest unwritten first.

    Args:
        clock: returns the time of records, as `BrokerCore.stored_at_ns`.
        topics: the numbers of the existing topics, at all their queues.
    """

    def __init__(self, log: CommitLog, clock: Callable[[], int], topics: Container[int]) -> None:
        self._log = log
        self._clock = clock
        self._topics = topics
        self.channels: deque[ChannelState] = deque()

    def write_some(self) -> Iterator[None]:
        """Write the cursors that have moved so far, some at a time. Raises WritesRefused."""
        left = len(self.channels)
        while left > 0 and self.channels:
            left -= self.write(min(left, _AT_ONCE))
            yield

    def write_first(self, channel: ChannelState) -> None:
        """Write the cursor of a channel now, if it has moved. Raises WritesRefused."""
        if channel.dirty:
            self.channels.remove(channel)
            self.channels.appendleft(channel)
            self.write(1)

    def write(self, max_count: int) -> int:
        """Write some cursors in one write. Returns how many channels are done with. Raises
        WritesRefused: none was written, and all stay for the next call.
        """
        max_bytes = min(_MAX_BYTES, self._log.segment_bytes // 4)
        channels: list[ChannelState] = []
        moved: list[ChannelState] = []
        entries: list[tuple[int, bytes]] = []
        entry_bytes = 0
        for channel in islice(self.channels, max_count):
            if not channel.closed:
                limit = channel.source.limit
                entry = encode_cursor(channel.id, channel.cursor, limit, full=False)
                entry_bytes += record_length(len(entry), 0)
                if entries and entry_bytes > max_bytes:
                    break
                entries.append((channel.topic_id, entry))
                moved.append(channel)
            channels.append(channel)
        now_ns = self._clock()
        if entries:
            self._log.append_entries(RecordKind.CURSOR, entries, now_ns)
        for channel in moved:
            cursor = channel.cursor
            cursor.journal_number += 1
            cursor.pending.changed.clear()
            cursor.pending.removed.clear()
        for channel in channels:
            self.channels.popleft()
            channel.dirty = False
            self._write_trace(channel, now_ns)
        write_accounts(self._log, now_ns, moved)
        return len(channels)

    def _write_trace(self, channel: ChannelState, now_ns: int) -> None:
        """Write the trace of a channel's messages, if there is space."""
        topic_id = channel.topic_id
        if topic_id not in self._topics or not channel.recorder:
            return
        with suppress(WritesRefused):
            for piece in channel.recorder.take(channel.id, channel.name):
                self._log.append_journal(
                    RecordKind.TRACE, piece, topic=topic_id, stored_at_ns=now_ns, needed=False
                )
