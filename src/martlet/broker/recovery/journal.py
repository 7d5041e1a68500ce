"""The journal: what the log says of topics, channels and cursors.

Topology entries are JSON, because they are few and people read them in a dump:

- ``{"op": "snapshot", "topics": [...], "next_id": n, ...}``: all there is, in place of all before;
  ``stored``, the stretches of the log's positions that are not let go by then, is there for audits
- ``{"op": "topic", "topic": {...}}``: a topic is made or has changed
- ``{"op": "topic_deleted", "id": n}``
- ``{"op": "channel", "topic_id": n, "channel": {...}}``: a channel is made or has changed; its
  ``start``, below which it needs nothing, counts where no cursor entry of it is known, and
  ``limit``, up to where it saw the topic, where the topic is said to be paused before
- ``{"op": "channel_replayed", "topic_id": n, "id": n, "offset": n}``: whatever became of messages
  from an offset on, the channel has them before it again
- ``{"op": "channel_deleted", "topic_id": n, "id": n, "backlog_offset": n}``: and where the topic's
  backlog begins without it
- ``{"op": "together", "ops": [...]}``: all of these at once: what concerns all queues of a topic

Each queue of a topic is told like a topic of its own, with a number of its own: ``queue`` says
which one it is, and ``of`` the number of the topic's first.  A channel has the same number at all
of them.  Whatever tells of a topic at one queue tells of all, so no start finds some of them.

A power cut may take any of the entries that are not yet durable, and leave later ones.  So each
tells all that it stands for, and what must happen together is one entry.

What entries of transactions say stands in `martlet.broker.transactions.manager`.

A cursor entry is binary, little-endian::

     0 channel u32 | 4 flags u32 (1 = full, 2 = charges) | 8 next u64 | 16 scheduled end u64
    24 ranges u32  | 28 changed u32 | 32 removed u32 | 36 number u32
    40 ranges x (first u64, end u64)      unfinished in the window
     . changed x (offset u64, due i64 ns, attempts u32, failures u32)
     .                                    failures: 31 bits, 1 more than it has; 1 bit, suspect
     . removed x offset u64
     . with charges: count u64, count x (offset u64, due i64 ns, failures u32, is over u32)
     . errors, up to the end: offset u64, lengths of first and last u32, u32, first, last

A full entry replaces what was known of the stragglers, another one is laid over it.  Those are
numbered, and a full one has the number of the last one before it: where one is missing, because the
log was damaged there, those behind it say nothing, until a full one comes.  An older state costs
messages that are delivered again; half of a newer one would cost messages. Where charges are told
(see `martlet.broker.queue.crash_charges`), they replace what was known of them. What is in flight
is written as due at once, since no flight outlives the broker.  Where failures are not told (0), as
by earlier versions, each delivery counts as one, but for the last one of what is due at once, which
was in flight.

The note of a start (EPOCH) says which positions behind the checkpoint that start has passed over
as damaged, as JSON, ``[[start, end], ...]``, or nothing: so what a power cut has left is told from
what is damaged later.

What is known of the producers' sends is told where all is told: see `martlet.broker.idempotence`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from martlet.broker.delayed.done_bitmap import DoneBitmap
from martlet.broker.queue.crash_charges import Charge, CrashCharges
from martlet.broker.queue.cursor import Cursor
from martlet.log.checkpoint_file import Checkpoint, Needed
from martlet.log.record import BadRecord, RecordKind
from martlet.log.recovery import LogDamage

_CURSOR = struct.Struct("<IIQQIIII")
_ERRORS = struct.Struct("<QII")
_FULL = 1
_CHARGED = 2
_NUMBER_MASK = 0xFFFF_FFFF
_MAX_PASSED = 1000
_CHANGED = np.dtype(
    [("offset", "<u8"), ("due_ns", "<i8"), ("attempts", "<u4"), ("told_failures", "<u4")]
)
_COUNT = struct.Struct("<Q")
_CHARGES = np.dtype([("offset", "<u8"), ("due_ns", "<i8"), ("failures", "<u4"), ("is_over", "<u4")])
_MAX_U32 = (1 << 32) - 1
_SUSPECT = 1 << 31

SEPARATOR = b"\0"
"""Stands between the JSON of an entry of transactions and packed outcomes."""
HALF = "%half"
"""The name of the topic that holds half messages."""
Description = dict[str, Any]
"""A topic or a channel as topology entries tell it."""


def pack_topology(op: str, **fields: object) -> bytes:
    """A topology entry."""
    return json.dumps({"op": op, **fields}, separators=(",", ":")).encode()


def unpack_topology(entry: bytes) -> Description:
    """A topology entry's fields, `op` among them."""
    fields = json.loads(entry)
    if not isinstance(fields, dict) or "op" not in fields:
        raise BadRecord("a topology entry without an op")
    return fields


def pack_passed(damaged: Iterable[LogDamage]) -> bytes:
    """The note of a start: what of the log it has passed over, the last places of very many."""
    stretches = [(damage.start, damage.end) for damage in damaged][-_MAX_PASSED:]
    return json.dumps(stretches, separators=(",", ":")).encode() if stretches else b""


def unpack_passed(entry: bytes) -> list[tuple[int, int]]:
    """What the note of a start tells."""
    return [(int(start), int(end)) for start, end in json.loads(entry)] if entry else []


def pack_cursor(channel: int, cursor: Cursor, scheduled_end: int, *, full: bool) -> bytes:
    """A cursor entry: all of it, or what has changed since the last.

    Deferred messages below offset `scheduled_end` are among the stragglers, or finished.
    """
    stragglers = cursor.stragglers
    offsets = stragglers.by_offset.keys() if full else stragglers.changed
    removed = [] if full else sorted(stragglers.removed)
    ranges = cursor.window.held_ranges()
    changed = [
        (
            offset,
            s.due_ns if s.owner is None else 0,
            min(s.attempts, _MAX_U32),
            min(s.failures + 1, _SUSPECT - 1) | _SUSPECT * s.is_suspect,
        )
        for offset in sorted(offsets)
        for s in (stragglers.by_offset[offset],)
    ]
    head = _CURSOR.pack(
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
        head += ranges.astype("<u8", copy=False).tobytes()
    if changed:
        head += np.array(changed, _CHANGED).tobytes()
    if removed:
        head += np.array(removed, "<u8").tobytes()
    if cursor.charges is not None:
        head += _pack_charges(cursor.charges)
    if stragglers.errors:
        head += _pack_errors(stragglers.errors, offsets)
    return head


def _pack_charges(charges: CrashCharges) -> bytes:
    rows = [
        (offset, charge.due_ns, min(charge.failures, _MAX_U32), charge.is_over)
        for offset, charge in charges.by_offset.items()
    ]
    return _COUNT.pack(len(rows)) + np.array(rows, _CHARGES).tobytes()


def _read_charges(entry: bytes, at: int) -> tuple[dict[int, Charge], int]:
    """The charges of an entry, and where they end."""
    (count,) = _COUNT.unpack_from(entry, at)
    at += _COUNT.size
    rows = np.frombuffer(entry, _CHARGES, count, at).tolist()
    charges = {offset: Charge(failures, due, bool(over)) for offset, due, failures, over in rows}
    return charges, at + _CHARGES.itemsize * count


def _pack_errors(errors: dict[int, tuple[str, str]], offsets: Collection[int]) -> bytes:
    parts: list[bytes] = []
    for offset, (first, last) in errors.items():
        if offset in offsets:
            told = first.encode("utf-8", "replace"), last.encode("utf-8", "replace")
            parts += (_ERRORS.pack(offset, len(told[0]), len(told[1])), *told)
    return b"".join(parts)


def _read_errors(entry: bytes, at: int) -> Iterator[tuple[int, tuple[str, str]]]:
    while at < len(entry):
        offset, first, last = _ERRORS.unpack_from(entry, at)
        at += _ERRORS.size
        told = entry[at : at + first + last]
        at += first + last
        yield offset, (told[:first].decode(), told[first:].decode())


@dataclass
class CursorState:
    """A cursor as the journal has told it so far."""

    next: int
    scheduled_end: int
    ranges: list[tuple[int, int]] = field(default_factory=list)
    stragglers: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """offset: (attempts, due_ns, failures)"""
    suspects: set[int] = field(default_factory=set)
    """Those whose last failure was a lost connection."""
    errors: dict[int, tuple[str, str]] = field(default_factory=dict)
    """offset: what was said when it failed first and last"""
    charges: dict[int, Charge] = field(default_factory=dict)
    number: int = 0
    """The last entry's."""
    limit: int = 0
    """Up to where the channel saw its topic when that was written."""

    def apply(self, entry: bytes) -> bool:
        """Take a cursor entry in. False, and nothing done, where one before it is missing."""
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
            self.stragglers, self.suspects = {}, set()
            self.errors, self.charges = {}, {}
        for offset, due_ns, attempts, told in np.frombuffer(entry, _CHANGED, changed, at).tolist():
            failures = told % _SUSPECT - 1 if told else max(0, attempts - (not due_ns))
            self.stragglers[offset] = (attempts, due_ns, failures)
            (self.suspects.add if told >= _SUSPECT else self.suspects.discard)(offset)
        at += _CHANGED.itemsize * changed
        for offset in np.frombuffer(entry, "<u8", removed, at).tolist():
            self.stragglers.pop(offset, None)
            self.suspects.discard(offset)
            self.errors.pop(offset, None)
        at += 8 * removed
        if flags & _CHARGED:
            self.charges, at = _read_charges(entry, at)
        self.errors.update(_read_errors(entry, at))
        return True

    def go_back(self, offset: int) -> None:
        """The channel was set back to an offset, from which on nothing is known any more.

        Of a state that is older than that, more messages come again.
        """
        self.next = min(self.next, offset)
        self.scheduled_end = min(self.scheduled_end, offset)
        self.ranges = [(first, min(end, offset)) for first, end in self.ranges if first < offset]
        self.stragglers = {o: told for o, told in self.stragglers.items() if o < offset}
        self.errors = {o: told for o, told in self.errors.items() if o < offset}
        self.charges = {o: told for o, told in self.charges.items() if o < offset}

    def restore(self, cursor: Cursor, now_ns: int) -> None:
        """Bring a fresh cursor into this state."""
        cursor.window.reset(self.next)
        cursor.journal_number = self.number
        for first, end in self.ranges:
            for offset in range(first, end):
                if offset not in self.stragglers:
                    cursor.stragglers.wait(offset, 1, 0, now_ns)
        for offset in sorted(self.stragglers):
            attempts, due_ns, failures = self.stragglers[offset]
            straggler = cursor.stragglers.wait(offset, attempts, due_ns, now_ns, failures)
            straggler.is_suspect = offset in self.suspects
        for offset, (first_error, last_error) in self.errors.items():
            if offset in self.stragglers:
                cursor.stragglers.keep_errors(offset, first_error, last_error)
        if self.charges:
            cursor.charges = CrashCharges(dict(self.charges))


def channel_of(entry: bytes) -> tuple[int, bool]:
    """Whose cursor a cursor entry tells, and whether it tells all of it."""
    channel, flags, *_ = _CURSOR.unpack_from(entry)
    return channel, bool(flags & _FULL)


def unpack_transactions(entry: bytes) -> Description:
    """What an entry tells of transactions, but for packed outcomes."""
    fields = json.loads(entry.partition(SEPARATOR)[0])
    if not isinstance(fields, dict) or "op" not in fields:
        raise BadRecord("an entry of transactions without an op")
    return fields


def _held_by(entry: bytes) -> Iterator[int]:
    """The first offsets of the batches that transactions hold."""
    for transaction in unpack_transactions(entry)["transactions"]:
        for batches in transaction["branches"].values():
            yield from (first for first, *_ in batches)


def needed_by(loaded: Checkpoint) -> dict[int, Needed]:
    """By topic number, what channels need as of a checkpoint, or of a segment's head."""
    snapshot = unpack_topology(loaded.entries[0][2])
    floors = {
        topic["id"]: topic["backlog_offset"]
        for topic in snapshot["topics"]
        if not topic["channels"]
    }
    stragglers: dict[int, set[int]] = {}
    marks: dict[int, DoneBitmap] = {}
    for kind, topic, entry in loaded.entries:
        if kind == RecordKind.CURSOR and channel_of(entry)[1]:
            cursor = CursorState(0, 0)
            cursor.apply(entry)
            floor = min([cursor.next, *(first for first, _ in cursor.ranges)])
            floors[topic] = min(floors.get(topic, floor), floor)
            stragglers.setdefault(topic, set()).update(cursor.stragglers)
        elif kind == RecordKind.MARKS:
            marks.setdefault(topic, DoneBitmap()).apply(entry)
        elif kind == RecordKind.TRANSACTION:
            half = next((t["id"] for t in snapshot["topics"] if t["name"] == HALF), 0)
            stragglers.setdefault(half, set()).update(_held_by(entry))
    for bucket in snapshot["topics"]:
        if "delayed" in bucket and bucket["id"] in marks:
            floor, below = marks[bucket["id"]].kept(bucket["end_offset"])
            floors[bucket["id"]], stragglers[bucket["id"]] = floor, set(below.tolist())
    voids = {topic["id"]: [tuple(void) for void in topic["voids"]] for topic in snapshot["topics"]}
    return {
        topic: Needed(
            floor, sorted(o for o in stragglers.get(topic, ()) if o < floor), voids.get(topic, ())
        )
        for topic, floor in floors.items()
    }
