"""The properties of many messages in one packed block, checked without a loop over the messages.

A client has laid out the block of a batch itself (see `martlet.properties.block`), so it is kept
as it came once it is checked. If all entries are equal, one is checked. Otherwise all are checked
at once, field by field: the first field of each entry, then the second of those that have one, and
so on. So the check costs a few steps of numpy for each field of the longest entry, instead of a
loop over all messages. Entries that it cannot accept by itself, such as text that is not ASCII, are
left to the check of single entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from martlet.properties.block import (
    BLOCK_HEAD_BYTES,
    Block,
    block_bytes,
    entries_of,
    pack_block,
    pack_equal,
)
from martlet.properties.model import (
    MAX_BYTES,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_TAG_BYTES,
    Bytes,
    Field,
    check,
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
            size_bytes += len(entries) * _ROW_BYTES + entries.block.entries_length
        elif entries:
            size_bytes += block_bytes(entries) - BLOCK_HEAD_BYTES
    return size_bytes + BLOCK_HEAD_BYTES if size_bytes else 0


_ROW_BYTES = block_bytes([(0, b"")]) - BLOCK_HEAD_BYTES


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
    entry by entry.

    Raises BadProperties where it is no block.
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
    is_text = np.ones(len(raw), bool)
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
        for byte in range(_HEAD_BYTES):
            is_text[heads + byte] = False
        at[live] = stops
        live = live[stops < ends[live]]
    if len(live) or int(key_counts.max()) > MAX_KEYS or (raw[is_text] >= 0x80).any():
        return None
    return _hashes(raw, tags_at, tag_sizes)


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
