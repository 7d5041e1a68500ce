"""The properties block of a batch: the properties of those messages that have any.

It follows the batch's frames::

    0 count u32               messages that have properties
    4 numbers  count x u32    their numbers in the batch, rising
    . ends     count x u32    the end of each entry, from the first entry's start
    . tags     count x u32    the hash of each message's tag, 0 for none
    . entries, back to back   see `martlet.properties.model`

Numbers are little-endian.  The tags' hashes are stored side by side, so that a filter compares all
of them at once. A consumer gets a block in a frame of its own, before the messages that it
describes.

A client has laid out the block of a batch itself, so it is kept as it came once it is checked. If
all entries are equal, one is checked. Otherwise all are checked at once, field by field: the first
field of each entry, then the second of those that have one, and so on. So the check costs a few
steps of numpy for each field of the longest entry, instead of a loop over all messages. Entries
that it cannot accept by itself, such as names that are not ASCII, are left to the check of single
entries.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import overload

import numpy as np
import numpy.typing as npt

from martlet.properties.model import (
    MAX_BYTES,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_TAG_BYTES,
    BadProperties,
    Bytes,
    Field,
    check,
    hash_of,
)

Numbers = npt.NDArray[np.uint32]
FRAME_TYPE = 16
"""The type of the frame that carries the properties of the messages right behind it."""

_FRAME = struct.Struct(">II")
_COUNT = struct.Struct("<I")
_SINGLE = struct.Struct("<IIII")
"""The bytes before the entry in the block of one message."""
BLOCK_HEAD_BYTES = _COUNT.size
BLOCK_ROW_BYTES = 12
"""The bytes in a block for each message that has properties, beside its entry."""


def entries_of(data: Bytes, count: int) -> list[tuple[int, bytes]]:
    """Read a client's block of the properties of `count` messages, as a `LogBatch` takes it. Raises
    BadProperties.
    """
    block = Block(data)
    numbers = block.numbers.tolist()
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise BadProperties("properties whose message numbers do not rise")
    if numbers and numbers[-1] >= count:
        raise BadProperties(f"properties of message {numbers[-1]}, but there are {count} messages")
    if any(later < earlier for earlier, later in pairwise(block.ends.tolist())):
        raise BadProperties("properties whose entries do not fill their block")
    entries = [(number, bytes(block.entry(at))) for at, number in enumerate(numbers)]
    for entry in dict.fromkeys(entry for _, entry in entries):  # Many messages may share one.
        check(entry)
    return entries


def pack_block(entries: Sequence[tuple[int, bytes]]) -> bytes:
    """Pack the block of a batch: rising numbers of messages, and the entry of each."""
    count = len(entries)
    if not count:
        return b""
    if count == 1:
        ((number, entry),) = entries
        return _SINGLE.pack(1, number, len(entry), hash_of(entry)) + entry
    numbers, packed = zip(*entries, strict=True)
    ends = np.fromiter(map(len, packed), "<u4", count).cumsum(dtype="<u4")
    hashes = {entry: hash_of(entry) for entry in set(packed)}  # Many messages may share one.
    tags = np.fromiter(map(hashes.__getitem__, packed), "<u4", count)
    head = (_COUNT.pack(count), np.array(numbers, "<u4").tobytes(), ends.tobytes(), tags.tobytes())
    return b"".join([*head, *packed])


def pack_entries(entries: Sequence[bytes]) -> bytes:
    """Pack the block of a batch from the entry of each message; empty for one that has none."""
    count = len(entries)
    if count > 1 and entries.count(entries[0]) == count:
        return pack_equal(entries[0], count) if entries[0] else b""
    return pack_block([(number, entry) for number, entry in enumerate(entries) if entry])


def pack_equal(entry: bytes, count: int) -> bytes:
    """Pack the block of a batch in which all messages have one entry."""
    size = len(entry)
    numbers = np.arange(count, dtype="<u4")
    ends = (numbers + np.uint32(1)) * np.uint32(size)
    tags = hash_of(entry).to_bytes(4, "little") * count
    return b"".join([_COUNT.pack(count), numbers.tobytes(), ends.tobytes(), tags, entry * count])


def frame(block: Bytes) -> bytes:
    """Pack a block as the frame that precedes the messages in a delivery."""
    return _FRAME.pack(len(block) + 4, FRAME_TYPE) + block


def lone_frame(entry: bytes) -> bytes:
    """Pack the frame with the properties of the single message behind it."""
    return frame(pack_block([(0, entry)]))


def entry_of(data: Bytes, number: int) -> bytes:
    """Return the entry of one message of a block by its number; empty where it has none."""
    if len(data) >= _SINGLE.size:
        count, only, length, _ = _SINGLE.unpack_from(data)
        if count == 1:
            return bytes(data[_SINGLE.size : _SINGLE.size + length]) if only == number else b""
    return Block(data).of(number)


def entries_between(data: Bytes, begin: int, end: int) -> list[bytes]:
    """Return the entries of a block's messages from `begin` up to `end`; empty for none."""
    if end - begin == 1:
        return [entry_of(data, begin)]
    block = Block(data)
    first, stop = np.searchsorted(block.numbers, (begin, end)).tolist()
    entries = [b""] * (end - begin)
    if first < stop:
        start = int(block.ends[first - 1]) if first else 0
        raw = bytes(block.entries[start : int(block.ends[stop - 1])])
        at = 0
        stops = (block.ends[first:stop] - np.uint32(start)).tolist()
        for number, next_at in zip(block.numbers[first:stop].tolist(), stops, strict=True):
            entries[number - begin] = raw[at:next_at]
            at = next_at
    return entries


_NO_NUMBERS: Numbers = np.empty(0, np.uint32)


class Block:
    """The properties of a batch, read in place: the numbers of the messages that have any, rising,
    the hash of each one's tag, and the end of its entry from the first one's start, ``uint32[n]``
    all. Raises BadProperties.
    """

    __slots__ = ("_entries_at", "data", "ends", "numbers", "tags")

    def __init__(self, data: Bytes) -> None:
        self.data = memoryview(data)
        self.numbers = self.tags = self.ends = _NO_NUMBERS
        self._entries_at = 0
        if not len(data):
            return
        count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else 0
        at = _COUNT.size
        self._entries_at = at + 12 * count
        if not count or len(data) < self._entries_at:
            raise BadProperties("a truncated block of properties")
        columns = np.frombuffer(data, "<u4", 3 * count, at)
        self.numbers = columns[:count]
        self.ends = columns[count : 2 * count]
        self.tags = columns[2 * count :]
        if self._entries_at + columns.item(2 * count - 1) != len(data):
            raise BadProperties("a block of properties whose entries do not fill it")

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def entries(self) -> memoryview:
        """All entries, back to back."""
        return self.data[self._entries_at :]

    @property
    def entries_length(self) -> int:
        """The size of all entries."""
        return len(self.data) - self._entries_at

    def entry(self, at: int) -> memoryview:
        """Return the entry at an index of `numbers`."""
        start = self.ends.item(at - 1) if at else 0
        return self.data[self._entries_at + start : self._entries_at + self.ends.item(at)]

    def of(self, number: int) -> bytes:
        """Return the entry of the message of that number in the batch; empty where it has none."""
        numbers = self.numbers
        if number < len(numbers) and numbers.item(number) == number:
            return bytes(self.entry(number))  # All messages up to this one have properties.
        at = int(np.searchsorted(numbers, number))
        if at < len(numbers) and numbers.item(at) == number:
            return bytes(self.entry(at))
        return b""

    def cut(self, begin: int, end: int) -> bytes:
        """Return the block of the messages from number `begin` up to `end`, counted from `begin`;
        empty where none of them has properties.
        """
        first, stop = np.searchsorted(self.numbers, (begin, end)).tolist()
        if first == stop:
            return b""
        start = int(self.ends[first - 1]) if first else 0
        at = self._entries_at
        return b"".join(
            (
                _COUNT.pack(stop - first),
                (self.numbers[first:stop] - np.uint32(begin)).tobytes(),
                (self.ends[first:stop] - np.uint32(start)).tobytes(),
                self.tags[first:stop].tobytes(),
                self.data[at + start : at + int(self.ends[stop - 1])],
            )
        )


Int64s = npt.NDArray[np.int64]
Entry = tuple[int, bytes]
_HEAD_BYTES = 4
_FEW = 16
"""Up to this many messages are checked faster one by one."""
_MAX_FIELDS = 32
"""The maximum number of fields of a message here; one with more is checked by itself."""


class Packed(Sequence[Entry]):
    """The messages of a batch that have properties: the number of each, and its entry.

    Args:
        block: the packed block.
        shift: added to each number.
    """

    __slots__ = ("block", "shift")

    def __init__(self, block: Block, shift: int = 0) -> None:
        self.block = block
        self.shift = shift

    def __len__(self) -> int:
        return len(self.block)

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Entry]: ...
    def __getitem__(self, at: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        number = at % len(self)
        return int(self.block.numbers[number]) + self.shift, bytes(self.block.entry(number))

    def cut(self, first: int, stop: int) -> Packed:
        """Return the messages from one number up to another, counted from the first."""
        return Packed(Block(self.block.cut(first - self.shift, stop - self.shift)))

    def with_tail(self, tail: bytes) -> Packed:
        """Return them with bytes, not of a tag, appended to the first entry."""
        block = self.block
        size = len(block.entry(0))
        ends = block.ends + np.uint32(len(tail))
        columns = (block.numbers.tobytes(), ends.tobytes(), block.tags.tobytes())
        entries = block.entries
        data = b"".join(
            [len(block).to_bytes(4, "little"), *columns, entries[:size], tail, entries[size:]]
        )
        return Packed(Block(data), self.shift)


def packed_bytes(some: Sequence[Sequence[Entry]]) -> int:
    """Return the size of one block of all these entries."""
    size_bytes = 0
    for entries in some:
        if isinstance(entries, Packed):
            size_bytes += len(entries) * BLOCK_ROW_BYTES + entries.block.entries_length
        else:
            size_bytes += sum(BLOCK_ROW_BYTES + len(entry) for _, entry in entries)
    return size_bytes + BLOCK_HEAD_BYTES if size_bytes else 0


def join(some: Sequence[tuple[int, Sequence[Entry]]]) -> Bytes:
    """Join entries whose numbers count from a first one each, all rising, into one block."""
    blocks: list[tuple[int, Block]] = []
    listed: list[Entry] = []
    for first, entries in some:
        if isinstance(entries, Packed):
            if listed:
                blocks.append((0, Block(pack_block(listed))))
                listed = []
            blocks.append((first + entries.shift, entries.block))
        else:
            listed += [(first + number, entry) for number, entry in entries]
    if not blocks:
        return pack_block(listed)
    if listed:
        blocks.append((0, Block(pack_block(listed))))
    if len(blocks) == 1 and not blocks[0][0]:
        return blocks[0][1].data
    numbers, ends, tags, tails, end = [], [], [], [], 0
    for shift, block in blocks:
        numbers.append(block.numbers.astype(np.int64) + shift)
        ends.append(block.ends + np.uint32(end))
        tags.append(block.tags)
        tails.append(block.entries)
        end += block.entries_length
    count = sum(map(len, numbers))
    columns = (np.concatenate(arrays).astype("<u4").tobytes() for arrays in (numbers, ends, tags))
    return b"".join([count.to_bytes(4, "little"), *columns, *tails])


def read(data: bytes, count: int) -> Sequence[Entry]:
    """Read a client's block of the properties of `count` messages. Raises BadProperties."""
    return read_at_once(data, count) or entries_of(data, count)


def read_at_once(data: bytes, count: int) -> Packed | None:
    """Read a client's block of the properties of `count` messages; None where it has to be checked
    entry by entry. Raises BadProperties where it is no block.
    """
    block = Block(data)
    numbers = block.numbers
    if len(block) <= _FEW or int(numbers[-1]) >= count or (numbers[1:] <= numbers[:-1]).any():
        return None
    entry = bytes(block.entry(0))
    # Compare sizes first: `count` copies of a large entry may be far larger than the block.
    is_of_one_size = len(block) == count and block.entries_length == len(entry) * count
    if is_of_one_size and block.entries == entry * count:
        check(entry)
        if data == pack_equal(entry, count):
            return Packed(block)
    ends = block.ends.astype(np.int64)
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    sizes = ends - starts
    if int(sizes.min()) < 0 or int(sizes.max()) > MAX_BYTES:
        return None
    raw: npt.NDArray[np.uint8] = np.frombuffer(block.entries, np.uint8)
    tags = _checked(raw, starts, ends)
    return Packed(block) if tags is not None and (tags == block.tags).all() else None


def _checked(
    raw: npt.NDArray[np.uint8], starts: Int64s, ends: Int64s
) -> npt.NDArray[np.uint32] | None:
    """Return the hash of each entry's tag if all are valid; None where that is not known."""
    texts: list[tuple[Int64s, Int64s]] = []
    """Where texts begin and end: names, and keys."""
    key_counts = np.zeros(len(starts), np.int64)
    tags_at, tag_sizes = np.zeros_like(starts), np.zeros_like(starts)
    at = starts.copy()
    live = np.flatnonzero(at < ends)
    for _ in range(_MAX_FIELDS):
        if not len(live):
            break
        heads = at[live]
        if (heads + _HEAD_BYTES > ends[live]).any():
            return None
        kinds, names = raw[heads], raw[heads + 1].astype(np.int64)
        values = raw[heads + 2].astype(np.int64) + raw[heads + 3].astype(np.int64) * 256
        stops = heads + _HEAD_BYTES + names + values
        is_tag, is_key = kinds == Field.TAG, kinds == Field.KEY
        is_header, is_order_key = kinds == Field.HEADER, kinds == Field.ORDER_KEY
        digits = raw[np.minimum(heads + _HEAD_BYTES, len(raw) - 1)] - ord("0")
        is_priority = (kinds == Field.PRIORITY) & (names == 0) & (values == 1) & (digits < 10)
        good = (
            ((is_tag | is_key | is_order_key) & (names == 0) & (values > 0))
            | is_priority
            | is_header & (names > 0)
        ) & (stops <= ends[live])
        good &= ~((is_key | is_order_key) & (values > MAX_KEY_BYTES))
        good &= ~(is_tag & ((values > MAX_TAG_BYTES) | (heads != starts[live])))
        if not good.all():
            return None
        key_counts[live] += is_key
        tagged = live[is_tag]
        tags_at[tagged], tag_sizes[tagged] = heads[is_tag] + _HEAD_BYTES, values[is_tag]
        texts.append((heads + _HEAD_BYTES, np.where(is_key, stops, heads + _HEAD_BYTES + names)))
        at[live] = stops
        live = live[stops < ends[live]]
    if len(live) or int(key_counts.max()) > MAX_KEYS or not _are_ascii(raw, texts):
        return None
    return _hashes(raw, tags_at, tag_sizes)


def _are_ascii(raw: npt.NDArray[np.uint8], texts: list[tuple[Int64s, Int64s]]) -> bool:
    is_high = raw >= 0x80
    if not is_high.any():
        return True
    high_counts = np.zeros(len(raw) + 1, np.int64)
    np.cumsum(is_high, out=high_counts[1:])
    return all((high_counts[starts] == high_counts[stops]).all() for starts, stops in texts)


def _hashes(
    raw: npt.NDArray[np.uint8], tags_at: Int64s, sizes: Int64s
) -> npt.NDArray[np.uint32] | None:
    """Hash ASCII tags, as `martlet.properties.model.tag_hash`; None where one is invalid."""
    hashes = np.zeros(len(sizes), np.uint32)
    tagged = np.flatnonzero(sizes)
    if not len(tagged):
        return hashes
    starts, lengths = tags_at[tagged], sizes[tagged]
    if (raw[starts] == 0x20).any() or (raw[starts + lengths - 1] == 0x20).any():
        return None
    if ((lengths == 1) & (raw[starts] == ord("*"))).any():
        return None
    for byte in range(int(lengths.max())):
        some = lengths > byte
        letters = raw[starts[some] + byte]
        if ((letters < 0x20) | (letters > 0x7E) | (letters == ord("|"))).any():
            return None
        rows = tagged[some]
        hashes[rows] = hashes[rows] * np.uint32(31) + letters
    return hashes
