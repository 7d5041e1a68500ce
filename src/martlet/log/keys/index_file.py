"""The index of the keys of a full segment: a file beside it, sorted by the hash of the key.

::

    DIR/log/<base position>.keys

     0 magic u32      "MTKI"              16 base u64        of the segment
     4 crc32c u32     of bytes 8 to 40    24 last u64        the position of its last record,
     8 version u32                        32 checksum u32    its checksum
    12 chunks u32                         36 epoch u32       and its epoch

    then each chunk, for a range of the segment:

     0 crc32c u32     of what follows, but for the blocks
     4 blocks u32
     8 entries u64
    16 first i64, last i64                when its messages were stored, in ns since 1970
    32 fences: blocks x (the hash of its first entry u32, its crc32c u32)
     . blocks of 512 entries (`martlet.log.keys.entries`); the last may have fewer

Numbers are little-endian. A search reads the fences and the blocks in which the hash may be, and
verifies their checksums. An index of many messages has several chunks, so that building one takes
little memory.

The index names the last record of its segment. Where the log's end was cut off, or a broker has
gone on in the segment, that is no longer the last record, and the index does not count. So an index
is right, or it is recognised and built again, whatever a crash or a copy of the folder leaves. It
is derived from the log alone; each replica builds its own.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from martlet.log.keys.entries import ENTRY, Entries, SegmentFile, SegmentScan
from martlet.log.record import BadRecord, RecordKind
from martlet.log.storage import INDEX_SUFFIX, NEW_INDEX_SUFFIX
from martlet.private_files import private_opener

VERSION = 1
"""Of the layout above; an index of another version is built again."""
CHUNK_ENTRIES = 1 << 20
"""A chunk is written once it has this many entries."""
BLOCK_ENTRIES = 512

_MAGIC = int.from_bytes(b"MTKI", "little")
_HEAD = struct.Struct("<IIIIQQII")
_CHUNK = struct.Struct("<IIQqq")
_FENCE = np.dtype([("hash", "<u4"), ("crc32c", "<u4")])
_FIRST_READ_BYTES = 32 << 10
"""Has the head of an index of one chunk, with its fences."""


class BadIndex(Exception):
    """A file is no index of its segment; the text says why."""


class NotIndexed(Exception):
    """No index of a segment was built; the text says why."""


class DamagedSegment(NotIndexed):
    """A segment is damaged. It is read by each search, which finds what is left."""


def index_path(segment: Path) -> Path:
    """Return the path of a segment's index."""
    return segment.with_suffix(INDEX_SUFFIX)


# reading


class KeyIndex:
    """The index of a segment. Raises FileNotFoundError: there is none. BadIndex: it does not fit
    the segment. OSError.
    """

    def __init__(self, segment: SegmentFile) -> None:
        self._path = index_path(segment.path)
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._size = os.fstat(self._fd).st_size
            self._start = os.pread(self._fd, _FIRST_READ_BYTES, 0)
            self._chunk_count = self._check(segment)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> KeyIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, segment: SegmentFile) -> int:
        """Return the number of chunks. Raises BadIndex."""
        head = self._start[: _HEAD.size]
        if len(head) < _HEAD.size:
            raise BadIndex(f"{self._path} is cut")
        magic, crc, version, chunks, base, last, checksum, epoch = _HEAD.unpack(head)
        if magic != _MAGIC or version != VERSION or base != segment.base:
            raise BadIndex(f"{self._path} is no index of version {VERSION} of this segment")
        if crc32c(head[8:]) != crc:
            raise BadIndex(f"{self._path}: the checksum of its head does not fit")
        try:
            header = segment.header(last)
        except BadRecord as error:
            raise BadIndex(f"{self._path} is of records that are gone: {error}") from None
        if (header.crc32c, header.epoch) != (checksum, epoch):
            raise BadIndex(f"{self._path} is of records that are gone: {last} is another one")
        try:
            goes_on = segment.header(header.next_position).kind != RecordKind.SEGMENT_END
        except BadRecord:
            goes_on = False
        if goes_on:
            raise BadIndex(f"{self._path} lacks the records from {header.next_position} on")
        return int(chunks)

    def _read(self, at: int, length: int) -> bytes:
        if at + length <= len(self._start):
            return self._start[at : at + length]
        if at + length > self._size:
            raise BadIndex(f"{self._path} is cut")
        return os.pread(self._fd, length, at)

    def find(self, hash: int, since_ns: int, until_ns: int) -> Iterator[Entries]:
        """Yield the entries with a hash, some at a time, each by position and number; the last of
        the segment first. Chunks without messages stored in a span of time are left out. Raises
        BadIndex and OSError.
        """
        chunks: list[tuple[npt.NDArray[np.void], int, int]] = []
        at = _HEAD.size
        for _ in range(self._chunk_count):
            crc, blocks, entries, first_ns, last_ns = _CHUNK.unpack(self._read(at, _CHUNK.size))
            data = self._read(at, _CHUNK.size + blocks * _FENCE.itemsize)
            if crc32c(data[4:]) != crc:
                raise BadIndex(f"{self._path}: the checksum of a chunk does not fit")
            at += len(data)
            if since_ns <= last_ns and first_ns < until_ns:
                chunks.append((np.frombuffer(data, _FENCE, offset=_CHUNK.size), at, entries))
            at += entries * ENTRY.itemsize
        for chunk in reversed(chunks):
            yield from self._in_chunk(*chunk, hash)

    def _in_chunk(
        self, fences: npt.NDArray[np.void], blocks_at: int, entries: int, hash: int
    ) -> Iterator[Entries]:
        key = np.uint32(hash)
        first, stop = _run(fences, key)
        for number in range(stop - 1, max(0, first - 1) - 1, -1):
            begin = number * BLOCK_ENTRIES
            count = min(BLOCK_ENTRIES, entries - begin)
            data = self._read(blocks_at + begin * ENTRY.itemsize, count * ENTRY.itemsize)
            if crc32c(data) != fences["crc32c"][number]:
                raise BadIndex(f"{self._path}: the checksum of block {number} does not fit")
            block = np.frombuffer(data, ENTRY)
            yield block[slice(*_run(block, key))]


def _run(rows: npt.NDArray[np.void], hash: np.uint32) -> tuple[int, int]:
    """Return where the rows with a hash begin and end."""
    hashes = rows["hash"]
    left, right = np.searchsorted(hashes, hash, "left"), np.searchsorted(hashes, hash, "right")
    return int(left), int(right)


# building


def build_index(
    path: Path,
    *,
    keeps_empty: bool = True,
    check_room: Callable[[int], object] = lambda length: None,
    is_over: Callable[[], bool] = lambda: False,
    bits: int = 32,
) -> int:
    """Write the index of a full segment, or replace it. Returns the number of its entries.

    Args:
        keeps_empty: write an index without entries, too.
        check_room: called with the size of a chunk before it is written; may raise OSError.
        is_over: whether to stop.
        bits: of a hash; fewer than 32 force collisions.

    Raises:
        DamagedSegment: it gets no index.
        NotIndexed: the segment was changed or removed meanwhile, or `is_over`.
        OSError: the disk failed or is full.
    """
    beside = path.with_suffix(NEW_INDEX_SUFFIX)
    with SegmentFile(path) as segment:
        changed_at_ns = segment.changed_at_ns
        scan = SegmentScan(segment, segment.base + segment.capacity, bits)
        try:
            with open(beside, "wb", opener=private_opener) as file:
                file.write(bytes(_HEAD.size))
                chunk_count = entry_count = 0
                for chunk, first_ns, last_ns in _chunks(scan, is_over):
                    check_room(chunk.nbytes)
                    _write_chunk(file.write, chunk, first_ns, last_ns)
                    chunk_count += 1
                    entry_count += len(chunk)
                file.seek(0)
                file.write(_head(scan, chunk_count))
                if not entry_count and not keeps_empty:
                    beside.unlink()
                    return 0
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, index_path(path))
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        # A repair writes to the file, and so does the cut of a log's end.
        if segment.changed_at_ns != changed_at_ns or not segment.is_there:
            index_path(path).unlink(missing_ok=True)
            raise NotIndexed(f"{path.name} was changed or removed meanwhile")
    return entry_count


def _chunks(scan: SegmentScan, is_over: Callable[[], bool]) -> Iterator[tuple[Entries, int, int]]:
    """Yield the entries of each chunk, and when its messages were stored. Raises NotIndexed."""
    pieces: list[Entries] = []
    for piece in scan.pieces():
        if is_over():
            raise NotIndexed("it was given up")
        pieces.append(piece)
        if sum(map(len, pieces)) >= CHUNK_ENTRIES:
            yield np.concatenate(pieces), scan.first_ns, scan.last_ns
            pieces.clear()
            scan.forget_times()
    if scan.is_damaged or scan.last is None:
        raise DamagedSegment(f"{scan.file.path.name} is damaged")
    if any(map(len, pieces)):
        yield np.concatenate(pieces), scan.first_ns, scan.last_ns


def _write_chunk(
    write: Callable[[bytes], object], entries: Entries, first_ns: int, last_ns: int
) -> None:
    # The sort is stable: the numbers of a batch rise already.
    order = np.argsort(entries["hash"].astype(np.uint64) << 32 | entries["word"], kind="stable")
    data = memoryview(entries[order].tobytes())
    size_bytes = BLOCK_ENTRIES * ENTRY.itemsize
    blocks = [data[at : at + size_bytes] for at in range(0, len(data), size_bytes)]
    fences = np.empty(len(blocks), _FENCE)
    fences["hash"] = np.frombuffer(data, ENTRY)["hash"][::BLOCK_ENTRIES]
    fences["crc32c"] = list(map(crc32c, blocks))
    rest = _CHUNK.pack(0, len(blocks), len(entries), first_ns, last_ns)[4:] + fences.tobytes()
    write(crc32c(rest).to_bytes(4, "little") + rest)
    write(bytes(data))


def _head(scan: SegmentScan, chunk_count: int) -> bytes:
    assert scan.last is not None
    position, checksum, epoch = (int(scan.last[name]) for name in ("position", "crc32c", "epoch"))
    fields = (VERSION, chunk_count, scan.file.base, position, checksum, epoch)
    head = _HEAD.pack(_MAGIC, 0, *fields)
    return _HEAD.pack(_MAGIC, crc32c(head[8:]), *fields)


assert _HEAD.size == 40 and _CHUNK.size == 32
