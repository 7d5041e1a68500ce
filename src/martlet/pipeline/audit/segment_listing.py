"""The survey: which segments there are of a broker's log, and what its checkpoint tells.

A running broker is asked; where its data folder is on the machine of the task that reads a segment,
and readable, that reads the file itself.  The folder of a stopped one is looked at.  What is read
of a segment counts only if it is still there afterwards, since the broker lets segments go and
writes them again.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from martlet.log import checkpoint_file as checkpoint
from martlet.log.checkpoint_file import Checkpoint
from martlet.log.folder import Folder, NoLog
from martlet.spark.brokers.endpoint import BrokerRefused, Endpoint

_PIECE_BYTES = 16 << 20


class ListedSegmentGone(Exception):
    """A segment was let go while it was read."""


@dataclass(frozen=True)
class SegmentPlace:
    """Where a segment is to be read.

    Attributes:
        broker: whose it is.
        base: its first position.
        bytes: how long it is.
        end: up to which position the log reached when it was looked at; -1 where nobody knows.
        last: whether it is the newest.
        data_path: the data folder on its machine.
        door: where the broker answers; None where there is only the folder.
    """

    broker: str
    base: int
    bytes: int
    end: int
    last: bool
    data_path: str
    door: Endpoint | None

    @contextmanager
    def opened(self) -> Iterator[memoryview]:
        """The segment's bytes, up to the log's end.

        Raises:
            ListedSegmentGone: when it was let go, also where that happens before the block is left.
        """
        path = Path(self.data_path) / "log" / f"{self.base:020d}.log"
        if self.door is None or _is_local(self.data_path, self.broker):
            with _mapped(path) as data:
                yield self._written(data)
        else:
            yield self._fetched(self.door)

    def _written(self, data: memoryview) -> memoryview:
        if self.end < 0 or not self.last:
            return data
        return data[: max(0, self.end - self.base)]

    def _fetched(self, endpoint: Endpoint) -> memoryview:
        """All of it, asked for in pieces."""
        wanted = self.bytes if self.end < 0 else min(self.bytes, self.end - self.base)
        data = bytearray()
        try:
            while len(data) < wanted:
                max_count = min(_PIECE_BYTES, wanted - len(data))
                piece = endpoint.read(
                    "/log/segment", base=self.base, at=len(data), max_bytes=max_count
                )
                if not piece:
                    break
                data += piece
        except BrokerRefused as error:
            if "SEGMENT_NOT_FOUND" in str(error):
                raise ListedSegmentGone(str(error)) from error
            raise
        finally:
            endpoint.close()
        return memoryview(data).toreadonly()


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    try:
        with path.open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            size = os.fstat(file.fileno()).st_size
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except FileNotFoundError as error:
        raise ListedSegmentGone(f"{path} has gone") from error
    if isinstance(data, mmap.mmap):
        data.madvise(mmap.MADV_SEQUENTIAL)
    yield memoryview(data)
    try:
        if path.stat().st_ino != inode:
            raise ListedSegmentGone(f"{path} is another file now")
    except FileNotFoundError as error:
        raise ListedSegmentGone(f"{path} has gone") from error


def _is_local(data_path: str, broker: str) -> bool:
    """Whether a broker's data folder is on this machine: the same path may be another's."""
    folder = Path(data_path)
    try:
        told = json.loads((folder / "broker.json").read_bytes())
        readable = os.access(folder / "log", os.R_OK | os.X_OK)
    except (OSError, ValueError):
        return False
    return readable and isinstance(told, dict) and told.get("broker") == broker


@dataclass(frozen=True)
class Survey:
    """One broker's log, as it is now.

    Attributes:
        broker: its id.
        place: its address, or its data folder.
        segments: by base; at least one.
        checkpoint: what that tells; None where there is none.
        is_running: whether the broker runs, so that the log goes on.
        trouble: why the checkpoint could not be read, though there is one.
    """

    broker: str
    place: str
    segments: tuple[SegmentPlace, ...]
    checkpoint: Checkpoint | None
    is_running: bool
    trouble: str = ""

    @property
    def bytes(self) -> int:
        """How long all segments are."""
        return sum(segment.bytes for segment in self.segments)


class _Fetched:
    """A checkpoint that a broker has sent, as something to be read."""

    def __init__(self, data: bytes | None) -> None:
        self._data = data

    def read(self, name: str) -> bytes | None:
        """The file's content."""
        return self._data if name == checkpoint.NAME else None


def ask(endpoint: Endpoint) -> Survey:
    """Survey a running broker.

    Raises:
        BrokerUnreachable, BrokerRefused.
    """
    try:
        found = json.loads(endpoint.read("/log/segments"))
        # Afterwards: what was let go before that is not needed by this checkpoint.
        try:
            data: bytes | None = endpoint.read("/log/checkpoint")
        except BrokerRefused as error:
            if "CHECKPOINT_NOT_FOUND" not in str(error):
                raise
            data = None
    finally:
        endpoint.close()
    segments = found["segments"]
    places = tuple(
        SegmentPlace(
            broker=found["broker"],
            base=segment["base"],
            bytes=segment["bytes"],
            end=found["position"],
            last=segment is segments[-1],
            data_path=found["data_path"],
            door=endpoint,
        )
        for segment in segments
    )
    loaded, trouble = _loaded(_Fetched(data))
    return Survey(found["broker"], endpoint.address, places, loaded, True, trouble)


def look(data_path: str) -> Survey:
    """Survey a data folder, of a broker that runs or does not.

    Raises:
        NoLog: it is none.
    """
    folder = Folder(Path(data_path))
    try:
        broker = str(json.loads((folder.path / "broker.json").read_bytes())["broker"])
    except (OSError, ValueError, KeyError, TypeError):
        broker = str(folder.path.resolve())
    paths = sorted((folder.path / "log").glob("*.log"))
    sizes = [(int(path.stem), path.stat().st_size) for path in paths if path.stem.isdecimal()]
    # One that is empty was about to be made: a start removes it.
    found = [(base, size) for base, size in sizes if size]
    if not found:
        raise NoLog(f"{data_path} holds no log: there is no segment in {folder.path / 'log'}")
    loaded, trouble = _loaded(folder)  # After the segments: it needs none that went before that.
    places = tuple(
        SegmentPlace(
            broker=broker,
            base=base,
            bytes=size,
            end=-1,
            last=base == found[-1][0],
            data_path=str(folder.path.resolve()),
            door=None,
        )
        for base, size in found
    )
    is_running = folder.in_use
    return Survey(broker, data_path, places, loaded, is_running, trouble)


def _loaded(files: Folder | _Fetched) -> tuple[Checkpoint | None, str]:
    loaded = checkpoint.load(files)
    if isinstance(loaded, Checkpoint):
        return loaded, ""
    return None, loaded if "damaged" in loaded or "empty" in loaded else ""
