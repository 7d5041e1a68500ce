"""The record: the unit of the commit log.

Everything durable is a record: a batch of messages, or an entry of the journal. Numbers are
little-endian, so that numpy reads a header in place; the frames inside a batch are big-endian,
because they are the very bytes that an NSQ consumer gets.

::

     0 magic u32      "MTLG"              40 first offset u64
     4 crc32c u32     of bytes 8..length  48 stored at i64     ns since 1970
     8 length u32     of the record       56 deliver at i64    ns since 1970, 0 = at once
    12 version u8                         64 payload length u32
    13 kind u8                            68 properties length u32
    14 flags u16                          72 reserved u64      0
    16 position u64   its own             80 payload: frames, or a journal entry
    24 epoch u32      the broker's run     . padding to 8
    28 topic u32                           . count x u32: the end of each frame
    32 queue u32                           . padding to 8
    36 count u32      messages             . properties (martlet.properties.model), padding to 8

A frame is ``size u32 | type u32 = 2 | timestamp i64 ns | attempts u16 | id 16 | body``, where size
counts what follows it.  The frames of a batch are stored with attempts = 1, as a first delivery
sends them; only a redelivery patches a copy.

The record names its own position. So a torn tail, a misplaced write and the stale bytes of a
recycled segment are all recognised alike: as no record of this position.

A bundle is a record with batches of several queues, stored all or none. Its payload is a journal
entry and the batch records behind it, each laid out as it would be in the log by itself::

     0 entry length u32 | 4 batches u32
     8 the entry, such as the commit of a transaction (martlet.broker.journal.entries)
     . padding to 8
     . a batch record, its own position and checksum in its header, flagged BUNDLED
     . the next one

The checksum in the bundle's header covers all of this, and the header is written last. So after a
crash either all batches count or none: a flagged batch counts only inside its bundle. The index
points to a bundled batch as to any other, and reads and deliveries treat it alike. When cleaning
appends a copy of one, the copy is not flagged: its bundle was durable by then.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

Bytes = bytes | bytearray | memoryview | mmap.mmap
"""Types that a record can be read from."""

MAGIC = int.from_bytes(b"MTLG", "little")
"""The first four bytes of a record."""
VERSION = 1
"""The version of the layout above; a log of another version is not read."""
HEADER_BYTES = 80
"""Bytes of a record that come before its payload, a multiple of 8 as numpy reads it in place."""
CHECKED_FROM = 8
"""The checksum covers a record from this byte on."""
FRAME_HEADER_BYTES = 34
"""Bytes of a frame that come before its body."""
FRAME_SIZE_EXTRA = 30
"""Bytes that a frame's size field counts beside its body: all but the size field itself."""
FRAME_TYPE_MESSAGE = 2
FRAME = struct.Struct(">IIqH16s")
"""The header of a frame."""
ID_MASK = (1 << 64) - 1

HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("crc32c", "<u4"),
        ("length", "<u4"),
        ("version", "u1"),
        ("kind", "u1"),
        ("flags", "<u2"),
        ("position", "<u8"),
        ("epoch", "<u4"),
        ("topic", "<u4"),
        ("queue", "<u4"),
        ("count", "<u4"),
        ("first_offset", "<u8"),
        ("stored_at_ns", "<i8"),
        ("deliver_at_ns", "<i8"),
        ("payload_length", "<u4"),
        ("properties_length", "<u4"),
        ("reserved", "<u8"),
    ]
)
HEADER_STRUCT = struct.Struct("<IIIBBHQIIIIQqqIIQ")
_CRC = struct.Struct("<I")
_OWN = struct.Struct("<I12xQI36xI")
"""Of a header: magic, position, epoch and payload length."""
assert HEADER.itemsize == HEADER_BYTES == HEADER_STRUCT.size


class RecordKind(IntEnum):
    """The content of a record."""

    BATCH = 1
    TOPOLOGY = 2
    CURSOR = 3
    SEGMENT_END = 4
    EPOCH = 5
    PRODUCERS = 6
    TRANSACTION = 7
    """An entry of the journal about transactions (see `martlet.broker.journal.entries`)."""
    BUNDLE = 8
    """Batches stored all or none (see `martlet.log.record`)."""
    MARKS = 9
    """The done messages of a bucket (see `martlet.broker.delayed.done_bitmap`)."""
    TRACE = 10
    """The history of messages, for the search of traces; recovery ignores it."""
    ACCOUNTS = 11
    """Counters of channels (`martlet.broker.tracing.counters`); recovery ignores them."""
    RETIRED = 12
    """Segments that nothing needs: every replica removes them once this entry is confirmed."""


class RecordFlag(IntFlag):
    """The flags of a record."""

    RELOCATED = 1
    """A batch copied by cleaning: it replaces the record of the same first offset."""
    UNIFORM = 2
    """All frames of the batch have one size."""
    BUNDLED = 8
    """The batch is part of a bundle, and is valid only if the bundle verifies."""
    FORWARDED = 4
    """Delayed messages now due, with their former ids (see `martlet.broker.delayed.bucket`)."""


class BadRecord(Exception):
    """The bytes at a position are not a record of that position; the text says why."""


class Header(NamedTuple):
    """A record's header, field by field."""

    magic: int
    crc32c: int
    length: int
    version: int
    kind: int
    flags: int
    position: int
    epoch: int
    topic: int
    queue: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    first_offset: int
    stored_at_ns: int
    deliver_at_ns: int
    payload_length: int
    properties_length: int
    reserved: int

    @property
    def next_position(self) -> int:
        """The position just behind this record."""
        return self.position + self.length

    @property
    def ends_at(self) -> int:
        """The offset of the frame ends from the record's start, in bytes."""
        return align8(HEADER_BYTES + self.payload_length)

    @property
    def properties_at(self) -> int:
        """The offset of the properties from the record's start, in bytes."""
        return align8(self.ends_at + 4 * self.count)


def align8(length_bytes: int) -> int:
    """Round up to a multiple of 8."""
    return (length_bytes + 7) & ~7


def record_length(payload_length: int, count: int, properties_length: int = 0) -> int:
    """Return the length of a record in bytes."""
    ends_at = align8(HEADER_BYTES + payload_length)
    return align8(align8(ends_at + 4 * count) + properties_length)


class Contents(NamedTuple):
    """The fields of a header that describe the record's content, in the order of the header."""

    topic: int
    queue: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    """Of messages; 0 for a journal entry."""
    first_offset: int
    stored_at_ns: int
    deliver_at_ns: int
    """0 for at once."""
    payload_length: int
    properties_length: int = 0


def seal(
    record: memoryview, kind: int, flags: int, position: int, epoch: int, contents: Contents
) -> None:
    """Write the header, checksum and length included, over the first bytes of a laid out record."""
    length = len(record)
    assert length % 8 == 0 and length >= HEADER_BYTES + contents.payload_length
    assert position % 8 == 0
    HEADER_STRUCT.pack_into(
        record, 0, MAGIC, 0, length, VERSION, kind, flags, position, epoch, *contents, 0
    )
    _CRC.pack_into(record, 4, crc32c(record[CHECKED_FROM:]))


def seal_again(record: bytearray, *, position: int, epoch: int, flags: int) -> None:
    """Give a copied record another position, epoch and flags, as cleaning does."""
    header = Header._make(HEADER_STRUCT.unpack_from(record))
    assert header.length == len(record)
    assert position % 8 == 0
    fields = header._replace(position=position, epoch=epoch, flags=flags)
    HEADER_STRUCT.pack_into(record, 0, *fields)
    _CRC.pack_into(record, 4, crc32c(memoryview(record)[CHECKED_FROM:]))


def journal_record(
    kind: RecordKind, payload: bytes, *, position: int, epoch: int, topic: int, stored_at_ns: int
) -> bytearray:
    """Lay out and seal a record that holds a journal entry."""
    record = bytearray(record_length(len(payload), 0))
    record[HEADER_BYTES : HEADER_BYTES + len(payload)] = payload
    contents = Contents(topic, 0, 0, 0, stored_at_ns, 0, len(payload))
    seal(memoryview(record), kind, 0, position, epoch, contents)
    return record


def read_header(data: Bytes, at: int, position: int) -> Header:
    """Read the header at byte `at` of `data`, which must be the record of `position`.

    Raises:
        BadRecord: too few bytes, a wrong magic, version or position, or impossible lengths.
    """
    view = memoryview(data)
    if len(view) - at < HEADER_BYTES:
        raise BadRecord(f"position {position}: only {len(view) - at} bytes left")
    header = Header._make(HEADER_STRUCT.unpack_from(view, at))
    if header.magic != MAGIC:
        raise BadRecord(f"position {position}: no record (magic {header.magic:#010x})")
    if header.version != VERSION:
        raise BadRecord(f"position {position}: version {header.version}, this is {VERSION}")
    if header.position != position:
        raise BadRecord(f"position {position}: a record of position {header.position}")
    expected = record_length(header.payload_length, header.count, header.properties_length)
    if header.length != expected:
        raise BadRecord(f"position {position}: length {header.length}, parts need {expected}")
    return header


def payload_length(record: memoryview, position: int, epoch: int) -> int | None:
    """Return the payload length of a record that this run wrote at a position; None for any other,
    which has to be verified in full. Cheaper than `read_header`, for the path of each delivery.
    """
    magic, own_position, own_epoch, length = _OWN.unpack_from(record)
    fits = magic == MAGIC and own_position == position and own_epoch == epoch
    return length if fits else None


def read_record(data: Bytes, at: int, position: int) -> tuple[Header, memoryview]:
    """Read and verify the record at byte `at` of `data`: its header, and a view of all its bytes.

    Raises:
        BadRecord: as `read_header`, or a truncated record, or a wrong checksum.
    """
    header = read_header(data, at, position)
    record = memoryview(data)[at : at + header.length]
    if len(record) < header.length:
        raise BadRecord(f"position {position}: cut at {len(record)} of {header.length} bytes")
    check_checksum(header, crc32c(record[CHECKED_FROM:]))
    return header, record


def check_checksum(header: Header, checksum: int) -> None:
    """Check the CRC-32C of a record's bytes from `CHECKED_FROM` on. Raises BadRecord."""
    if checksum != header.crc32c:
        raise BadRecord(f"position {header.position}: the checksum does not fit")


def payload(header: Header, record: memoryview) -> memoryview:
    """Return the frames of a batch, or the entry of a journal record."""
    return record[HEADER_BYTES : HEADER_BYTES + header.payload_length]


def properties(header: Header, record: memoryview) -> memoryview:
    """Return the properties block of a batch (see `martlet.properties.model`); empty for none."""
    at = header.properties_at
    return record[at : at + header.properties_length]


def properties_in(record: memoryview) -> memoryview:
    """Return a record's properties block, padded to 8 bytes; empty for none or a damaged header."""
    try:
        header = read_header(record, 0, int.from_bytes(record[16:24], "little"))
    except BadRecord:
        return record[:0]
    if not header.properties_length or header.length > len(record):
        return record[:0]
    at = header.properties_at
    return record[at : at + align8(header.properties_length)]


_PROPERTIES = struct.Struct("<36xI24xII")
"""Of a header: count, payload length and properties length."""


def properties_of(record: memoryview) -> memoryview | None:
    """Return the properties block of a verified batch record; None for none."""
    count, payload_bytes, length = _PROPERTIES.unpack_from(record)
    if not length:
        return None
    at = align8(align8(HEADER_BYTES + payload_bytes) + 4 * count)
    return record[at : at + length]


def frame_ends(header: Header, record: memoryview) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return where each frame ends, from the first one's start: ``uint32[count]``, no copy."""
    return np.frombuffer(record, "<u4", header.count, header.ends_at)


# the record of a single message

MAX_LONE_BODY_BYTES = 1 << 15
"""Longer bodies do not use the buffer: they gain little by it."""
_BODY_AT = HEADER_BYTES + FRAME_HEADER_BYTES
_PADDING = bytes(7)
_END = struct.Struct("<II")
_BATCH = int(RecordKind.BATCH)
_UNIFORM = int(RecordFlag.UNIFORM)


def lone_length(size: int) -> int:
    """Return the length of the record of one message with a body of `size` bytes."""
    return ((_BODY_AT + size + 7) & ~7) + 8


class Lone:
    """Builds records of one message in a reused buffer, in one call: a batch's work, done once for
    many messages, costs more for one. The bytes are those of a batch of one::

        0 record header 80 | frame header 34 | body | padding to 8 | end of the frame u32 | 0 u32
    """

    __slots__ = ("_buffer", "_view")

    def __init__(self) -> None:
        self._buffer = bytearray(lone_length(MAX_LONE_BODY_BYTES))
        self._view = memoryview(self._buffer)

    def record(
        self,
        body: bytes | memoryview,
        id: int,
        position: int,
        epoch: int,
        topic: int,
        queue: int,
        offset: int,
        stored_at_ns: int,
    ) -> memoryview:
        """Return the record of a message, for a position; valid until the next call."""
        size = len(body)
        buffer, view = self._buffer, self._view
        payload_end = _BODY_AT + size
        ends_at = (payload_end + 7) & ~7
        length = ends_at + 8
        payload_length = payload_end - HEADER_BYTES
        HEADER_STRUCT.pack_into(
            buffer, 0, MAGIC, 0, length, VERSION, _BATCH, _UNIFORM, position, epoch, topic, queue,
            1, offset, stored_at_ns, 0, payload_length, 0, 0,
        )  # fmt: skip
        FRAME.pack_into(
            buffer, HEADER_BYTES, FRAME_SIZE_EXTRA + size, FRAME_TYPE_MESSAGE, stored_at_ns, 1,
            b"%016x" % (id & ID_MASK),
        )  # fmt: skip
        view[_BODY_AT:payload_end] = body
        if payload_end != ends_at:
            view[payload_end:ends_at] = _PADDING[: ends_at - payload_end]
        _END.pack_into(buffer, ends_at, payload_length, 0)
        _CRC.pack_into(buffer, 4, crc32c(view[8:length]))
        return view[:length]


_HEAD = struct.Struct("<II")
_CRC_AT = 4
"""The offset in a header of the checksum of everything behind it."""


class BatchSlot(NamedTuple):
    """A batch laid out for a bundle; its header is not sealed yet."""

    record: memoryview
    flags: int
    """The record's flags without BUNDLED."""
    contents: Contents


def _head(entry: bytes, count: int) -> bytes:
    """Pack what precedes the batches in a bundle's payload."""
    length = _HEAD.size + len(entry)
    return _HEAD.pack(len(entry), count) + entry + bytes(align8(length) - length)


def bundle_length(entry: bytes, lengths: Sequence[int]) -> int:
    """Return the length of a bundle record with batches of these lengths."""
    return record_length(align8(_HEAD.size + len(entry)) + sum(lengths), 0)


def begin_bundle(
    entry: bytes, lengths: Sequence[int], position: int, epoch: int, stored_at_ns: int
) -> bytearray:
    """Lay out a bundle up to its first batch, without the checksum."""
    head = _head(entry, len(lengths))
    top = bytearray(HEADER_BYTES) + head
    length = bundle_length(entry, lengths)
    fields = (position, epoch, 0, 0, 0, 0, stored_at_ns, 0, len(head) + sum(lengths), 0, 0)
    HEADER_STRUCT.pack_into(top, 0, MAGIC, 0, length, VERSION, RecordKind.BUNDLE, 0, *fields)
    return top


def write_batches(
    top: bytearray,
    slots: Iterable[BatchSlot],
    position: int,
    epoch: int,
    write: Callable[[memoryview, int], None],
) -> list[int]:
    """Seal and write the batches of a bundle, then put the checksum into its header: `top`, from
    `begin_bundle`, which the caller writes after this call. Returns the position of each batch.

    `write` writes bytes at a position.
    """
    at = position + len(top)
    checksum = crc32c(top[_CRC_AT + _CRC.size :])
    positions = []
    for record, flags, contents in slots:
        seal(record, RecordKind.BATCH, flags | RecordFlag.BUNDLED, at, epoch, contents)
        checksum = crc32c(record, checksum)
        write(record, at)
        positions.append(at)
        at += len(record)
    assert at == position + read_header(top, 0, position).length
    _CRC.pack_into(top, _CRC_AT, checksum)
    return positions


def entry_of(header: Header, record: memoryview) -> bytes:
    """Return the journal entry of a bundle."""
    data = payload(header, record)
    length, _ = _HEAD.unpack_from(data)
    return bytes(data[_HEAD.size : _HEAD.size + length])


def batches_of(header: Header, record: memoryview) -> Iterator[tuple[Header, memoryview]]:
    """Yield the batches of a verified bundle, in order. Raises BadRecord."""
    length, count = _HEAD.unpack_from(payload(header, record))
    at = HEADER_BYTES + align8(_HEAD.size + length)
    for _ in range(count):
        inner = read_header(record, at, header.position + at)
        if inner.kind != RecordKind.BATCH or not inner.flags & RecordFlag.BUNDLED:
            raise BadRecord(f"position {inner.position}: no batch of the bundle before it")
        yield inner, record[at : at + inner.length]
        at += inner.length
