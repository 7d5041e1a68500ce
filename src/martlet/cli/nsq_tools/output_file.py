"""The output files of a topic's messages: names, rotation and compression.

A file's name consists of the topic, the host and the time; when that gives another name, or the
file is old or large enough, the next file begins. ``<REV>`` numbers files that would have the same
name, so none is ever overwritten. Files may be written in one folder and moved to another when
complete.

A compressed file is a sequence of gzip members, or of zstd frames, and each is closed before its
messages are finished: finished messages are readable, however the writer ended. If a write fails,
as on a full disk, the partial member is truncated, since readers stop at a torn one. The same holds
for lines of a plain file without another writer. Any other file that is continued, and ends within
a line, gets a newline first.
"""

from __future__ import annotations

import errno
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import cramjam

from martlet.options.flag import OptionError, Size, option
from martlet.options.options import Options
from martlet.text import SECOND_NS

_GZIP = 31
"""zlib's window bits for a gzip member."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """How files are named, rotated and compressed."""

    output_dir: str = option("/tmp", "the folder of finished files", section="files")
    work_dir: str = option("", "the folder of incomplete files (default: the output folder)")
    filename_format: str = option(
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "names of files; <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> are replaced",
    )
    datetime_format: str = option("%Y-%m-%d_%H", "strftime's format for <DATETIME>")
    host_identifier: str = option(
        "",
        "the value of <HOST>; <SHORT_HOST> and <HOSTNAME> in it are replaced"
        " (default: the host's short name)",
    )
    gzip: bool = option(False, "compress the files with gzip")
    gzip_level: int = option(6, "from 1, the fastest, to 9, the smallest", limits=(1, 9))
    zstd: bool = option(False, "compress the files with zstd")
    zstd_level: int = option(3, "from 1, the fastest, to 19, the smallest", limits=(1, 19))
    rotate_size: Size = option(0, "maximum bytes of a file; 0: no limit", limits=(0, None))
    rotate_interval_ns: int = option(0, "maximum age of a file; 0: no limit", limits=(0, None))
    sync_interval_ns: int = option(
        30 * SECOND_NS,
        "the interval of checks for due rotations (--rotate-interval, --datetime-format)"
        " while no messages arrive; messages are flushed to disk and finished at once, batch by"
        " batch, without waiting for an interval",
        limits=(1, None),
    )
    skip_empty_files: bool = option(False, "create a file only when there is a message for it")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gzip and self.zstd:
            raise OptionError("choose one of --gzip and --zstd")
        if self.counts_files and "<REV>" not in self.filename_format:
            raise OptionError(
                "--filename-format needs a <REV> when files are compressed, rotated or moved, so"
                " that none takes the place of another"
            )

    def make_folders(self) -> None:
        """Create the folders. Raises OptionError."""
        for flag, folder in (("output-dir", self.output_dir), ("work-dir", self.work_path)):
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OptionError(
                    f"--{flag}={folder} cannot be created: {error.strerror}; give another folder"
                ) from None

    @property
    def work_path(self) -> str:
        """The folder in which files are written."""
        return self.work_dir or self.output_dir

    @property
    def compresses(self) -> bool:
        """True if files are compressed."""
        return self.gzip or self.zstd

    @property
    def suffix(self) -> str:
        """The end of the names of compressed files."""
        return ".gz" if self.gzip else ".zst" if self.zstd else ""

    @property
    def counts_files(self) -> bool:
        """True if several files may want one name."""
        rotates = self.rotate_size > 0 or self.rotate_interval_ns > 0
        return self.compresses or rotates or self.work_path != self.output_dir


class OutputMember(Protocol):
    """A stretch of a compressed file that can be read by itself."""

    def compress(self, data: bytes) -> bytes:
        """Take more bytes in; return what is to be written for them, as far as it is ready."""

    def flush(self) -> bytes:
        """End the member; return what is left to be written."""


class ZstdFrame:
    """A frame of zstd, written in one piece when it ends."""

    def __init__(self, level: int) -> None:
        self._compressor = cramjam.zstd.Compressor(level)

    def compress(self, data: bytes) -> bytes:
        """Take more bytes in."""
        self._compressor.compress(data)
        return b""

    def flush(self) -> bytes:
        """End the frame and return it."""
        return bytes(self._compressor.finish())


class Output:
    """The files of one topic."""

    def __init__(
        self,
        options: OutputOptions,
        topic: str,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._elapsed = elapsed
        self._log = log
        self._format = _name_format(options, topic)
        self._file: int | None = None
        self._path = Path()
        self._name = ""
        self._revision = 0
        self._opened_s = 0.0
        self._length_bytes = 0
        self._member: OutputMember | None = None
        self._intact_bytes = 0
        self._is_torn = False
        self._is_alone = bool(options.compresses or options.rotate_interval_ns)
        """Its files have no other writer."""

    # names

    def _wanted_name(self) -> str:
        moment = time.strftime(self._options.datetime_format, time.localtime(self._clock()))
        return self._format.replace("<DATETIME>", moment)

    def _place(self, folder: str) -> Path:
        return Path(folder, self._name.replace("<REV>", f"-{self._revision:06d}"))

    @property
    def is_due(self) -> bool:
        """True if the next message belongs into another file."""
        options = self._options
        if self._file is None or self._wanted_name() != self._name:
            return True
        age_ns = (self._elapsed() - self._opened_s) * 1e9
        if options.rotate_interval_ns and age_ns > options.rotate_interval_ns:
            return True
        return bool(options.rotate_size) and self._length_bytes > options.rotate_size

    # writing

    def write(self, data: bytes) -> None:
        """Write bytes into the file of this moment, which is begun where it is due."""
        if self.is_due:
            self.begin()
        assert self._file is not None
        self._length_bytes += len(data)
        if self._options.compresses:
            if self._member is None:
                self._member = self._begin_member()
            data = self._member.compress(data)
        with self._cut_where_torn():
            _write_all(self._file, data, self._path)

    def _begin_member(self) -> OutputMember:
        if self._options.zstd:
            return ZstdFrame(self._options.zstd_level)
        return zlib.compressobj(self._options.gzip_level, wbits=_GZIP)

    def sync(self) -> None:
        """Make what was written durable and readable."""
        if self._file is None:
            return
        with self._cut_where_torn():
            if self._member is not None:
                member, self._member = self._member, None
                _write_all(self._file, member.flush(), self._path)
            with _naming(self._path):
                os.fsync(self._file)
        self._intact_bytes = os.lseek(self._file, 0, os.SEEK_CUR)

    @contextmanager
    def _cut_where_torn(self) -> Iterator[None]:
        """Leave nothing behind of what cannot be written, or not be flushed. Raises OSError."""
        try:
            yield
        except OSError:
            self._member = None
            if self._is_alone:
                assert self._file is not None
                self._is_torn = True
                os.ftruncate(self._file, self._intact_bytes)
                os.lseek(self._file, self._intact_bytes, os.SEEK_SET)
                self._is_torn = False
            raise

    def begin(self) -> None:
        """Begin the next file."""
        self.close()
        name = self._wanted_name()
        self._revision = 0 if name != self._name else self._revision + 1
        self._name = name
        while not self._open():
            self._revision += 1
        self._opened_s = self._elapsed()

    def _open(self) -> bool:
        """Open the file of this name and number. False where that is taken."""
        options = self._options
        path = self._place(options.work_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if options.work_path != options.output_dir:
            target = self._place(options.output_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                return False
        mode = os.O_EXCL if self._is_alone else os.O_APPEND
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | mode
        try:
            file = os.open(path, flags, 0o666)
        except FileExistsError:
            return False
        length_bytes = os.fstat(file).st_size
        if options.rotate_size and length_bytes > options.rotate_size:
            os.close(file)
            return False
        if length_bytes and os.pread(file, 1, length_bytes - 1) != b"\n":
            _write_all(file, b"\n", path)
        self._file, self._path, self._length_bytes = file, path, length_bytes
        self._intact_bytes, self._is_torn = 0, False
        self._log(f"opening {path}")
        return True

    def close(self) -> None:
        """End the file, and move it to where finished ones are. Raises OSError: it cannot be moved,
        or what was written last cannot be flushed, and is cut off.
        """
        if self._file is None:
            return
        try:
            self.sync()
        finally:
            os.close(self._file)
            self._file = None
            if not self._is_torn:
                self._put_away()

    def _put_away(self) -> None:
        options = self._options
        if options.work_path == options.output_dir:
            return
        while True:
            target = self._place(options.output_dir)
            try:
                _move(self._path, target)
                break
            except FileExistsError:
                self._revision += 1
        self._log(f"moved {self._path} to {target}")


def _move(path: Path, target: Path) -> None:
    """Give a file another name, but never one that is taken. Raises FileExistsError."""
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise OSError(
            errno.EXDEV, f"--work-dir and --output-dir must be on one disk: {path} and {target}"
        ) from error
    os.unlink(path)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in an error of writing it: the system, which knows its number, does not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _write_all(file: int, data: bytes, path: Path) -> None:
    view = memoryview(data)
    with _naming(path):
        while view:
            view = view[os.write(file, view) :]


def _name_format(options: OutputOptions, topic: str) -> str:
    hostname = socket.gethostname()
    short = hostname.split(".")[0]
    host = options.host_identifier or "<SHORT_HOST>"
    host = host.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname)
    name = options.filename_format
    if not options.counts_files:
        name = name.replace("<REV>", "")
    name = name.replace("<TOPIC>", topic).replace("<HOST>", host)
    name = name.replace("<PID>", str(os.getpid()))
    return name if name.endswith(options.suffix) else name + options.suffix
