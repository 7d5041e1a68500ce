"""List the segments of a broker's log, and read its checkpoint.

The segments come from a running broker over HTTP, or from the data folder of a stopped one.  A task
reads a segment from its file, if the broker's data folder is on the task's machine, else over HTTP.
A segment counts only if it still exists after the read, since the broker removes segments and
reuses their files.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from martlet.log import checkpoint_file as checkpoint
from martlet.log.checkpoint_file import Checkpoint
from martlet.log.folder import Folder, NoLog, folder_identity
from martlet.reader.brokers.endpoint import BrokerRefused, Endpoint
from martlet.reader.segments import SegmentGone, is_data_folder, require_same

_PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class ListedSegment:
    """The location of a segment."""

    broker: str
    base: int
    bytes: int
    end: int
    """The end of the log when it was listed; -1 if unknown."""
    last: bool
    data_path: str
    """The data folder on the broker's machine."""
    endpoint: Endpoint | None
    folder: str = ""
    """Where the data folder is, by `folder_identity`; empty if unknown."""

    def head(self, max_bytes: int) -> ListedSegment:
        """Return the segment's first bytes as a segment."""
        return replace(self, end=self.base + min(max_bytes, self.bytes), last=True)

    @contextmanager
    def opened(self) -> Iterator[memoryview]:
        """Open the bytes of the segment, up to the end of the log. Raises SegmentGone, perhaps at
        the end of the block.
        """
        path = Path(self.data_path) / "log" / f"{self.base:020d}.log"
        if self.endpoint is None or _is_local(self.data_path, self.broker, self.folder):
            with _mapped(path) as data:
                yield self._written(data)
        else:
            yield self._fetched(self.endpoint)

    def _written(self, data: memoryview) -> memoryview:
        if self.end < 0:
            return data
        return data[: max(0, self.end - self.base)]

    def _fetched(self, endpoint: Endpoint) -> memoryview:
        size_bytes = self.bytes if self.end < 0 else min(self.bytes, self.end - self.base)
        data = bytearray()
        try:
            while len(data) < size_bytes:
                max_count = min(_PIECE_BYTES, size_bytes - len(data))
                piece = endpoint.read(
                    "/log/segment", base=self.base, at=len(data), max_bytes=max_count
                )
                if not piece:
                    break
                data += piece
        except BrokerRefused as error:
            if "SEGMENT_NOT_FOUND" in str(error):
                raise SegmentGone(str(error)) from error
            raise
        finally:
            endpoint.close()
        return memoryview(data).toreadonly()


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except FileNotFoundError as error:
        raise SegmentGone(f"{path} has gone") from error
    if isinstance(data, mmap.mmap):
        data.madvise(mmap.MADV_SEQUENTIAL)
    yield memoryview(data)
    require_same(path, status.st_ino)


def _is_local(data_path: str, broker: str, folder_id: str) -> bool:
    """Whether the data folder on this machine is the broker's, and not another machine's copy."""
    folder = Path(data_path)
    try:
        is_same = not folder_id or folder_identity(folder) == folder_id
    except (OSError, ValueError):
        return False
    return is_same and is_data_folder(folder, broker)


@dataclass(frozen=True)
class Survey:
    """The segments and the checkpoint of one broker's log."""

    broker: str
    source: str
    segments: tuple[ListedSegment, ...]
    checkpoint: Checkpoint | None
    is_running: bool
    """Whether the broker is running, so that the log may grow."""
    trouble: str = ""
    """Why an existing checkpoint could not be read."""
    folder: str = ""
    """Where its data folder is, by `folder_identity`; empty if unknown."""
    is_replica: bool = False
    """Whether other folders may have its id."""

    @property
    def bytes(self) -> int:
        """The size of all segments."""
        return sum(segment.bytes for segment in self.segments)


class _Fetched:
    """A downloaded checkpoint with the `read` method of a folder."""

    def __init__(self, data: bytes | None) -> None:
        self._data = data

    def read(self, name: str) -> bytes | None:
        return self._data if name == checkpoint.NAME else None


def survey_broker(endpoint: Endpoint) -> Survey:
    """Survey a running broker. Raises BrokerUnreachable, BrokerRefused."""
    try:
        listing = json.loads(endpoint.read("/log/segments"))
        # After the list, so that the checkpoint needs no segment that was removed before it.
        try:
            data: bytes | None = endpoint.read("/log/checkpoint")
        except BrokerRefused as error:
            if "CHECKPOINT_NOT_FOUND" not in str(error):
                raise
            data = None
    finally:
        endpoint.close()
    listed_segments = _listed(
        [(segment["base"], segment["bytes"]) for segment in listing["segments"]],
        broker=listing["broker"],
        end=listing["position"],
        data_path=listing["data_path"],
        folder=listing.get("folder", ""),
        endpoint=endpoint,
    )
    loaded, trouble = _loaded(_Fetched(data))
    return Survey(
        listing["broker"],
        endpoint.address,
        listed_segments,
        loaded,
        is_running=True,
        trouble=trouble,
        folder=listing.get("folder", ""),
        is_replica="run" not in listing,
    )


def survey_folder(data_path: str) -> Survey:
    """Survey the data folder of a running or stopped broker. Raises NoLog."""
    folder = Folder(Path(data_path))
    try:
        broker = str(json.loads((folder.path / "broker.json").read_bytes())["broker"])
    except (OSError, ValueError, KeyError, TypeError):
        broker = str(folder.path.resolve())
    paths = sorted((folder.path / "log").glob("*.log"))
    sizes = [(int(path.stem), path.stat().st_size) for path in paths if path.stem.isdecimal()]
    # An empty file was being created at a crash; the next start removes it.
    files = [(base, size) for base, size in sizes if size]
    if not files:
        raise NoLog(f"{data_path} holds no log: there is no segment in {folder.path / 'log'}")
    folder_id = folder_identity(folder.path)
    loaded, trouble = _loaded(folder)  # After the list, as in `survey_broker`.
    resolved = str(folder.path.resolve())
    listed_segments = _listed(
        files, broker=broker, end=-1, data_path=resolved, folder=folder_id, endpoint=None
    )
    is_running = folder.in_use
    return Survey(broker, data_path, listed_segments, loaded, is_running, trouble, folder=folder_id)


def _listed(files: Sequence[tuple[int, int]], **log: Any) -> tuple[ListedSegment, ...]:
    """Create the segments of a log from their bases and sizes."""
    last = files[-1][0] if files else -1
    return tuple(
        ListedSegment(base=base, bytes=size, last=base == last, **log) for base, size in files
    )


def _loaded(files: Folder | _Fetched) -> tuple[Checkpoint | None, str]:
    loaded = checkpoint.load(files)
    if isinstance(loaded, Checkpoint):
        return loaded, ""
    return None, loaded if "damaged" in loaded or "empty" in loaded else ""
