"""Files and folders for their owner alone, as nsqd makes them: they hold messages and secrets.

A folder with the set-group-ID bit (``chmod g+s``) is shared on purpose: what is made in it, its
group may read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

_ALL = 0o777
_PRIVATE = 0o700
_SHARED = 0o750


def private_opener(path: str | Path, flags: int) -> int:
    """Open a file, for `open` or `os.fdopen`; one that is made is private."""
    allowed = _allowed(Path(path).parent)
    return os.open(path, flags | os.O_CLOEXEC, 0o666 & allowed)


def make_private_folder(path: Path) -> None:
    """Make a folder, unless it exists; its parents are made as the process makes folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=_allowed(path.parent), exist_ok=True)


def make_private(paths: Iterable[Path]) -> list[Path]:
    """Take the rights of others from files and folders that exist; return those that had any.

    Links, and what belongs to another user, stay as they are.
    """
    changed = []
    for path in paths:
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(status.st_mode)
        excess = mode & _ALL & ~_allowed(path.parent)
        if excess and not stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid():
            os.chmod(path, mode & ~excess)
            changed.append(path)
    return changed


def _allowed(folder: Path) -> int:
    """Return the rights that there may be in a folder."""
    return _SHARED if os.stat(folder).st_mode & stat.S_ISGID else _PRIVATE
