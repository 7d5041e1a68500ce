"""The bundle: batches of several queues in one record, there together or not at all.

A bundle's payload is an entry of the journal, and behind it records, each a batch as it would stand
in the log by itself::

     0 entry length u32 | 4 batches u32
     8 the entry, such as the commit of a transaction (martlet.broker.journal.entries)
     . padding to 8
     . a batch record, its own position and checksum in its header, flagged BUNDLED
     . the next one

The checksum in the bundle's header covers all of it, and the header is written last.  So whatever a
crash leaves, either all batches count or none: a batch that is flagged counts only inside its
bundle.  An index points to the batch as to any other, and it is read, and delivered, as any other.
When cleaning appends one again, by itself, the flag goes: its bundle was durable by then.
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
"""Where a header has the checksum of all that is behind it."""


class BatchSlot(NamedTuple):
    """A batch laid out to stand in a bundle, its header still to be sealed.

    Attributes:
        record: all its bytes.
        flags: of the batch by itself.
        contents: of its header.
    """

    record: memoryview
    flags: int
    contents: Contents


def _head(entry: bytes, count: int) -> bytes:
    """The bytes of a bundle's payload before its batches."""
    length = _HEAD.size + len(entry)
    return _HEAD.pack(len(entry), count) + entry + bytes(align8(length) - length)


def bundle_length(entry: bytes, lengths: Sequence[int]) -> int:
    """How long a bundle of batches of these lengths is."""
    return record_length(align8(_HEAD.size + len(entry)) + sum(lengths), 0)


def begin_bundle(
    entry: bytes, lengths: Sequence[int], position: int, epoch: int, stored_at_ns: int
) -> bytearray:
    """A bundle up to its first batch. Its checksum is still to be written."""
    head = _head(entry, len(lengths))
    top = bytearray(HEADER_BYTES) + head
    length = bundle_length(entry, lengths)
    fields = (position, epoch, 0, 0, 0, 0, stored_at_ns, 0, len(head) + sum(lengths), 0, 0)
    HEADER_STRUCT.pack_into(top, 0, MAGIC, 0, length, VERSION, RecordKind.BUNDLE, 0, *fields)
    return top


def write_batches(
    top: bytearray,
    parts: Iterable[BatchSlot],
    position: int,
    epoch: int,
    write: Callable[[memoryview, int], None],
) -> list[int]:
    """Seal and write the batches of a bundle, and then its checksum into what it begins with.

    Args:
        top: from `begin_bundle`; it is left to the caller to write it.
        parts: the batches.
        position: of the bundle.
        epoch: of this run.
        write: writes some bytes at a position.

    Returns the position of each batch.
    """
    at = position + len(top)
    checksum = crc32c(top[_CRC_AT + _CRC.size :])
    positions = []
    for record, flags, contents in parts:
        seal(record, RecordKind.BATCH, flags | RecordFlag.BUNDLED, at, epoch, contents)
        checksum = crc32c(record, checksum)
        write(record, at)
        positions.append(at)
        at += len(record)
    assert at == position + read_header(top, 0, position).length
    _CRC.pack_into(top, _CRC_AT, checksum)
    return positions


def entry_of(header: Header, record: memoryview) -> bytes:
    """The entry of a bundle."""
    data = payload(header, record)
    length, _ = _HEAD.unpack_from(data)
    return bytes(data[_HEAD.size : _HEAD.size + length])


def batches_of(header: Header, record: memoryview) -> Iterator[tuple[Header, memoryview]]:
    """The batches of a bundle whose checksum fits, in order. Raises BadRecord."""
    length, count = _HEAD.unpack_from(payload(header, record))
    at = HEADER_BYTES + align8(_HEAD.size + length)
    for _ in range(count):
        inner = read_header(record, at, header.position + at)
        if inner.kind != RecordKind.BATCH or not inner.flags & RecordFlag.BUNDLED:
            raise BadRecord(f"position {inner.position}: no batch of the bundle before it")
        yield inner, record[at : at + inner.length]
        at += inner.length
