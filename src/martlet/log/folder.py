"""A data folder, opened read-only, with or without a broker running on it.

Nothing is locked and nothing is written.  A running broker may retire a segment, or write it again
from its beginning under another base, while it is read: then the bytes read are worthless, and
`ReadOnlySegment.gone` is True.
"""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

from martlet.log.cut import FOLDER, KEPT_FILE, cut_position
from martlet.log.storage import Segment

_LOCKS = Path("/proc/locks")
_LOCK_READS = 3
_NO_END = 1 << 64
"""Behind all positions."""


def read_boot_id() -> str:
    """Return what changes with each boot of the machine. Raises OSError."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def folder_identity(folder: Path) -> str:
    """Return where a folder is: the same of two paths if they lead to one folder, on one machine.

    A path alone may lead to a copy on another machine. Empty where the system does not say.
    """
    try:
        boot = read_boot_id()
    except OSError:
        return ""
    status = folder.stat()
    return f"{boot}:{status.st_dev}:{status.st_ino}"


class NoLog(Exception):
    """The folder holds no Martlet log; the text says what is missing."""


class ReadOnlySegment:
    """A segment's file, mapped read-only, up to a position."""

    def __init__(self, path: Path, end: int = _NO_END) -> None:
        self.path = path
        self.base = int(path.stem.rpartition("-")[2])
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            self.capacity = min(status.st_size, end - self.base)
            self._inode = status.st_ino
            self.view = memoryview(mmap.mmap(file.fileno(), self.capacity, prot=mmap.PROT_READ))

    @property
    def gone(self) -> bool:
        """Whether the file is no longer this segment's."""
        try:
            return self.path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True

    def write(self, data: memoryview | bytes | bytearray, at: int) -> None:
        """Raise PermissionError."""
        raise PermissionError(f"{self.path} is opened read-only")

    def flush(self) -> None:
        """Do nothing, since nothing was written."""


class Folder:
    """A data folder, whose log is read up to `end`; by default as far as it goes, or, while its end
    is being cut off, as far as it will go. Raises NoLog: it holds no log.
    """

    def __init__(self, path: Path, end: int = _NO_END) -> None:
        self.path = path
        self._end = end
        if not path.is_dir():
            raise NoLog(f"{path} is not a folder")
        if not (path / "log").is_dir():
            raise NoLog(f"{path} holds no log: there is no folder {path / 'log'}")

    @property
    def end(self) -> int:
        """The log is read up to this position."""
        cut_at = cut_position(self)
        return self._end if cut_at is None else min(self._end, cut_at)

    def segments(self) -> list[Segment]:
        """Return the existing segments, by base position; empty files are left out."""
        segments: list[Segment] = []
        end = self.end
        for path in sorted((self.path / "log").glob("*.log")):
            try:
                if path.stat().st_size and int(path.stem) < end:
                    segments.append(ReadOnlySegment(path, end))
            except FileNotFoundError:  # retired just now
                continue
        return segments

    def read(self, name: str) -> bytes | None:
        """Read a file; None where it is missing."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def map(self, name: str) -> memoryview | None:
        """Map a file read-only as it is now; None where it is missing or empty."""
        try:
            with open(self.path / name, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if not size:
                    return None
                return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
        except FileNotFoundError:
            return None

    @property
    def in_use(self) -> bool:
        """Whether a broker runs on the folder, according to `/proc/locks`.

        The kernel gives that file out a page at a time: a lock released between two pages moves
        the others up, and hides one. So a missing lock is looked up again.
        """
        try:
            status = (self.path / "martlet.lock").stat()
        except OSError:
            return False
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        return any(_is_locked(device) for _ in range(_LOCK_READS))


def _is_locked(device: str) -> bool:
    """Look for the lock of a file, as `major:minor:inode`."""
    try:
        locks = _LOCKS.read_text(encoding="ascii")
    except OSError:
        return False
    return any(
        fields[1] == "FLOCK" and fields[5] == device
        for fields in map(str.split, locks.splitlines())
        if len(fields) > 5
    )


class CutFile(Folder):
    """What a failover cut off the log of a data folder: a file that `martlet.log.cut` has kept. Its
    small files are the data folder's. Raises NoLog: it is no such file.
    """

    def __init__(self, path: Path) -> None:
        if not re.fullmatch(KEPT_FILE, path.name) or not path.stat().st_size:
            raise NoLog(f"{path} is no file that a failover cut off: name one of DATA/{FOLDER}")
        super().__init__(path.absolute().parent.parent)
        self._file = path

    def segments(self) -> list[Segment]:
        """Return what was cut off, as one segment."""
        return [ReadOnlySegment(self._file)]
