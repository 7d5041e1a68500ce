"""The bundle: batches of several queues in one record, stored all or none.

A bundle's payload is a journal entry and the batch records behind it, each laid out as it would be
in the log by itself::

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

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from martlet.log.record import (
    HEADER_BYTES,
    HEADER_STRUCT,
    MAGIC,
    VERSION,
    BadRecord,
    Contents,
    Header,
    RecordFlag,
    RecordKind,
    align8,
    payload,
    read_header,
    record_length,
    seal,
)

_HEAD = struct.Struct("<II")
_CRC = struct.Struct("<I")
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
