"""The done bitmap: marks the messages of a queue that are done, one by one.

A byte for each offset up to the last marked one. In the journal one bit each, little-endian::

    0 kind u32 (0 = offsets, 1 = bits) | 4 reserved u32
    8 offsets, u64 each                      kind 0
    8 first u64 | 16 bits, lowest first      kind 1: all below `first` are marked

Marks are never removed, so entries may be applied in any order, and repeatedly.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]

_KIND = struct.Struct("<II")
_FIRST = struct.Struct("<Q")
_OFFSETS, _BITS = 0, 1
OLDEST = 1024
"""The maximum number of unmarked offsets kept one by one."""
_PIECE = 1 << 16
_NONE: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)


class DoneBitmap:
    """The marks of one queue, whose offsets begin at 0."""

    def __init__(self) -> None:
        self.count = 0
        """The number of marked offsets."""
        self.front = 0
        """The lowest unmarked offset."""
        self.end = 0
        """The offset behind the highest marked one."""
        self._marked = _NONE

    def add(self, offsets: Offsets) -> Offsets:
        """Mark offsets, each given once. Returns those that were not marked before."""
        if not len(offsets):
            return offsets
        self._reach(int(offsets.max()) + 1)
        fresh = offsets[~self._marked[offsets]]
        self._marked[fresh] = True
        self._counted(len(fresh))
        return fresh

    def _reach(self, end: int) -> None:
        self.end = max(self.end, end)
        if end > len(self._marked):
            grown = np.zeros(max(64, end + end // 4), np.bool_)
            grown[: len(self._marked)] = self._marked
            self._marked = grown

    def _counted(self, fresh_count: int) -> None:
        self.count += fresh_count
        while self.front < self.end:
            piece = self._marked[self.front : min(self.end, self.front + _PIECE)]
            at = int(piece.argmin())
            if not piece[at]:
                self.front += at
                return
            self.front += len(piece)

    def has(self, offset: int) -> bool:
        """Whether an offset is marked."""
        return offset < self.end and bool(self._marked[offset])

    def has_each(self, offsets: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return for each of some rising offsets whether it is marked."""
        below = int(np.searchsorted(offsets, np.uint64(self.end)))
        marked = np.zeros(len(offsets), np.bool_)
        marked[:below] = self._marked[offsets[:below]]
        return marked

    def unmarked(self, first: int, end: int, max_count: int | None = None) -> Offsets:
        """Return the unmarked offsets from `first` up to `end`, at most `max_count`, rising."""
        first = max(first, self.front)
        pieces: list[Offsets] = []
        left = end if max_count is None else max_count
        for start in range(first, min(end, self.end), _PIECE):
            stop = min(end, self.end, start + _PIECE)
            pieces.append(np.flatnonzero(~self._marked[start:stop])[:left] + start)
            left -= len(pieces[-1])
            if left <= 0:
                break
        begin = max(first, self.end)
        if left > 0 and begin < end:
            pieces.append(np.arange(begin, min(end, begin + left)))
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)

    def kept(self, end: int) -> tuple[int, Offsets]:
        """Return the needed offsets up to `end`: all from one on, which never decreases, and single
        ones below it.
        """
        oldest = self.unmarked(self.front, end, OLDEST + 1)
        if len(oldest) <= OLDEST:
            return end, oldest
        return int(oldest[-1]), oldest[:-1]

    def pack(self, doubtful: Offsets | None = None) -> bytes:
        """Pack an entry with all marks except doubtful ones."""
        marked, front = self._marked[self.front : self.end], self.front
        if doubtful is not None and len(doubtful):
            front = min(front, int(doubtful.min()))
            marked = self._marked[front : self.end].copy()
            marked[doubtful - front] = False
        bits = np.packbits(marked, bitorder="little")
        return _KIND.pack(_BITS, 0) + _FIRST.pack(front) + bits.tobytes()

    def apply(self, entry: bytes) -> None:
        """Apply the marks of an entry."""
        kind, _ = _KIND.unpack_from(entry)
        if kind == _OFFSETS:
            self.add(np.unique(np.frombuffer(entry, "<u8", offset=_KIND.size)).astype(np.int64))
            return
        at = _KIND.size + _FIRST.size
        first = _FIRST.unpack_from(entry, _KIND.size)[0]
        bits = np.frombuffer(entry, np.uint8, offset=at)
        marked = np.unpackbits(bits, bitorder="little").view(np.bool_)
        end = first + (int(np.flatnonzero(marked)[-1]) + 1 if marked.any() else 0)
        self._reach(end)
        self._marked[:first] = True
        self._marked[first:end] |= marked[: end - first]
        self.count, self.front = int(np.count_nonzero(self._marked)), 0
        self._counted(0)


def pack_offsets(offsets: Offsets) -> bytes:
    """Pack an entry that marks some offsets."""
    return _KIND.pack(_OFFSETS, 0) + offsets.astype("<u8").tobytes()
