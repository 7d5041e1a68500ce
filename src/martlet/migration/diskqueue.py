"""Disk queues: the files in which nsqd keeps the messages of a topic or of a channel.

::

    orders.diskqueue.meta.dat            depth            as text; written every 2500 messages or
    orders.diskqueue.000007.dat          file,byte read   2 s, so stale after a kill
    orders.diskqueue.000008.dat          file,byte written
    orders:invoices.diskqueue.000000.dat

    a file:     size i32 | message | size i32 | message ...               numbers are big-endian
    a message:  timestamp i64 ns | attempts u16 | id, 16 hexadecimal digits | body

What lies before the read position was consumed.  A kill may leave messages behind the written
position: they are read too.  nsqd gives a file up at the first size that cannot be; this reader
searches for the next message behind it, and reports what lies between.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

HEAD_BYTES = 26
ID_AT = 10
_ID_BYTES = 16
_CHUNK = 1 << 16
"""The messages that are checked together."""
_SIZE = struct.Struct(">i")
_ID = re.compile(rb"(?=[0-9a-f]{16})")
_META = re.compile(rb"\s*(-?\d+)\n(-?\d+),(-?\d+)\n(-?\d+),(-?\d+)\n")
_MAX_FAULTS = 20
"""The damaged positions of a file that are reported one by one."""
_MAX_FINDINGS = 1000


@dataclass
class Findings:
    """Problems of a data folder in three degrees; after a thousand of one they are only counted."""

    lost: list[str] = field(default_factory=list)
    """A part could not be read: messages may be missing."""
    doubts: list[str] = field(default_factory=list)
    """Consumed messages may be imported again, or state other than messages was lost."""
    notes: list[str] = field(default_factory=list)
    """A part was skipped with good reason."""
    more: int = 0

    def unreadable(self, text: str) -> None:
        """Messages may be missing."""
        self._add(self.lost, text)

    def doubt(self, text: str) -> None:
        """Messages may be imported again, or be incomplete."""
        self._add(self.doubts, text)

    def note(self, text: str) -> None:
        """Nothing is wrong, but it may look so."""
        self._add(self.notes, text)

    def _add(self, texts: list[str], text: str) -> None:
        if len(texts) < _MAX_FINDINGS:
            texts.append(text)
        else:
            self.more += 1

    def lines(self) -> Iterator[str]:
        """The report."""
        yield from (f"NOT READ: {text}" for text in self.lost)
        yield from (f"in doubt: {text}" for text in self.doubts)
        yield from (f"note: {text}" for text in self.notes)
        if self.more:
            yield f"and {self.more} findings more"


@dataclass(frozen=True)
class Meta:
    """The contents of a meta file."""

    depth: int
    read_file: int
    read_at: int
    write_file: int
    write_at: int

    @classmethod
    def parse(cls, data: bytes) -> Meta | None:
        """Read its text; None where it is none."""
        match = _META.match(data)
        if match is None:
            return None
        meta = cls(*map(int, match.groups()))
        return meta if min(meta.read_file, meta.read_at, meta.write_file) >= 0 else None


class QueueFile:
    """A file of a queue, read through a map."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path = path
        self.start = start
        self.size_bytes = path.stat().st_size
        self.first_id = 0
        self.last_id = (1 << 64) - 1
        """No message of it has an id outside of these."""
        self._map: mmap.mmap | None = None

    @property
    def unread_bytes(self) -> int:
        """How much of it is to be read."""
        return max(0, self.size_bytes - self.start)

    @property
    def data(self) -> mmap.mmap:
        """Its bytes; there is at least one."""
        if self._map is None:
            with open(self.path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), self.size_bytes, prot=mmap.PROT_READ)
        return self._map

    def close(self) -> None:
        """Close the map; the next read opens it again."""
        self._map = None

    def chunks(self, damaged: Callable[[int, int, str], None]) -> Iterator[tuple[Offsets, Offsets]]:
        """Yield where messages begin, and their sizes, some at a time.

        `damaged` gets stretches without a message: first byte, end, what is wrong.
        """
        if self.unread_bytes == 0:
            return
        data, at, end = self.data, self.start, self.size_bytes
        unpack = _SIZE.unpack_from
        positions: list[int] = []
        sizes: list[int] = []
        while at < end:
            size = unpack(data, at)[0] if at + 4 <= end else -1
            behind = at + 4 + size
            if size < HEAD_BYTES or behind > end:
                next_at = _next_message(data, at + 1, end)
                damaged(at, next_at, _reason(size, end - at))
                at = next_at
                continue
            positions.append(at + 4)
            sizes.append(size)
            at = behind
            if len(positions) == _CHUNK:
                yield np.array(positions), np.array(sizes)
                positions, sizes = [], []
        if positions:
            yield np.array(positions), np.array(sizes)


def _reason(size: int, left: int) -> str:
    if size == -1 and left < 4:
        return "the last message is torn"
    if HEAD_BYTES <= size < 1 << 30:
        return f"a message of {size} bytes is torn, or its size is wrong: {left - 4} are left"
    return f"no message has the size {size}"


def _next_message(data: mmap.mmap, at: int, end: int) -> int:
    """Where the next message behind byte `at` begins with its size; `end` where there is none."""
    id_behind = 4 + ID_AT
    for match in _ID.finditer(data, at + id_behind, end):
        start = match.start() - id_behind
        behind = _behind_message(data, start, end)
        if behind == end or (behind > 0 and _behind_message(data, behind, end) > 0):
            return start
    return end


def _behind_message(data: mmap.mmap, at: int, end: int) -> int:
    """The byte behind the message that may begin at `at`; 0 where none can."""
    if at + 4 + HEAD_BYTES > end:
        return 0
    size, time_ns = struct.unpack_from(">iq", data, at)
    behind: int = at + 4 + size
    likely = size >= HEAD_BYTES and behind <= end and 0 < time_ns < 1 << 62
    return behind if likely and _ID.match(data, at + 4 + ID_AT) else 0


@dataclass
class DiskQueue:
    """The files of one queue that hold unread messages, in the order in which they are read."""

    name: str
    files: list[QueueFile]
    depth: int | None
    """How many messages there should be, where that is known."""
    reported: set[Path] = field(default_factory=set)

    @property
    def unread_bytes(self) -> int:
        """How much there is to be read."""
        return sum(file.unread_bytes for file in self.files)

    def chunks(self, findings: Findings) -> Iterator[DiskQueueChunk]:
        """Yield all unread messages, some at a time, and report what cannot be read."""
        for number in range(len(self.files)):
            yield from self.chunks_of(number, findings)

    def chunks_of(self, number: int, findings: Findings) -> Iterator[DiskQueueChunk]:
        """Yield the messages of one file."""
        file = self.files[number]
        is_new = file.path not in self.reported
        self.reported.add(file.path)
        damaged: list[str] = []

        def add_damage(first: int, end: int, reason: str) -> None:
            damaged.append(f"bytes {first} to {end - 1} of {file.size_bytes}: {reason}")

        for positions, sizes in file.chunks(add_damage):
            yield DiskQueueChunk(file, number, positions, sizes)
        file.close()
        if is_new and damaged:
            for text in damaged[:_MAX_FAULTS]:
                findings.unreadable(f"{file.path.name}: {text}")
            if len(damaged) > _MAX_FAULTS:
                findings.unreadable(
                    f"{file.path.name}: {len(damaged) - _MAX_FAULTS} positions more"
                )


@dataclass(frozen=True, eq=False)
class DiskQueueChunk:
    """Some messages of a file."""

    file: QueueFile
    number: int
    positions: Offsets
    """Where they begin, behind their size."""
    sizes: Offsets
    """Of the messages with their heads."""

    def __len__(self) -> int:
        return len(self.positions)

    def _field(self, at: int, length: int) -> Bytes:
        data = np.frombuffer(self.file.data, np.uint8)
        values: Bytes = data[self.positions[:, None] + np.arange(at, at + length)]
        return values

    def times(self) -> Offsets:
        """When they were published, nanoseconds since 1970."""
        return self._field(0, 8).view(">i8")[:, 0].astype(np.int64)

    def attempts(self) -> npt.NDArray[np.uint16]:
        """How often they were delivered."""
        return self._field(8, 2).view(">u2")[:, 0].astype(np.uint16)

    def ids(self) -> npt.NDArray[np.uint64]:
        """Their ids as numbers.  One that is no number in hexadecimal digits, which nsqd never
        writes, is recognised by a hash of it.
        """
        digits = self._field(ID_AT, _ID_BYTES)
        values = _DIGITS[digits].astype(np.uint64)
        ids: npt.NDArray[np.uint64] = (values << np.arange(60, -4, -4, dtype=np.uint64)).sum(
            axis=1, dtype=np.uint64
        )
        for number in np.flatnonzero((values > 15).any(axis=1)).tolist():
            digest = hashlib.blake2b(digits[number].tobytes(), digest_size=8).digest()
            ids[number] = int.from_bytes(digest, "big")
        return ids

    def bodies(self) -> list[bytes]:
        """Copies of their bodies."""
        data = self.file.data
        return [
            data[position + HEAD_BYTES : position + size]
            for position, size in zip(self.positions.tolist(), self.sizes.tolist(), strict=True)
        ]

    def some(self, which: npt.NDArray[np.bool_] | slice) -> DiskQueueChunk:
        """A part of them."""
        return DiskQueueChunk(self.file, self.number, self.positions[which], self.sizes[which])


_DIGITS = np.full(256, 255, np.uint8)
"""The values of hexadecimal digits, by their bytes; 255 for any other byte."""
_DIGITS[list(b"0123456789abcdef")] = np.arange(16)


def open_queue(name: str, folder: Path, numbers: list[int], findings: Findings) -> DiskQueue:
    """The unread part of a queue, by its meta file and the data files that are there."""

    def path(number: int) -> Path:
        return folder / f"{name}.diskqueue.{number:06d}.dat"

    meta_path = folder / f"{name}.diskqueue.meta.dat"
    try:
        text = meta_path.read_bytes()
    except FileNotFoundError:
        text = None
    meta = None if text is None else Meta.parse(text)
    if meta is None:
        if numbers:
            why = "is missing" if text is None else f"cannot be understood ({text[:60]!r})"
            findings.doubt(
                f"{meta_path.name} {why}: every message of the queue's {len(numbers)} files is"
                " taken, also those that were consumed (nsqd would take none)"
            )
        elif text is not None:
            findings.unreadable(f"{meta_path.name} cannot be understood ({text[:60]!r})")
        return DiskQueue(name, [QueueFile(path(number)) for number in numbers], None)
    consumed = numbers[: bisect_left(numbers, meta.read_file)]
    if consumed:
        findings.note(
            f"{name}: {len(consumed)} files before {path(meta.read_file).name}, which is read"
            " next, were consumed and are passed over"
        )
    unread = numbers[len(consumed) :]
    files = [QueueFile(path(n), meta.read_at if n == meta.read_file else 0) for n in unread]
    _compare(name, meta, dict(zip(unread, files, strict=True)), path, findings)
    return DiskQueue(name, files, meta.depth)


def _compare(
    name: str,
    meta: Meta,
    files: dict[int, QueueFile],
    path: Callable[[int], Path],
    findings: Findings,
) -> None:
    has_unread = (meta.read_file, meta.read_at) < (meta.write_file, meta.write_at)
    for number in range(meta.read_file, min(meta.write_file, meta.read_file + 1_000_000) + 1):
        in_use = number < meta.write_file or meta.write_at > (
            meta.read_at if number == meta.read_file else 0
        )
        if has_unread and in_use and number not in files:
            findings.unreadable(f"{path(number).name} is missing, and had unread messages")
    last = files.get(meta.write_file)
    if last is not None and last.size_bytes < meta.write_at:
        findings.unreadable(
            f"{last.path.name}: {meta.write_at} bytes were written, {last.size_bytes} are there"
        )
    elif last is not None and last.size_bytes > meta.write_at:
        findings.doubt(
            f"{name}: nsqd was killed: {last.size_bytes - meta.write_at} bytes more were written"
            " than its meta file says; they are taken. What was consumed since the file was"
            " written is delivered again"
        )
    first = files.get(meta.read_file)
    if first is not None and first.size_bytes < meta.read_at:
        findings.unreadable(
            f"{first.path.name}: bytes up to {meta.read_at} were read, {first.size_bytes} are there"
        )
