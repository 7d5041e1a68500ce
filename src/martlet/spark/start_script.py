"""Start scripts: run another program with changed arguments or environment.

Spark takes a program as a path, without arguments.  So a script lies in the user's cache, in a
folder named after its content: it is written once and never changed.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path


class NoShim(Exception):
    """The script neither exists nor can be written."""


def shim(name: str, script: str) -> Path:
    """Return the path of a program `bin/name` that is this script; write it if missing.

    Raises:
        NoShim: the user's cache cannot be written, or another file is in its place.
    """
    cache = _cache_folder()
    folder = cache / f"{name}-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    program = folder / "bin" / name
    if not _is_ours(program, script):
        # Written under another name, then renamed: of two that start at once, none sees half of it.
        new = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=cache))
        (new / "bin").mkdir()
        made = new / "bin" / name
        made.write_text(script)
        made.chmod(0o755)
        new.chmod(0o755)
        try:
            new.rename(folder)
        except OSError:
            shutil.rmtree(new)
            if not _is_ours(program, script):
                raise NoShim(f"{folder} is not what Martlet put there; remove it") from None
    return program


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "martlet"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NoShim(
            f"cannot make the folder {folder} ({error.strerror}), in which start scripts for "
            "Spark go; set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return folder


def _is_ours(file: Path, content: str) -> bool:
    """Return whether the file has this content, is executable, and only this user may write it."""
    try:
        status = file.stat()
        return (
            status.st_uid == os.geteuid()
            and status.st_mode & 0o122 == 0o100
            and file.read_text() == content
        )
    except OSError:
        return False
