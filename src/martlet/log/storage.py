"""Storage: the files of a data folder, behind an interface small enough to be simulated.

::

    DIR/martlet.lock               held by flock while a broker runs
    DIR/checkpoint                 the state as of a position
    DIR/doubt                      from which position on the log is in doubt, after a failed flush
    DIR/cutting                    from which position on the log is being cut
    DIR/cut/<epoch>-<position>.log what was cut off
    DIR/log/<base position>.log    segments: preallocated, their size is their capacity
    DIR/log/<base position>.keys   the index of a segment's keys (martlet.log.keys.index_file)
    DIR/log/<number>.spare         preallocated segments for reuse
    DIR/index/<topic>-<queue>.idx  index entries

A segment is written with `pwrite` and read through a read-only `mmap`.  It is preallocated, so a
full disk is an error when a segment is made and never a SIGBUS in the middle of a write.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from martlet.private_files import make_private_folder, private_opener
from martlet.text import readable_size

FULL = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a lack of space, which may pass."""
BESIDE_BYTES = 1 << 20
"""The last spare is kept for checkpoints, which are smaller, while fewer bytes are free."""


INDEX_SUFFIX = ".keys"
NEW_INDEX_SUFFIX = ".keys.new"
"""Of an index of keys that is being written."""


def key_index_name(base: int) -> str:
    """Return the name, in the storage, of the index of a segment's keys."""
    return f"log/{base:020d}{INDEX_SUFFIX}"


class StorageFull(OSError):
    """No space for another segment; the text names the folder, the free bytes and the reserve."""


class FolderInUse(OSError):
    """Another broker holds the folder."""


class DiskUsage(NamedTuple):
    """The usage of a disk, in bytes."""

    used: int
    """Without spare segments, which are reused."""
    all: int
    """The size of the disk; 0 where that is unknown."""

    @property
    def percent(self) -> float:
        """The used percentage."""
        return 100 * self.used / self.all if self.all else 0.0


class Segment(Protocol):
    """A file of the log: positions `base` up to `base + capacity`."""

    base: int
    capacity: int

    @property
    def view(self) -> memoryview:
        """All its bytes, read-only and always current."""

    def write(self, data: memoryview | bytes | bytearray, at: int) -> None:
        """Write all of `data` at byte `at` of the segment. Raises OSError."""

    def flush(self) -> None:
        """Make written bytes survive a power cut; do nothing if the segment was retired meanwhile.

        May run in another thread. Raises OSError.
        """


class Storage(Protocol):
    """The files that the log needs."""

    def segments(self) -> list[Segment]:
        """Open the existing segments, by base position."""

    def create(self, base: int, capacity: int) -> Segment:
        """Create a segment, from a spare where one fits. Raises StorageFull."""

    def sealed(self, segment: Segment, *, has_properties: bool) -> None:
        """Note that a segment is full, and whether messages in it may have properties."""

    def reserve(self, capacity: int, count: int) -> None:
        """Keep at least `count` spares. Raises StorageFull."""

    def retire(self, segment: Segment) -> None:
        """Remove a segment: keep it as a spare, or free its bytes."""

    def discard(self, segment: Segment) -> None:
        """Remove a segment durably, without a spare, in which its records would be good again."""

    def allow_spares(self, more: int) -> None:
        """Keep up to `more` spares above the usual count, and delete the others."""

    def fill(self) -> DiskUsage:
        """Return the usage of the limit, or without one of the file system. Raises OSError."""

    def read(self, name: str) -> bytes | None:
        """Read a small file; None if it does not exist."""

    def replace(self, name: str, data: bytes) -> None:
        """Replace a small file atomically and durably."""

    def remove(self, name: str) -> None:
        """Delete a small file if it exists."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder of the storage."""

    def write_at(self, name: str, data: bytes, at: int) -> None:
        """Write into a file that can be rebuilt, such as an index."""

    def truncate(self, name: str, length_bytes: int) -> None:
        """Truncate such a file."""

    def sync(self, name: str) -> None:
        """Make a file written by `write_at` durable."""

    def map(self, name: str) -> memoryview | None:
        """Return a file's content as it is now, mapped if possible; None if there is none."""

    def close(self) -> None:
        """Release all resources."""


def forget_pages(view: memoryview) -> None:
    """Free the memory through which a mapped file was read; it stays in the page cache."""
    if isinstance(view.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        view.obj.madvise(mmap.MADV_DONTNEED)


class DiskSegment:
    """A segment on a real disk."""

    def __init__(self, path: Path, base: int, fd: int) -> None:
        self.path = path
        self.key_index = path.with_suffix(INDEX_SUFFIX)
        self.base = base
        self.capacity = os.fstat(fd).st_size
        self._fd = fd
        self._map = mmap.mmap(fd, self.capacity, prot=mmap.PROT_READ)
        self.view = memoryview(self._map)
        self._closed = False
        self._closing = threading.Lock()

    def write(self, data: memoryview | bytes | bytearray, at: int) -> None:
        """Write all of `data`; the kernel may take it in pieces."""
        length = len(data)
        assert at + length <= self.capacity
        written = os.pwrite(self._fd, data, at)
        if written == length:
            return
        while written < len(data):
            data = memoryview(data)[written:]
            at += written
            written = os.pwrite(self._fd, data, at)

    def flush(self) -> None:
        """Call fdatasync, unless the file was closed: its descriptor may be another file's."""
        with self._closing:
            if not self._closed:
                os.fdatasync(self._fd)

    def close(self) -> bool:
        """Unmap and close. Returns False, and keeps the mapping, while a view is in use."""
        with self._closing:
            self._closed = True
            os.close(self._fd)
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            return False
        return True


class DiskStorage:
    """A data folder, created if it does not exist. Raises FolderInUse: another broker runs on it.

    Args:
        keep_free_bytes: minimum of free disk space after a segment is created.
        max_bytes: maximum size of the folder's files after a segment is created; 0 for no limit.
        spares: the number of segments to keep for reuse; others are deleted.
    """

    def __init__(
        self, folder: Path, *, keep_free_bytes: int = 0, max_bytes: int = 0, spares: int = 2
    ) -> None:
        self.folder = folder
        self._log = folder / "log"
        for path in (folder, self._log, folder / "index"):
            make_private_folder(path)
        self._lock = self._take_lock(folder / "martlet.lock")
        self._opened: set[DiskSegment] = set()
        self.on_sealed: Callable[[Path, bool], None] = lambda path, has_properties: None
        """Called with the path of a full segment, and whether its messages may have properties."""
        self._keep_free_bytes = keep_free_bytes
        self._max_bytes = max_bytes
        self._usual_spares = self._max_spares = spares
        self._remove_indexes()
        # Files beside the log are written in another thread, and may take a spare's room.
        self._spares_lock = threading.Lock()
        self._spares = sorted(self._log.glob("*.spare"))
        self._spare_number = max((int(p.stem) for p in self._spares), default=0)

    def _remove_indexes(self) -> None:
        """Remove indexes of keys that a crash has left incomplete, or without their segment."""
        for path in self._log.glob(f"*{NEW_INDEX_SUFFIX}"):
            path.unlink()
        for path in self._log.glob(f"*{INDEX_SUFFIX}"):
            if not path.with_suffix(".log").exists():
                path.unlink()

    def _take_lock(self, path: Path) -> int:
        fd = private_opener(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise FolderInUse(
                f"the folder {self.folder} is in use by another broker (process {holder}): stop it,"
                " or give this one another --data-path"
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def segments(self) -> list[Segment]:
        """Open every segment; remove empty files, left by a crash during their creation."""
        segments: list[Segment] = []
        for path in sorted(self._log.glob("*.log")):
            if path.stat().st_size == 0:
                path.unlink()
                continue
            segments.append(self._open(path, int(path.stem)))
        return segments

    def sealed(self, segment: Segment, *, has_properties: bool) -> None:
        """Call `on_sealed`."""
        assert isinstance(segment, DiskSegment)
        self.on_sealed(segment.path, has_properties)

    def _open(self, path: Path, base: int) -> DiskSegment:
        segment = DiskSegment(path, base, os.open(path, os.O_RDWR | os.O_CLOEXEC))
        self._opened.add(segment)
        return segment

    def create(self, base: int, capacity: int) -> Segment:
        """Rename a spare of that capacity or allocate a file."""
        assert base % 8 == 0 and capacity > 0
        path = self._log / f"{base:020d}.log"
        with self._spares_lock:
            if len(self._spares) == 1:
                self._keep_last_spare()
            # The last that was retired: its pages are the most likely to be in memory still.
            for number in range(len(self._spares) - 1, -1, -1):
                spare = self._spares[number]
                if spare.stat().st_size == capacity:
                    del self._spares[number]
                    os.rename(spare, path)
                    break
            else:
                # Renamed only once it is allocated: a broker that is killed here leaves a spare.
                allocated = self._spare_path()
                self._allocate(allocated, capacity)
                os.rename(allocated, path)
        self._sync_folder(self._log)
        return self._open(path, base)

    def reserve(self, capacity: int, count: int) -> None:
        """Allocate spares until there are enough of that capacity, and delete others."""
        with self._spares_lock:
            for spare in [s for s in self._spares if s.stat().st_size != capacity]:
                self._spares.remove(spare)
                spare.unlink()
            for _ in range(count - len(self._spares)):
                path = self._spare_path()
                self._allocate(path, capacity)
                self._spares.append(path)

    def _keep_last_spare(self) -> None:
        """Raise StorageFull where the next checkpoint, which frees segments, may need the space."""
        free = self._free_bytes()
        if free < BESIDE_BYTES:
            raise StorageFull(
                errno.ENOSPC,
                f"{free} bytes are free in {self.folder}, and the last spare segment is kept for"
                " the next checkpoint",
            )

    def _free_bytes(self) -> int:
        disk = os.statvfs(self._log)
        return disk.f_bavail * disk.f_frsize

    def room_bytes(self) -> int:
        """Return the bytes of the disk that the folder's files take, and those that are free."""
        folders = (self.folder, self._log, self.folder / "index")
        files = [path for folder in folders for path in folder.iterdir() if path.is_file()]
        return sum(path.stat().st_blocks for path in files) * 512 + self._free_bytes()

    def has_segments(self) -> bool:
        """Return whether the folder has a log."""
        return any(self._log.glob("*.log"))

    def _spare_path(self) -> Path:
        self._spare_number += 1
        return self._log / f"{self._spare_number}.spare"

    def check_room(self, size_bytes: int, thing: str = "a segment") -> int:
        """Check that there is room for a file. Returns the free bytes. Raises StorageFull."""
        free = self._free_bytes()
        no_room = f"no room for {thing} of {readable_size(size_bytes)} in {self.folder}"
        if free - size_bytes < self._keep_free_bytes:
            raise StorageFull(
                errno.ENOSPC,
                f"{no_room}: {readable_size(free)} are free and"
                f" {readable_size(self._keep_free_bytes)} must stay free (--min-free-bytes)",
            )
        if self._max_bytes:
            used = self._used_bytes()
            if used + size_bytes > self._max_bytes:
                raise StorageFull(
                    errno.EDQUOT,
                    f"{no_room}: its files take {readable_size(used)} and may take"
                    f" {readable_size(self._max_bytes)} (--max-disk-bytes)",
                )
        return free

    def _allocate(self, path: Path, capacity: int) -> None:
        free = self.check_room(capacity)
        fd = private_opener(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(fd, 0, capacity)
        except OSError as error:
            path.unlink()
            if error.errno not in (*FULL, errno.EFBIG):
                raise
            raise StorageFull(
                error.errno,
                f"no room for a segment of {readable_size(capacity)} in {self.folder}:"
                f" {readable_size(free)} are free ({os.strerror(error.errno)})",
            ) from error
        finally:
            os.close(fd)

    def _used_bytes(self) -> int:
        """Return the bytes of the segments, spares and indexes; other files are small."""
        used = 0
        for folder in (self._log, self.folder / "index"):
            with os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        used += entry.stat().st_size
        return used

    def retire(self, segment: Segment) -> None:
        """Keep the file as a spare unless there are enough, or its bytes are still read."""
        assert isinstance(segment, DiskSegment)
        self._opened.discard(segment)
        segment.key_index.unlink(missing_ok=True)
        unseen = segment.close()
        with self._spares_lock:
            if unseen and len(self._spares) < self._max_spares:
                spare = self._spare_path()
                os.rename(segment.path, spare)
                self._spares.append(spare)
            else:
                segment.path.unlink()

    def discard(self, segment: Segment) -> None:
        """Unlink the file, fsync the folder."""
        assert isinstance(segment, DiskSegment)
        self._opened.discard(segment)
        segment.key_index.unlink(missing_ok=True)
        segment.close()
        segment.path.unlink()
        self._sync_folder(self._log)

    def spare_sizes(self) -> list[int]:
        """Return the allocated bytes of each spare."""
        with self._spares_lock:
            return [spare.stat().st_size for spare in self._spares]

    def allow_spares(self, more: int) -> None:
        """Delete excess spares, the least recently retired first."""
        with self._spares_lock:
            self._max_spares = self._usual_spares + more
            while len(self._spares) > self._max_spares:
                self._spares.pop(0).unlink()

    def fill(self) -> DiskUsage:
        """Return the usage of `max_bytes` if set; else of the file system, as df shows it."""
        spares = sum(self.spare_sizes())
        if self._max_bytes:
            return DiskUsage(max(0, self._used_bytes() - spares), self._max_bytes)
        disk = os.statvfs(self._log)
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        return DiskUsage(max(0, used - spares), used + disk.f_bavail * disk.f_frsize)

    def _with_freed_space(self, write: Callable[[], None]) -> None:
        """Write a file beside the log; on a full disk, delete spares until it fits: a checkpoint is
        such a file, and frees segments.
        """
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in FULL or not self._free_spare():
                    raise

    def _free_spare(self) -> bool:
        with self._spares_lock:
            if not self._spares:
                return False
            self._spares.pop().unlink()
        return True

    def read(self, name: str) -> bytes | None:
        """Read a small file."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, name: str, data: bytes) -> None:
        """Write beside it, fsync, rename, fsync the folder."""
        self._with_freed_space(lambda: self._replace(name, data))

    def _replace(self, name: str, data: bytes) -> None:
        path = self.folder / name
        make_private_folder(path.parent)
        beside = path.with_name(path.name + ".new")
        with open(beside, "wb", opener=private_opener) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        self._sync_folder(path.parent)

    def remove(self, name: str) -> None:
        """Unlink."""
        (self.folder / name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        """List a folder."""
        with suppress(FileNotFoundError):
            return sorted(path.name for path in (self.folder / folder).iterdir())
        return []

    def write_at(self, name: str, data: bytes, at: int) -> None:
        """Open, write, close: index files are many and rarely written."""
        self._with_freed_space(lambda: self._write_at(name, data, at))

    def _write_at(self, name: str, data: bytes, at: int) -> None:
        fd = private_opener(self.folder / name, os.O_RDWR | os.O_CREAT)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, at)
                view, at = view[written:], at + written
        finally:
            os.close(fd)

    def truncate(self, name: str, length_bytes: int) -> None:
        """Truncate a file."""
        os.truncate(self.folder / name, length_bytes)

    def sync(self, name: str) -> None:
        """Call fdatasync."""
        fd = os.open(self.folder / name, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def map(self, name: str) -> memoryview | None:
        """Map the file read-only."""
        try:
            fd = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            size = os.fstat(fd).st_size
            return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ) if size else b"")
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close the segments, and unlock the folder for another broker."""
        for segment in self._opened:
            segment.close()
        self._opened.clear()
        os.close(self._lock)

    @staticmethod
    def _sync_folder(folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
