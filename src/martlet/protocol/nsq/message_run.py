"""A run of message frames: their bytes as they came, and what is asked of them.

::

    frame = size u32 | type u32 = 2 | timestamp i64 ns | attempts u16 | id 16 | body   (big-endian)

A run is uniform where all its frames have one length: then it needs no list of ends, its fields are
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
"""Bytes of a message frame that come before its body."""
FRAME_SIZE_EXTRA = 30
"""What a message frame's size field counts beside its body."""
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
def _whole_frame(length: int) -> Struct:
    return Struct(f">8xqH16s{length - FRAME_HEADER_BYTES}s")


@lru_cache(maxsize=1024)
def _only_body(length: int) -> Struct:
    return Struct(f"{FRAME_HEADER_BYTES}x{length - FRAME_HEADER_BYTES}s")


class MessageRun:
    """Message frames that follow each other.

    Attributes:
        raw: the frames' bytes.
        count: how many there are.
        length: bytes of each frame if all have one length, else 0.
        properties: by their places in the run, of the messages that have any, packed.
    """

    __slots__ = ("_ends", "count", "length", "properties", "raw")

    def __init__(self, raw: bytes, ends: Sequence[int], length: int = 0) -> None:
        self.raw = raw
        self.length = length
        self.count = len(ends)
        self.properties: Mapping[int, bytes] = _NONE
        self._ends = ends

    @classmethod
    def uniform(cls, raw: bytes, length: int) -> MessageRun:
        """A run of frames that all have that length in bytes."""
        return cls(raw, range(length, len(raw) + 1, length), length)

    @classmethod
    def joined(cls, runs: Sequence[MessageRun]) -> MessageRun:
        """One run of the frames of several, in order."""
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
        """The first so many messages and the others; a negative count is that of the others."""
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
            both[0].properties = {place: entry for place, entry in entries if place < count}
            both[1].properties = {
                place - count: entry for place, entry in entries if place >= count
            }
        return both

    def fields(self) -> Iterable[Fields]:
        """Timestamp, attempts, id and body of each message, in order."""
        if self.length:
            return _whole_frame(self.length).iter_unpack(self.raw)
        return self._walk_fields()

    def _walk_fields(self) -> Iterator[Fields]:
        raw = self.raw
        start = 0
        for end in self._ends:
            timestamp_ns, attempts, message_id = _unpack_fields(raw, start)
            yield timestamp_ns, attempts, message_id, raw[start + FRAME_HEADER_BYTES : end]
            start = end

    def bodies(self) -> list[bytes]:
        """The body of each message, in order."""
        if self.length:
            return [body for (body,) in _only_body(self.length).iter_unpack(self.raw)]
        raw, ends = self.raw, self._ends
        starts = [0, *ends[:-1]]
        return [
            raw[start + FRAME_HEADER_BYTES : end] for start, end in zip(starts, ends, strict=True)
        ]

    def ends(self) -> NDArray[np.int64]:
        """Where each frame ends in the bytes."""
        if self.length:
            return np.arange(1, self.count + 1, dtype=np.int64) * self.length
        return np.array(self._ends, dtype=np.int64)

    def heads(self) -> NDArray[Any]:
        """The head of each frame, as an array of ``FIELDS``."""
        if self.length:
            return np.ndarray((self.count,), FIELDS, self.raw, strides=(self.length,))
        starts = np.zeros(self.count, np.int64)
        starts[1:] = self.ends()[:-1]
        octets = np.frombuffer(self.raw, np.uint8)
        heads = octets[starts[:, None] + np.arange(FRAME_HEADER_BYTES)]
        joined: NDArray[Any] = heads.view(FIELDS)[:, 0]
        return joined

    def ids(self) -> NDArray[np.void]:
        """The id of each message: 16 bytes each."""
        ids: NDArray[np.void] = self.heads()["id"]
        return ids


def _joined(runs: Sequence[MessageRun]) -> Mapping[int, bytes]:
    """The properties of several runs, as of one."""
    if not any(run.properties for run in runs):
        return _NONE
    joined: dict[int, bytes] = {}
    base = 0
    for run in runs:
        joined |= {base + place: entry for place, entry in run.properties.items()}
        base += run.count
    return joined
