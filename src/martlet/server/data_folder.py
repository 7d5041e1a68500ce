"""The data folder of a broker: opened, or refused with the reason and the remedy."""

from __future__ import annotations

import errno
import json
import logging
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from martlet.log.checkpoint_file import NAME as CHECKPOINT
from martlet.log.cut import FOLDER as CUT
from martlet.log.storage import BESIDE_BYTES, DiskStorage, FolderInUse, Storage, StorageFull
from martlet.options import BrokerOptions
from martlet.private_files import make_private
from martlet.server.key_indexer import KeyIndexer
from martlet.text import readable_size

IDENTITY_NAME = "broker.json"
VERSION = 1
_FLAG = "--data-path"
_OF_NSQD = ("nsqd.dat", "*.diskqueue.*.dat*")
_NO_FOLDER = f"a file is where a folder has to be: move it away, or give another {_FLAG}"
_NOT_ALLOWED = (
    f"let the user that runs the broker write there (chown, chmod), or give another {_FLAG}"
)
_WAYS_OUT = {
    errno.ENOTDIR: _NO_FOLDER,
    errno.EEXIST: _NO_FOLDER,
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: f"its disk can only be read: mount it otherwise, or give another {_FLAG}",
    errno.ENOSPC: f"its disk is full: free some space, or give another {_FLAG}",
}
_SEGMENTS_TO_RUN = 2
"""One that is written, and one in reserve for the journal."""
_SEGMENTS_TO_GROW = 3
"""With one that messages go on in while consumers have not finished those of the first."""


class WrongVersion(OSError):
    """The folder was written by another version of Martlet."""


class NoIdentity(OSError):
    """The file holds no name; the text says what to do."""


class Unfinished(OSError):
    """An unfinished operation on the folder must end first; the text names it."""


def mark_unfinished(storage: Storage, why: str | None) -> None:
    """Keep brokers from starting on the folder, and record why; with None, allow it again."""
    content = json.loads(storage.read(IDENTITY_NAME) or b"{}")
    if content.get("unfinished") != why:
        content = {key: value for key, value in content.items() if key != "unfinished"}
        if why is not None:
            content["unfinished"] = why
        storage.replace(IDENTITY_NAME, json.dumps(content).encode())


def broker_identity(storage: Storage, fresh: str, *, to_finish: bool = False) -> str:
    """Return the folder's random name, which is `fresh` if it has none yet.

    Readers of the segment files compare it with the name that the broker reports, so that they
    never read another broker's log.

    Raises:
        WrongVersion: this version cannot read the folder's format. NoIdentity: the name cannot be
        read. Unfinished: it is marked so, and the caller is not the one `to_finish` it.
    """
    data = storage.read(IDENTITY_NAME)
    if data is None:
        content = {"broker": fresh, "version": VERSION}
        storage.replace(IDENTITY_NAME, json.dumps(content).encode())
        return fresh
    try:
        content = dict(json.loads(data))
        version, name = content["version"], str(content.get("broker", ""))
    except (ValueError, LookupError, TypeError) as error:
        raise NoIdentity(
            f"{IDENTITY_NAME}, which holds its name, cannot be understood ({error}): put it back"
            " from a backup, or delete it, and readers of the log's files take it for another"
            " broker's"
        ) from None
    if version != VERSION:
        raise WrongVersion(
            f"{IDENTITY_NAME} says format {version}, this Martlet reads {VERSION}: run the one that"
            " wrote it"
        )
    if "unfinished" in content and not to_finish:
        raise Unfinished(str(content["unfinished"]))
    return name


class NsqdData(OSError):
    """The folder has nsqd's messages; the text says what to do."""


@dataclass(frozen=True)
class DataFolder:
    """An open data folder."""

    path: Path
    """Absolute."""
    storage: DiskStorage
    broker_id: str
    """The folder's name (`broker_identity`)."""
    keys: KeyIndexer
    """Builds the indexes of its messages' keys."""
    run: str = ""
    """A random name of this process: a process with a copy of the folder has the same broker id and
    another run. Empty for replicas, which share one id as they should.
    """

    @property
    def identity(self) -> dict[str, str]:
        """The fields by which others know the broker, and tell one with a copy of the folder."""
        return {"broker": self.broker_id, **({"run": self.run} if self.run else {})}

    def close(self) -> None:
        """Release the folder."""
        self.keys.close()
        self.storage.close()


def open_folder(
    path: Path, options: BrokerOptions, log: logging.Logger, broker_id: str = ""
) -> DataFolder:
    """Open a folder; create it if it is missing.

    Args:
        path: absolute.
        options: those of the storage.
        broker_id: the id of a new folder; a random one where it is empty.

    Raises:
        FolderInUse: another broker runs on it. NsqdData: it has nsqd's files, and no Martlet broker
        has run on it. OSError: it cannot be used; the text says why, and names the flag.
    """
    try:
        is_new = not os.path.lexists(path)
        _check_for_nsqd(path, options, log)
        _close_to_others(path, log)
        storage = DiskStorage(
            path,
            keep_free_bytes=options.min_free_bytes,
            max_bytes=options.max_disk_bytes,
            spares=options.segment_spare + 1,
        )
        try:
            _check_size(storage, path, options, log)
        except OSError:
            storage.close()
            raise
        if is_new:
            log.info("LOG: made the data folder %s", path)
        try:
            identity = broker_identity(storage, broker_id or uuid.uuid4().hex)
            run = "" if options.replica_name else uuid.uuid4().hex
            return DataFolder(path, storage, identity, KeyIndexer(storage, log), run)
        except BaseException:
            storage.close()
            raise
    except (FolderInUse, NsqdData):
        raise
    except OSError as error:
        raise refusal(path, error) from error


def _check_size(
    storage: DiskStorage, path: Path, options: BrokerOptions, log: logging.Logger
) -> None:
    """Refuse a new folder on too small a disk; warn of a small one. Raises StorageFull."""
    room_bytes = storage.room_bytes()
    segment_bytes, kept_bytes = options.segment_bytes, options.min_free_bytes
    beside_bytes = BESIDE_BYTES + kept_bytes
    if room_bytes >= _SEGMENTS_TO_GROW * segment_bytes + beside_bytes:
        return
    is_too_small = room_bytes < _SEGMENTS_TO_RUN * segment_bytes + beside_bytes
    count = _SEGMENTS_TO_RUN if is_too_small else _SEGMENTS_TO_GROW
    fitting_mib = (room_bytes - beside_bytes) // _SEGMENTS_TO_GROW >> 20
    smaller = (
        f"--max-bytes-per-file={fitting_mib}MiB or less" if fitting_mib > 0 else "smaller ones"
    )
    needed = (
        f"its disk has room for {readable_size(room_bytes)}, and"
        f" {readable_size(count * segment_bytes + beside_bytes)} are needed: {count} segments of"
        f" {readable_size(segment_bytes)} (--max-bytes-per-file), {readable_size(kept_bytes)} that"
        f" stay free (--min-free-bytes), and {readable_size(BESIDE_BYTES)} for other files"
    )
    if is_too_small and not storage.has_segments():
        raise StorageFull(errno.ENOSPC, f"{needed}; give {smaller}")
    log.warning(
        "LOG: the data folder %s is on a small disk: %s. Once a segment is full, messages are"
        " refused%s; give %s",
        path,
        needed,
        ", whatever consumers finish"
        if is_too_small
        else " until consumers have finished nearly all that is in it",
        smaller,
    )


def _close_to_others(path: Path, log: logging.Logger) -> None:
    """Take others' rights to the files of a broker, which earlier versions have made with them."""
    if not (path / IDENTITY_NAME).exists():
        return  # It may be a folder of other things, as a home.
    folders = [folder for folder in (path / "log", path / "index", path / CUT) if folder.is_dir()]
    files = [file for folder in folders for file in folder.iterdir()]
    small = [path / name for name in (IDENTITY_NAME, CHECKPOINT, "martlet.lock")]
    if make_private([*folders, *files, *small]):
        log.info(
            "LOG: the files in %s could be read by other users, and now by this one alone; to share"
            " them with a group: chmod g+rxs on the folder and on those in it",
            path,
        )


def _check_for_nsqd(path: Path, options: BrokerOptions, log: logging.Logger) -> None:
    files = sorted(file.name for pattern in _OF_NSQD for file in path.glob(pattern))
    if not files:
        return
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    problem = f"the data folder {path} has files of nsqd's ({files[0]}{more}), which are not read"
    if (path / IDENTITY_NAME).exists() or options.ignore_nsqd_data:
        log.warning("LOG: %s; 'martlet import-nsqd' takes them over", problem)
        return
    raise NsqdData(
        f"{problem}: run 'martlet import-nsqd {path} {_FLAG}=OTHER' to take its topics and messages"
        f" over, and start on OTHER; or start here without them, with --ignore-nsqd-data"
    )


def refusal(path: Path, error: OSError) -> OSError:
    """Return an error of the folder with the remedy added."""
    if isinstance(error, StorageFull) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        is_quota = error.errno == errno.EDQUOT
        limit = (
            "raise --max-disk-bytes"
            if is_quota
            else "lower --min-free-bytes or --max-bytes-per-file"
        )
        return OSError(
            f"the data folder {path} cannot be used: {error.strerror}; {limit}, free some space, or"
            f" give another {_FLAG}"
        )
    if error.errno == errno.ENOENT and not path.exists():
        return OSError(
            f"the data folder {path} cannot be created ({error.strerror}): create it, or give"
            f" another {_FLAG}"
        )
    way_out = _WAYS_OUT.get(error.errno or 0, f"give another {_FLAG} if it is not meant")
    return OSError(f"the data folder {path} cannot be used: {error}; {way_out}")
