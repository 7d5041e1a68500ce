"""A folder on any file system, local or behind a URL.

Paths are relative to the folder, with slashes.  Beside reads and writes, an archive needs an
exclusive create, a rename, and a flush.  A local folder has all of them, and also a lock and an
exchange of two folders; HDFS has the rename; an object store has none of them, so there a rename is
a copy, and only one process at a time may write to an archive.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyarrow import fs

LOCK = "_martlet/lock"
_MAX_KEY_BYTES = 1024
"""The maximum length of a path on object stores."""
_MAX_PATH_BYTES = 4095
_FILE_NAME_BYTES = 128
"""More than the name of an archive's file has."""
_NEW = ".new"
"""Ends the name of a file that is about to replace another one, which exists until it is whole."""
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NOT_THERE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV, errno.EPERM})
"""The errors of systems and file systems without the exchange."""


class Store:
    """A folder on any file system that pyarrow or fsspec knows.

    Args:
        root: the folder's path on it.
        location: the argument with which `at` opens the same folder, also on other machines.
    """

    def __init__(self, system: fs.FileSystem, root: str, location: str) -> None:
        self.system = system
        self.root = root.rstrip("/")
        self.location = location

    @staticmethod
    def at(location: str) -> Store:
        """Open the folder at a local path, ``file://``, ``hdfs://``, ``s3://``, or another URL.
        Raises ValueError: neither pyarrow nor fsspec knows the URL's scheme.
        """
        if "://" not in location:
            return LocalStore(Path(location))
        try:
            system, root = fs.FileSystem.from_uri(location)
        except (ValueError, NotImplementedError) as error:
            return Store(*_by_fsspec(location, error), location)
        if isinstance(system, fs.LocalFileSystem):
            return LocalStore(Path(root))
        return Store(system, root, location)

    def path(self, name: str) -> str:
        """Return the path on the file system."""
        return f"{self.root}/{name}" if name else self.root

    def read(self, name: str) -> bytes | None:
        """Read a small file; return None if it does not exist."""
        names = (name, name + _NEW) if self._renames else (name,)
        present = next((one for one in names if not self.missing([one])), None)
        if present is None:
            return None
        with self.system.open_input_stream(self.path(present)) as file:
            content: bytes = file.read()
        return content

    def create(self, name: str, content: bytes) -> bool:
        """Create a small file atomically; return False if it exists already."""
        if self.system.get_file_info(self.path(name)).type != fs.FileType.NotFound:
            return False
        if self._renames:
            draft = f"{name}.{uuid.uuid4().hex[:8]}.tmp"
            self._write(draft, content)
            try:
                self.system.move(self.path(draft), self.path(name))
            except OSError:
                # Another process has created it: a rename onto a file fails.
                self.remove(draft)
                return False
        else:
            self._write(name, content)
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file, replacing an existing one; a crash leaves one of the two."""
        if not self._renames:
            self._write(name, content)  # An object is replaced as one.
        elif not self.create(name, content):
            self._write(name + _NEW, content)
            self.remove(name)  # A rename onto a file fails. `read` takes the new one meanwhile.
            self.move(name + _NEW, name)

    def move(self, source: str, target: str) -> None:
        """Rename a file; do nothing if that was done already. Raises FileNotFoundError."""
        source_info, target_info = self.system.get_file_info([self.path(source), self.path(target)])
        if source_info.type == fs.FileType.NotFound:
            if target_info.type == fs.FileType.NotFound:
                raise FileNotFoundError(f"there is neither {source} nor {target} in {self.root}")
            return
        self._make_parent(target)
        self.system.move(self.path(source), self.path(target))

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with suppress(FileNotFoundError):
            self.system.delete_file(self.path(name))

    def remove_tree(self, name: str) -> None:
        """Remove a folder with all in it, if it is there."""
        with suppress(FileNotFoundError):
            self.system.delete_dir(self.path(name))

    def files(self, name: str, *, recursive: bool = False) -> dict[str, int]:
        """List the files in a folder and their sizes in bytes, sorted by name."""
        selector = fs.FileSelector(self.path(name), allow_not_found=True, recursive=recursive)
        skipped = len(self.root) + 1
        sizes = {
            info.path[skipped:]: info.size
            for info in self.system.get_file_info(selector)
            if info.type == fs.FileType.File
        }
        return dict(sorted(sizes.items()))

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the files that do not exist."""
        infos = self.system.get_file_info([self.path(name) for name in names])
        return [
            name for name, info in zip(names, infos, strict=True) if info.type != fs.FileType.File
        ]

    def folders(self, name: str) -> list[str]:
        """List the folders in a folder."""
        selector = fs.FileSelector(self.path(name), allow_not_found=True)
        skipped = len(self.root) + 1
        return sorted(
            info.path[skipped:].rstrip("/")
            for info in self.system.get_file_info(selector)
            if info.type == fs.FileType.Directory
        )

    def make_folder(self, name: str) -> None:
        """Create a folder and its parents."""
        if self._renames:
            self.system.create_dir(self.path(name), recursive=True)

    def sink(self, name: str) -> Any:
        """Open a new file for pyarrow to write to."""
        self._make_parent(name)
        return self.system.open_output_stream(self.path(name))

    def flush(self, name: str) -> None:
        """Do nothing: on these file systems a closed file is durable, or cannot be flushed."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Do nothing: without locks, the user must prevent concurrent writers."""
        yield

    @property
    def max_folder_bytes(self) -> int:
        """The maximum length of a folder's path in this one."""
        is_files = self.system.type_name in ("local", "hdfs")
        limit = _MAX_PATH_BYTES if is_files else _MAX_KEY_BYTES
        return limit - len(self.root.encode()) - _FILE_NAME_BYTES

    @property
    def _renames(self) -> bool:
        """Whether the file system has folders and renames; object stores do not."""
        return self.system.type_name not in ("s3", "gcs", "abfs")

    def _make_parent(self, name: str) -> None:
        self.make_folder(name.rpartition("/")[0])

    def _write(self, name: str, content: bytes) -> None:
        with self.sink(name) as file:
            file.write(content)


class LocalStore(Store):
    """A folder of this machine, or a mounted one."""

    def __init__(self, root: Path) -> None:
        self.folder = root.absolute()
        super().__init__(fs.LocalFileSystem(), str(self.folder), str(self.folder))

    def create(self, name: str, content: bytes) -> bool:
        """Create and flush a small file atomically; return False if it exists already."""
        draft = self._draft(name, content)
        try:
            # Unlike a rename, a link fails if the target exists.
            os.link(draft, self.folder / name)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        _flush_folder((self.folder / name).parent)
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file, replacing an existing one atomically."""
        self._draft(name, content).rename(self.folder / name)

    def move(self, source: str, target: str) -> None:
        """Rename a file; do nothing if that was done already."""
        to = self.folder / target
        try:
            try:
                os.rename(self.folder / source, to)
            except FileNotFoundError:
                to.parent.mkdir(parents=True, exist_ok=True)
                os.rename(self.folder / source, to)
        except FileNotFoundError:
            if not to.exists():
                raise

    def remove_tree(self, name: str) -> None:
        """Remove a folder with all in it, if it is there."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder / name)

    def flush(self, name: str) -> None:
        """Flush a file to disk."""
        with (self.folder / name).open("rb") as file:
            os.fdatasync(file.fileno())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the archive's lock, which excludes other writers."""
        path = self.folder / LOCK
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def swap(self, new: str, old: str) -> bool:
        """Exchange two folders atomically; return False if that is not supported."""
        return exchange(self.folder / new, self.folder / old)

    def link(self, source: str, target: str) -> None:
        """Link a file to a second path."""
        os.link(self.folder / source, self.folder / target)

    def _draft(self, name: str, content: bytes) -> Path:
        """Write and flush the content for a file of this name under a temporary name."""
        draft = self.folder / f"{name}.{uuid.uuid4().hex[:8]}.tmp"
        draft.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fdatasync(file.fileno())
        return draft


def _flush_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _by_fsspec(location: str, error: Exception) -> tuple[fs.FileSystem, str]:
    scheme = location.partition("://")[0]
    try:
        import fsspec
    except ImportError:
        raise ValueError(
            f"{location}: pyarrow knows no {scheme}:// ({error}); fsspec may, if it and its package"
            f" for {scheme} are installed"
        ) from None
    try:
        system, root = fsspec.core.url_to_fs(location)
    except (ValueError, ImportError) as trouble:
        raise ValueError(f"{location}: {trouble}") from trouble
    return fs.PyFileSystem(fs.FSSpecHandler(system)), root


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders atomically: a reader of either path sees one of the two.

    Return False if the system or the file system does not support it; raise OSError if the exchange
    failed otherwise. Linux has ``renameat2`` with RENAME_EXCHANGE; Python has no call for it.
    """
    call = _renameat2()
    if call is None:
        return False
    done = call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_THERE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    call.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    )
    call.restype = ctypes.c_int
    return call
