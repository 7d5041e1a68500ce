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
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from martlet.properties.model import BadProperties, Bytes, check, hash_of

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
    """Read a client's block of the properties of `count` messages, as a `LogBatch` takes it.

    Raises BadProperties.
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


def block_bytes(entries: Sequence[tuple[int, bytes]]) -> int:
    """Return the size of the block of some entries."""
    if not entries:
        return 0
    return BLOCK_HEAD_BYTES + sum(BLOCK_ROW_BYTES + len(entry) for _, entry in entries)


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
