"""Read a broker's segment files directly, in a task that runs on the broker's machine.

The broker recycles its files: it renames a segment that all channels have passed to the log's end,
then overwrites it.  So a copy counts only if afterwards the file still has the name under which it
was opened.

The files of a replica may end in records that a failover has taken back, in place of which the
others have another batch.  So a record counts only if it is the one of the index, by the time of
its storing too.
"""

from __future__ import annotations

import json
import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from martlet.log.index import Rows
from martlet.log.record import BadRecord
from martlet.reader.decode import MAX_BYTES, LogChunk, chunk_of


def is_data_folder(folder: Path, broker: str) -> bool:
    """Whether a folder of this machine is readable and, by its id, that broker's data folder."""
    try:
        identity = json.loads((folder / "broker.json").read_bytes())
        readable = os.access(folder / "log", os.R_OK | os.X_OK)
    except (OSError, ValueError):
        return False
    return readable and isinstance(identity, dict) and identity.get("broker") == broker


class SegmentGone(Exception):
    """A segment file is missing, or was recycled."""


def require_same(path: Path, inode: int) -> None:
    """Check that the broker has neither recycled nor removed a file. Raises SegmentGone."""
    try:
        now = path.stat().st_ino
    except OSError as error:
        raise SegmentGone(f"{path} has gone: {error}") from error
    if now != inode:
        raise SegmentGone(f"{path} is another file now")


@dataclass
class SegmentView:
    """A segment file, mapped into memory."""

    path: Path
    base: int
    """The position in the log of its first byte."""
    inode: int
    data: mmap.mmap

    def confirm(self) -> None:
        """Check that the file is still the one that was opened. Raises SegmentGone."""
        require_same(self.path, self.inode)


class SegmentFiles:
    """The segments of one data folder."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self._bases: list[int] = []
        self._open: SegmentView | None = None

    @classmethod
    def find(cls, data_path: str, broker: str) -> SegmentFiles | None:
        """Find the segments of a broker, if its data folder is on this machine and readable."""
        folder = Path(data_path)
        return cls(folder) if is_data_folder(folder, broker) else None

    def chunks(
        self, rows: Rows, topic_id: int, queue: int, chunk_bytes: int
    ) -> Iterator[tuple[SegmentView, LogChunk]]:
        """Yield the batches of index rows, verified, in chunks of about `chunk_bytes`. A copy of
        their bytes counts only once `SegmentView.confirm` has returned. Raises SegmentGone,
        BadRecord.
        """
        positions = rows["position"].astype(np.int64)
        lengths = rows["length"].astype(np.int64)
        ends = positions + lengths
        sums = np.cumsum(lengths)
        # Positions ascend, except where compaction has moved a batch: there a run of rows ends.
        run_ends = [*(np.flatnonzero(positions[1:] < ends[:-1]) + 1).tolist(), len(rows)]
        first = 0
        for run_end in run_ends:
            while first < run_end:
                segment = self.segment(int(positions[first]))
                last_byte = min(segment.base + len(segment.data), int(positions[first]) + MAX_BYTES)
                full = int(sums[first] - lengths[first]) + chunk_bytes
                end = first + min(
                    int(np.searchsorted(sums[first:run_end], full, "right")),
                    int(np.searchsorted(ends[first:run_end], last_byte, "right")),
                )
                rows_here = slice(first, max(end, first + 1))
                try:
                    chunk = chunk_of(
                        segment.data,
                        positions[rows_here] - segment.base,
                        topic_id=topic_id,
                        queue=queue,
                        positions=rows["position"][rows_here],
                    )
                except BadRecord:
                    segment.confirm()
                    raise
                _check_index(chunk, rows[rows_here])
                yield segment, chunk
                first = rows_here.stop

    def forget(self) -> None:
        """Forget the open segment and the list of segments, after one was recycled."""
        self._open = None
        self._bases = []

    def segment(self, position: int) -> SegmentView:
        """Open the segment that holds a position. Raises SegmentGone."""
        held = self._open
        if held is not None and held.base <= position < held.base + len(held.data):
            return held
        number = bisect_right(self._bases, position)
        if not number or number == len(self._bases):
            self._bases = sorted(
                int(path.stem) for path in self._log.glob("*.log") if path.stem.isdecimal()
            )
            number = bisect_right(self._bases, position)
        if not number:
            raise SegmentGone(f"no segment of {self._log} holds position {position}")
        base = self._bases[number - 1]
        path = self._log / f"{base:020d}.log"
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                inode = os.fstat(file.fileno()).st_ino
        except (OSError, ValueError) as error:
            raise SegmentGone(f"{path}: {error}") from error
        if position >= base + len(data):
            raise SegmentGone(f"no segment of {self._log} holds position {position}")
        data.madvise(mmap.MADV_SEQUENTIAL)
        self._open = SegmentView(path, base, inode, data)
        return self._open


def _check_index(chunk: LogChunk, rows: Rows) -> None:
    """Check that a chunk has the batches of some rows. Raises BadRecord."""
    for name in ("first_offset", "count", "length", "stored_at_ns"):
        if (chunk.headers[name] != rows[name]).any():
            raise BadRecord(
                f"position {int(rows['position'][0])}: other batches than the index has"
            )
