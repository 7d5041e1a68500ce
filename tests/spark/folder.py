"""A data folder written by hand, as a broker leaves it: for tests of what only reads one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tests.crash.written_folder import flip

from martlet.log.index import ENTRY
from martlet.log.record import (
    FRAME_HEADER_BYTES,
    FRAME_SIZE_EXTRA,
    HEADER_BYTES,
    Contents,
    RecordFlag,
    RecordKind,
    align8,
    record_length,
    seal,
)
from martlet.properties.block import pack_block

EPOCH_NS = 1_700_000_000_000_000_000


class Folder:
    """Writes batches into segments and remembers the index.

    Args:
        path: an empty folder.
        segment_bytes: how long a segment is; a batch that does not fit starts the next.
    """

    def __init__(self, path: Path, segment_bytes: int = 1 << 20) -> None:
        self.path = path
        self.broker = uuid.uuid4().hex
        self.segment_bytes = segment_bytes
        self.topics: dict[str, int] = {}
        self.entries: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        self.start_offsets: dict[tuple[str, int], int] = {}
        self.end_offsets: dict[tuple[str, int], int] = {}
        (path / "log").mkdir(parents=True)
        (path / "broker.json").write_text(json.dumps({"broker": self.broker, "version": 1}))
        self._base = 0
        self._used = segment_bytes
        self._next_base = 0

    def append(
        self,
        topic: str,
        bodies: Sequence[bytes] | npt.NDArray[np.uint8],
        *,
        queue: int = 0,
        stored_at_ns: int = EPOCH_NS,
        deliver_at_ns: int = 0,
        properties: Sequence[tuple[int, bytes]] = (),
        published_at_ns: int | None = None,
    ) -> None:
        """Store one batch. An array of uint8 holds one body a row.

        Args:
            published_at_ns: the time that the messages have, if it is not that of the batch.
        """
        topic_id = self.topics.setdefault(topic, len(self.topics) + 1)
        key = (topic, queue)
        first_offset = self.end_offsets.get(key, 0)
        time_ns = stored_at_ns if published_at_ns is None else published_at_ns
        if isinstance(bodies, np.ndarray):
            frames, ends = _uniform_frames(bodies, first_offset, time_ns)
        else:
            frames, ends = _frames(bodies, first_offset, time_ns)
        block = pack_block(properties)
        length = record_length(len(frames), len(ends), len(block))
        position = self._position_for(length)
        record = bytearray(length)
        record[HEADER_BYTES : HEADER_BYTES + len(frames)] = frames
        trailer = align8(HEADER_BYTES + len(frames))
        record[trailer : trailer + 4 * len(ends)] = ends.astype("<u4").tobytes()
        block_at = align8(trailer + 4 * len(ends))
        record[block_at : block_at + len(block)] = block
        times = stored_at_ns, deliver_at_ns
        contents = Contents(
            topic_id, queue, len(ends), first_offset, *times, len(frames), len(block)
        )
        seal(
            memoryview(record),
            RecordKind.BATCH,
            RecordFlag.UNIFORM if len({len(body) for body in bodies}) == 1 else 0,
            position,
            1,
            contents,
        )
        with open(self._segment_path(), "r+b") as segment:
            segment.seek(position - self._base)
            segment.write(record)
        entry = (first_offset, position, len(ends), length, stored_at_ns, deliver_at_ns)
        self.entries.setdefault(key, []).append(entry)
        self.start_offsets.setdefault(key, 0)
        self.end_offsets[key] = first_offset + len(ends)

    def make_anew(self, topic: str) -> None:
        """Delete a topic, and make another one of its name."""
        self.topics[topic] = max(self.topics.values()) + 1
        for table in (self.entries, self.start_offsets, self.end_offsets):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    def damage(self, topic: str, number: int, at: int = 150, queue: int = 0) -> int:
        """Change a byte of a batch, by its number. Returns its position."""
        position = self.entries[topic, queue][number][1]
        base = max(base for base in self._bases() if base <= position)
        flip(self.path / "log" / f"{base:020d}.log", position - base + at)
        return position

    def index(self, topic: str, queue: int = 0) -> npt.NDArray[np.void]:
        """The rows of a queue's index."""
        return np.array(self.entries.get((topic, queue), []), ENTRY)

    def record(self, position: int, length: int) -> bytes:
        """The bytes of a record."""
        base = max(b for b in self._bases() if b <= position)
        with open(self.path / "log" / f"{base:020d}.log", "rb") as segment:
            segment.seek(position - base)
            return segment.read(length)

    def recycle_first(self) -> None:
        """Rename the oldest segment to the log's end and overwrite it, as retention does."""
        base = min(self._bases())
        old = self.path / "log" / f"{base:020d}.log"
        new = self.path / "log" / f"{self._next_base:020d}.log"
        old.rename(new)
        new_base, self._next_base = self._next_base, self._next_base + self.segment_bytes
        with open(new, "r+b") as segment:
            segment.write(b"\xa5" * self.segment_bytes)
        for key, rows in self.entries.items():
            kept = [row for row in rows if row[1] >= base + self.segment_bytes]
            self.entries[key] = kept
            self.start_offsets[key] = kept[0][0] if kept else self.end_offsets[key]
        assert new_base >= 0

    def _bases(self) -> list[int]:
        return [int(path.stem) for path in (self.path / "log").glob("*.log")]

    def _segment_path(self) -> Path:
        return self.path / "log" / f"{self._base:020d}.log"

    def _position_for(self, length: int) -> int:
        """Return the position for a record, in a new segment if the last is full."""
        if self._used + length > self.segment_bytes:
            assert length <= self.segment_bytes
            self._base = self._next_base
            self._next_base += self.segment_bytes
            self._used = 0
            with open(self._segment_path(), "wb") as segment:
                segment.truncate(self.segment_bytes)
        position = self._base + self._used
        self._used += length
        return position


def _frames(
    bodies: Sequence[bytes], first_offset: int, stored_at_ns: int
) -> tuple[bytes, npt.NDArray[np.uint32]]:
    parts = []
    for number, body in enumerate(bodies):
        parts.append((FRAME_SIZE_EXTRA + len(body)).to_bytes(4, "big") + (2).to_bytes(4, "big"))
        parts.append(stored_at_ns.to_bytes(8, "big") + (1).to_bytes(2, "big"))
        parts.append(b"%016x" % (first_offset + number) + body)
    ends = np.cumsum([FRAME_HEADER_BYTES + len(body) for body in bodies], dtype=np.uint32)
    return b"".join(parts), ends


def _uniform_frames(
    bodies: npt.NDArray[np.uint8], first_offset: int, stored_at_ns: int
) -> tuple[bytes, npt.NDArray[np.uint32]]:
    count, size = bodies.shape
    head, _ = _frames([bytes(size)], 0, stored_at_ns)
    frames = np.empty((count, FRAME_HEADER_BYTES + size), np.uint8)
    frames[:] = np.frombuffer(head, np.uint8)
    offsets = np.arange(first_offset, first_offset + count, dtype=np.uint64)
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    digits = (offsets[:, None] >> shifts) & np.uint64(15)
    frames[:, 18:34] = np.frombuffer(b"0123456789abcdef", np.uint8)[digits]
    frames[:, 34:] = bodies
    ends = np.arange(1, count + 1, dtype=np.uint32) * np.uint32(FRAME_HEADER_BYTES + size)
    return frames.tobytes(), ends
