"""The store: a folder on some file system, local or behind a URL, in which an archive lies.

Paths are relative to the folder, with slashes.  What an archive needs of a file system beside
reading and writing is little: a file that is made only if it is not there yet, a rename, and a
flush.  A local folder has all of them and a lock and an exchange of two folders besides; HDFS has
the rename; an object store has none, so there a rename is a copy, and one archive may be written by
one process at a time only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyarrow import fs

from martlet.pipeline.archive.atomic_swap import exchange

LOCK = "_martlet/lock"


class Store:
    """A folder on any file system that pyarrow or fsspec knows.

    Args:
        system: the file system.
        root: the folder's path on it.
        location: what `at` makes the same of, elsewhere too.
    """

    is_local = False

    def __init__(self, system: fs.FileSystem, root: str, location: str) -> None:
        self.system = system
        self.root = root.rstrip("/")
        self.location = location

    @staticmethod
    def at(location: str) -> Store:
        """The store at a path of this machine, ``file://``, ``hdfs://``, ``s3://``, or other URL.

        Raises:
            ValueError: neither pyarrow nor fsspec knows such URLs.
        """
        if "://" not in location:
            return LocalStore(Path(location))
        try:
            system, root = fs.FileSystem.from_uri(location)
        except (ValueError, NotImplementedError) as error:
            return Store(*_by_fsspec(location, error), location)
        return (
            LocalStore(Path(root))
            if isinstance(system, fs.LocalFileSystem)
            else Store(system, root, location)
        )

    def path(self, name: str) -> str:
        """The path on the file system."""
        return f"{self.root}/{name}" if name else self.root

    def read(self, name: str) -> bytes | None:
        """A small file; None if there is none."""
        if self.system.get_file_info(self.path(name)).type != fs.FileType.File:
            return None
        with self.system.open_input_stream(self.path(name)) as file:
            content: bytes = file.read()
        return content

    def create(self, name: str, content: bytes) -> bool:
        """Write a small file, whole or not at all; False if there is one of that name already."""
        if self.system.get_file_info(self.path(name)).type != fs.FileType.NotFound:
            return False
        if self._renames:
            draft = f"{name}.{uuid.uuid4().hex[:8]}.tmp"
            self._write(draft, content)
            try:
                self.system.move(self.path(draft), self.path(name))
            except OSError:
                # Another was faster: a rename onto a file fails there.
                self.remove(draft)
                return False
        else:
            self._write(name, content)
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file in the place of what was there."""
        if self._renames:
            self.remove(name)
        self._write(name, content)

    def move(self, source: str, target: str) -> None:
        """Rename a file; to do it again does no harm.

        Raises:
            FileNotFoundError: there is neither of them.
        """
        source_info, target_info = self.system.get_file_info([self.path(source), self.path(target)])
        if source_info.type == fs.FileType.NotFound:
            if target_info.type == fs.FileType.NotFound:
                raise FileNotFoundError(f"there is neither {source} nor {target} in {self.root}")
            return
        self._make_parent(target)
        self.system.move(self.path(source), self.path(target))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self.system.delete_file(self.path(name))

    def remove_tree(self, name: str) -> None:
        """Remove a folder with all in it, if it is there."""
        with suppress(FileNotFoundError):
            self.system.delete_dir(self.path(name))

    def files(self, name: str, *, recursive: bool = False) -> dict[str, int]:
        """The files in a folder and their sizes in bytes, in the order of their names."""
        selector = fs.FileSelector(self.path(name), allow_not_found=True, recursive=recursive)
        skipped = len(self.root) + 1
        found = {
            info.path[skipped:]: info.size
            for info in self.system.get_file_info(selector)
            if info.type == fs.FileType.File
        }
        return dict(sorted(found.items()))

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of the files that are not there."""
        found = self.system.get_file_info([self.path(name) for name in names])
        return [
            name for name, info in zip(names, found, strict=True) if info.type != fs.FileType.File
        ]

    def folders(self, name: str) -> list[str]:
        """The folders in a folder."""
        selector = fs.FileSelector(self.path(name), allow_not_found=True)
        skipped = len(self.root) + 1
        return sorted(
            info.path[skipped:].rstrip("/")
            for info in self.system.get_file_info(selector)
            if info.type == fs.FileType.Directory
        )

    def make_folder(self, name: str) -> None:
        """Make a folder, and those above it."""
        if self._renames:
            self.system.create_dir(self.path(name), recursive=True)

    def sink(self, name: str) -> Any:
        """A new file to write to, as pyarrow wants it."""
        self._make_parent(name)
        return self.system.open_output_stream(self.path(name))

    def flush(self, name: str) -> None:
        """Wait until a file is on the disk: here a file that was closed is as safe as it gets."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody else writes to the archive meanwhile; here that is the user's to see to."""
        yield

    def swap(self, new: str, old: str) -> bool:
        """Let two folders change names in one step; False where there is no such step."""
        return False

    def link(self, source: str, target: str) -> None:
        """Let a file be found in two places, where folders can be swapped."""
        raise NotImplementedError

    @property
    def _renames(self) -> bool:
        """Whether there are folders and renames, which object stores do not have."""
        return self.system.type_name not in ("s3", "gcs", "abfs")

    def _make_parent(self, name: str) -> None:
        self.make_folder(name.rpartition("/")[0])

    def _write(self, name: str, content: bytes) -> None:
        with self.sink(name) as file:
            file.write(content)


class LocalStore(Store):
    """A folder of this machine, or one that is mounted here."""

    is_local = True

    def __init__(self, root: Path) -> None:
        self.folder = root.absolute()
        super().__init__(fs.LocalFileSystem(), str(self.folder), str(self.folder))

    def create(self, name: str, content: bytes) -> bool:
        """Write a small file, whole, flushed, or not at all; False if there is one already."""
        draft = self._draft(name, content)
        try:
            # Fails if there is one, unlike a rename.
            os.link(draft, self.folder / name)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        _flush_folder((self.folder / name).parent)
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file in the place of what was there, in one step."""
        self._draft(name, content).rename(self.folder / name)

    def move(self, source: str, target: str) -> None:
        """Rename a file; to do it again does no harm."""
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
        """Wait until a file is on the disk."""
        with (self.folder / name).open("rb") as file:
            os.fdatasync(file.fileno())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody else writes to the archive meanwhile."""
        path = self.folder / LOCK
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def swap(self, new: str, old: str) -> bool:
        """Let two folders change names in one step; False where there is no such step."""
        return exchange(self.folder / new, self.folder / old)

    def link(self, source: str, target: str) -> None:
        """Let a file be found in two places."""
        os.link(self.folder / source, self.folder / target)

    def _draft(self, name: str, content: bytes) -> Path:
        """A flushed file with that content, which is to get that name."""
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
