"""A run of message frames: their bytes as received, and accessors to their fields.

::

     0 size u32 | 4 type u32 = 2 | 8 timestamp i64 ns | 16 attempts u16 | 18 id 16 | 34 body

Numbers are big-endian; the size counts everything behind it.

A run is uniform if all its frames have one length: then it needs no list of ends, its fields are
strided views of the bytes, and ``struct`` cuts it in C.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

FRAME_HEADER_BYTES = 34
"""Bytes of a message frame before its body."""
FRAME_SIZE_EXTRA = 30
"""The bytes that a message frame's size field counts beside the body."""
ID_BYTES = 16

FIELDS = np.dtype(
    [
        ("size", ">u4"),
        ("type", ">u4"),
        ("timestamp_ns", ">i8"),
        ("attempts", ">u2"),
        ("id", f"V{ID_BYTES}"),
    ]
)
"""The head of a message frame."""
assert FIELDS.itemsize == FRAME_HEADER_BYTES

Fields = tuple[int, int, bytes, bytes]
"""Timestamp in ns, attempts, id and body of a message."""

_unpack_fields = Struct(">8xqH16s").unpack_from


_NONE: Mapping[int, bytes] = MappingProxyType({})


@lru_cache(maxsize=1024)
def _frame_struct(length: int) -> Struct:
    return Struct(f">8xqH16s{length - FRAME_HEADER_BYTES}s")


@lru_cache(maxsize=1024)
def _body_struct(length: int) -> Struct:
    return Struct(f"{FRAME_HEADER_BYTES}x{length - FRAME_HEADER_BYTES}s")


class MessageRun:
    """Consecutive message frames."""

    __slots__ = ("_ends", "count", "length", "properties", "raw")

    def __init__(self, raw: bytes, ends: Sequence[int], length: int = 0) -> None:
        self.raw = raw
        self.length = length
        """Of each frame, in bytes, if all have one length; else 0."""
        self.count = len(ends)
        self.properties: Mapping[int, bytes] = _NONE
        """Packed, by index in the run, of the messages that have any."""
        self._ends = ends

    @classmethod
    def uniform(cls, raw: bytes, length: int) -> MessageRun:
        """Make a run of frames that all have that length in bytes."""
        return cls(raw, range(length, len(raw) + 1, length), length)

    @classmethod
    def joined(cls, runs: Sequence[MessageRun]) -> MessageRun:
        """Join the frames of several runs, in order."""
        if len(runs) == 1:
            return runs[0]
        raw = b"".join([run.raw for run in runs])
        length = runs[0].length
        if length and all(run.length == length for run in runs):
            return cls.uniform(raw, length)._with(_joined(runs))
        ends: list[int] = []
        base = 0
        for run in runs:
            ends += [base + end for end in run._ends]
            base += len(run.raw)
        return cls(raw, ends)._with(_joined(runs))

    def _with(self, properties: Mapping[int, bytes]) -> MessageRun:
        self.properties = properties
        return self

    def split(self, count: int) -> tuple[MessageRun, MessageRun]:
        """Return the first `count` messages and the rest; a negative count is of the rest."""
        if not 0 < abs(count) < self.count:
            raise ValueError(f"a run of {self.count} messages does not split at {count}")
        if count < 0:
            count += self.count
        cut = self._ends[count - 1]
        first, rest = self.raw[:cut], self.raw[cut:]
        if self.length:
            both = self.uniform(first, self.length), self.uniform(rest, self.length)
        else:
            both = (
                MessageRun(first, self._ends[:count]),
                MessageRun(rest, [end - cut for end in self._ends[count:]]),
            )
        if self.properties:
            entries = self.properties.items()
            both[0].properties = {number: entry for number, entry in entries if number < count}
            both[1].properties = {
                number - count: entry for number, entry in entries if number >= count
            }
        return both

    def singles(self) -> Iterator[MessageRun]:
        """Yield a run of each message."""
        raw, properties = self.raw, self.properties
        start = 0
        for number, end in enumerate(self._ends):
            single = MessageRun(raw[start:end], (end - start,), end - start)
            if properties and (entry := properties.get(number)) is not None:
                single.properties = {0: entry}
            yield single
            start = end

    def size_bytes(self, start: int, stop: int) -> int:
        """Return the bytes of the frames from one number up to another."""
        return self._ends[stop - 1] - (self._ends[start - 1] if start else 0)

    def fields(self) -> Iterable[Fields]:
        """Return the timestamp, attempts, id and body of each message, in order."""
        if self.length:
            return _frame_struct(self.length).iter_unpack(self.raw)
        return self._walk_fields()

    def _walk_fields(self) -> Iterator[Fields]:
        raw = self.raw
        start = 0
        for end in self._ends:
            timestamp_ns, attempts, message_id = _unpack_fields(raw, start)
            yield timestamp_ns, attempts, message_id, raw[start + FRAME_HEADER_BYTES : end]
            start = end

    def bodies(self) -> list[bytes]:
        """Return the body of each message, in order."""
        if self.length:
            return [body for (body,) in _body_struct(self.length).iter_unpack(self.raw)]
        raw, ends = self.raw, self._ends
        starts = [0, *ends[:-1]]
        return [
            raw[start + FRAME_HEADER_BYTES : end] for start, end in zip(starts, ends, strict=True)
        ]

    def ends(self) -> NDArray[np.int64]:
        """Return the end of each frame in the bytes."""
        if self.length:
            return np.arange(1, self.count + 1, dtype=np.int64) * self.length
        return np.array(self._ends, dtype=np.int64)

    def heads(self) -> NDArray[Any]:
        """Return the head of each frame, as an array of ``FIELDS``."""
        if self.length:
            return np.ndarray((self.count,), FIELDS, self.raw, strides=(self.length,))
        starts = np.zeros(self.count, np.int64)
        starts[1:] = self.ends()[:-1]
        octets = np.frombuffer(self.raw, np.uint8)
        heads = octets[starts[:, None] + np.arange(FRAME_HEADER_BYTES)]
        joined: NDArray[Any] = heads.view(FIELDS)[:, 0]
        return joined

    def ids(self) -> NDArray[np.void]:
        """Return the id of each message: 16 bytes each."""
        ids: NDArray[np.void] = self.heads()["id"]
        return ids


def _joined(runs: Sequence[MessageRun]) -> Mapping[int, bytes]:
    """Join the properties of several runs."""
    if not any(run.properties for run in runs):
        return _NONE
    joined: dict[int, bytes] = {}
    base = 0
    for run in runs:
        joined |= {base + number: entry for number, entry in run.properties.items()}
        base += run.count
    return joined
