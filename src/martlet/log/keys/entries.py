"""The keys in a segment, read in pieces and without a step for each message.

Of each message that has any, the entries are its keys, its order key and the broker's notes, which
hold the ids that it had before it was moved::

    hash u32     of the key's bytes
    word u32     of the batch: its position from the segment's base, in words of 8 bytes
    number u32   of the message in the batch

A piece of the file is searched for records by their magic and position, which gives all headers at
once; their lengths show which of them follow one another. Of the batches with properties, all
entries of `martlet.properties.block` are walked side by side: the first field of each, the second
of those that have one, and so on.

No checksum is verified here: the user of an entry verifies the record that it leads to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from martlet.log.record import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    BadRecord,
    Header,
    RecordKind,
    batches_of,
    read_header,
)
from martlet.properties.block import BLOCK_HEAD_BYTES, BLOCK_ROW_BYTES
from martlet.properties.model import Field

ENTRY = np.dtype([("hash", "<u4"), ("word", "<u4"), ("number", "<u4")])
"""A key of a message."""
Entries = npt.NDArray[np.void]
Headers = npt.NDArray[np.void]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]

PIECE_BYTES = 4 << 20
"""Bytes of a segment that are read at once, unless a record is longer."""
_WORD_BYTES = 8
_PADDING = bytes(HEADER_BYTES)
"""Behind a piece, so that a header or a word can be read from each of its bytes."""
_FIELD_BYTES = 4
_KINDS = np.zeros(256, bool)
_KINDS[[Field.KEY, Field.ORDER_KEY, Field.SYSTEM]] = True
"""The kinds of fields that a message is found by."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MASKS = (np.uint64(1) << np.arange(0, 64, 8, dtype=np.uint64)) - np.uint64(1)
"""Of the first n bytes of a word, for n from 0 to 7."""


class SegmentFile:
    """A segment's file, read by calls that let other threads run meanwhile. Raises OSError, as
    `read` does.
    """

    def __init__(self, path: Path) -> None:
        self.base = int(path.stem)
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.capacity = os.fstat(self._fd).st_size

    @property
    def changed_at_ns(self) -> int:
        """When the file was written last."""
        return os.fstat(self._fd).st_mtime_ns

    @property
    def is_there(self) -> bool:
        """Whether the file is still that of this segment."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes from a position on, up to the end of the file."""
        return os.pread(self._fd, length, position - self.base)

    def header(self, position: int) -> Header:
        """Return the header of the record at a position. Raises BadRecord."""
        return read_header(self.read(position, HEADER_BYTES), 0, position)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class SegmentScan:
    """A read of the keys of a segment, from its base up to the position `stop`."""

    file: SegmentFile
    stop: int
    bits: int = 32
    """Of a hash; fewer than 32 force collisions."""
    key: bytes = b""
    """Pieces in which these bytes do not occur are left out."""
    last: npt.NDArray[np.void] | None = None
    """The header of the last record, but for a SEGMENT_END; None before the first."""
    is_damaged: bool = False
    first_ns: int = sys.maxsize
    """When a message with a key was stored, at the earliest."""
    last_ns: int = 0

    def forget_times(self) -> None:
        """Reset `first_ns` and `last_ns`."""
        self.first_ns, self.last_ns = sys.maxsize, 0

    def pieces(self) -> Iterator[Entries]:
        """Yield the entries of each piece, by position and number. Raises OSError."""
        position, size_bytes = self.file.base, PIECE_BYTES
        while position + HEADER_BYTES <= self.stop:
            data = self.file.read(position, min(size_bytes, self.stop - position))
            if len(data) < HEADER_BYTES:
                return
            piece = _Piece(data, position)
            tops = piece.chain()
            if len(tops):
                ends = tops[-1]["kind"] == RecordKind.SEGMENT_END
                real = tops[:-1] if ends else tops
                if len(real):
                    self.last = real[-1]
                yield self._entries(piece, real)
                if ends:
                    return
                position = int(tops[-1]["position"]) + int(tops[-1]["length"])
                size_bytes = PIECE_BYTES
                continue
            longer = piece.length_of_first()
            if len(data) < longer <= self.stop - position:
                size_bytes = longer
                continue
            self.is_damaged = True
            position = piece.second() or position + max(8, len(data) - HEADER_BYTES) & ~7
            size_bytes = PIECE_BYTES

    def _entries(self, piece: _Piece, tops: Headers) -> Entries:
        if not piece.has(self.key):
            return np.empty(0, ENTRY)
        batches = tops[(tops["kind"] == RecordKind.BATCH) & (tops["properties_length"] > 0)]
        bundles = tops[tops["kind"] == RecordKind.BUNDLE]
        if len(bundles):
            inner = [batches]
            for bundle in bundles:
                try:
                    inner.append(piece.inside(bundle))
                except BadRecord:
                    self.is_damaged = True
            batches = np.concatenate(inner)
            batches = batches[np.argsort(batches["position"], kind="stable")]
        if not len(batches):
            return np.empty(0, ENTRY)
        entries = piece.entries(batches, self.file.base, self.bits)
        if len(entries):
            times = batches["stored_at_ns"]
            self.first_ns = min(self.first_ns, int(times.min()))
            self.last_ns = max(self.last_ns, int(times.max()))
        return entries


class _Piece:
    """Some bytes of a segment, from the beginning of a record on."""

    def __init__(self, data: bytes, position: int) -> None:
        self._size = len(data)
        self._data = data + _PADDING
        self._position = position
        words = np.frombuffer(self._data, "<u8", self._size // _WORD_BYTES)
        halves = np.frombuffer(self._data, "<u4", self._size // _WORD_BYTES * 2)
        likely = np.flatnonzero(halves[: 2 * (len(words) - 9) : 2] == MAGIC)
        likely = likely[words[likely + 2] == (likely * _WORD_BYTES + position).astype(np.uint64)]
        headers: Headers = np.ndarray((len(words),), HEADER, self._data, 0, (_WORD_BYTES,))
        headers = headers[likely]
        expected = _align8(HEADER_BYTES + headers["payload_length"].astype(np.int64))
        expected = _align8(expected + 4 * headers["count"].astype(np.int64))
        expected = _align8(expected + headers["properties_length"])
        self._found = headers[headers["length"] == expected]

    def _starts(self) -> Int64s:
        starts: Int64s = (self._found["position"] - np.uint64(self._position)).astype(np.int64)
        return starts

    def chain(self) -> Headers:
        """Return the headers of the complete records that follow each other from the first byte."""
        starts = self._starts()
        ends = starts + self._found["length"]
        is_top = np.ones(len(starts), bool)
        is_top[1:] = starts[1:] >= np.maximum.accumulate(ends)[:-1]
        tops = np.flatnonzero(is_top)
        if not len(tops) or starts[0] or (starts[tops[1:]] != ends[tops[:-1]]).any():
            behind = {start: number for number, start in enumerate(starts.tolist())}
            walked, at = [], 0
            while at in behind:
                walked.append(behind[at])
                at = int(ends[walked[-1]])
            tops = np.array(walked, np.int64)
        chain: Headers = self._found[tops[ends[tops] <= self._size]]
        return chain

    def has(self, key: bytes) -> bool:
        """Whether some bytes occur in it."""
        return key in self._data

    def length_of_first(self) -> int:
        """Return the length of the record at the first byte; 0 where there is none."""
        headers = self._found
        return int(headers[0]["length"]) if len(headers) and not self._starts()[0] else 0

    def second(self) -> int:
        """Return the position of the first record behind the first byte; 0 where there is none."""
        behind = self._starts() > 0
        return int(self._found[behind][0]["position"]) if behind.any() else 0

    def inside(self, bundle: np.void) -> Headers:
        """Return the headers of a bundle's batches with properties. Raises BadRecord."""
        at = int(bundle["position"]) - self._position
        record = memoryview(self._data)[at : at + int(bundle["length"])]
        header = read_header(record, 0, int(bundle["position"]))
        inner = [bytes(batch[:HEADER_BYTES]) for inner_header, batch in batches_of(header, record)
                 if inner_header.properties_length]  # fmt: skip
        return np.frombuffer(b"".join(inner), HEADER)

    def entries(self, batches: Headers, base: int, bits: int) -> Entries:
        """Return the entries of some batches."""
        starts = (batches["position"] - np.uint64(self._position)).astype(np.int64)
        at = _align8(HEADER_BYTES + batches["payload_length"].astype(np.int64))
        at = starts + _align8(at + 4 * batches["count"].astype(np.int64))
        halves = np.frombuffer(self._data, "<u4", len(self._data) // 4)
        counts = halves[at >> 2].astype(np.int64)
        heads = BLOCK_HEAD_BYTES + BLOCK_ROW_BYTES * counts
        counts[heads > batches["properties_length"]] = 0  # Damaged.
        of = np.repeat(np.arange(len(batches)), counts)
        within = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        numbers = halves[(at[of] >> 2) + 1 + within]
        ends_at = (at[of] >> 2) + 1 + counts[of] + within
        base_at = at[of] + heads[of]
        limits = at[of] + batches["properties_length"][of]
        field_at = base_at + np.where(within > 0, halves[ends_at - 1], 0)
        stops = np.minimum(base_at + halves[ends_at], limits)
        rows, keys_at, sizes = self._keys(field_at, stops)
        entries = np.empty(len(rows), ENTRY)
        entries["hash"] = self._hashes(keys_at, sizes, bits)
        words = (batches["position"] - np.uint64(base)) >> np.uint64(3)
        entries["word"] = words[of[rows]]
        entries["number"] = numbers[rows]
        return entries

    def _keys(self, at: Int64s, stops: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the row, the position and the size of each key, by row."""
        fields: npt.NDArray[np.uint32] = np.ndarray(
            (len(self._data) - 3,), "<u4", self._data, strides=(1,)
        )
        rows, positions, sizes = [], [], []
        live = np.arange(len(at))
        while len(live := live[at[live] + _FIELD_BYTES <= stops[live]]):
            begins = at[live]
            heads = fields[begins]
            names, lengths = (heads >> 8 & 0xFF).astype(np.int64), (heads >> 16).astype(np.int64)
            begins += _FIELD_BYTES + names
            at[live] = begins + lengths
            is_key = _KINDS[heads & 0xFF] & (at[live] <= stops[live])
            rows.append(live[is_key])
            positions.append(begins[is_key])
            sizes.append(lengths[is_key])
        if not rows:
            return live, live, live
        row = np.concatenate(rows)
        order = np.argsort(row, kind="stable") if len(rows) > 1 else slice(None)
        return row[order], np.concatenate(positions)[order], np.concatenate(sizes)[order]

    def _hashes(self, at: Int64s, sizes: Int64s, bits: int) -> UInt32s:
        words: npt.NDArray[np.uint64] = np.ndarray(
            (len(self._data) - _WORD_BYTES + 1,), "<u8", self._data, strides=(1,)
        )
        hashes = sizes.astype(np.uint64)
        live: npt.NDArray[np.int64] | slice = slice(None)
        for begin in range(0, int(sizes.max(initial=0)), _WORD_BYTES):
            if begin:
                live = np.flatnonzero(sizes > begin)
            rest = sizes[live] - begin
            word = words[at[live] + begin]
            word &= np.where(rest < _WORD_BYTES, _MASKS[np.minimum(rest, 7)], ~np.uint64(0))
            mixed = (hashes[live] ^ word) * _FACTOR
            hashes[live] = mixed ^ (mixed >> np.uint64(32))
        return (hashes >> np.uint64(64 - 32)).astype(np.uint32) >> np.uint32(32 - bits)


def key_hash(key: bytes, bits: int = 32) -> int:
    """Return the hash of a key, as an entry has it."""
    mask = (1 << 64) - 1
    value = len(key)
    for begin in range(0, len(key), _WORD_BYTES):
        word = int.from_bytes(key[begin : begin + _WORD_BYTES], "little")
        value = (value ^ word) * int(_FACTOR) & mask
        value ^= value >> 32
    return (value >> 32) >> (32 - bits)


def _align8(lengths: Int64s) -> Int64s:
    return (lengths + 7) & ~7
