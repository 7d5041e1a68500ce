"""Read the messages of a task's splits as Arrow record batches.

A task on the broker's machine reads the segment files, any other asks the broker.  Where a file
fails it, as after a recycled segment or a batch moved by compaction, it asks the broker too.  A
record that the broker also returns damaged is lost.

Of a broker with replicas it reads the one on its machine, which may lag, and goes on at another one
from where it was.

A batch for one channel alone, such as redriven dead letters, is skipped: its messages were in the
topic before.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from martlet.log.index import ENTRY
from martlet.log.record import BadRecord, read_header
from martlet.reader.brokers.endpoint import (
    BrokerNotFound,
    Endpoint,
    MadeAnew,
    OffsetGone,
    ReplicaSource,
)
from martlet.reader.data_loss import LossReport
from martlet.reader.decode import Columns, Int64s, LogChunk, chunk_of, gathered
from martlet.reader.segments import SegmentFiles, SegmentGone
from martlet.reader.split import Split, Task

if TYPE_CHECKING:
    from martlet.reader.filters import RowFilter

_LOG = logging.getLogger(__name__)
CHUNK_BYTES = 4 << 20
"""Bytes of the log in one record batch, about."""
_SMALL_BYTES = 1 << 20
"""Record batches below this size are joined."""


def read(
    task: Task, schema: pa.Schema, row_filter: RowFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task's splits, in order; only those that match a filter.

    Raises:
        DataLossError: messages are missing or damaged, and the split is to fail then.
        BrokerUnreachable, BrokerRefused: the broker is needed and does not answer.
    """
    first = task.splits[0]
    replicas = (ReplicaSource(first.address, first.data_path), *first.others)
    folders = ((SegmentFiles.find(copy.data_path, first.key.broker), copy) for copy in replicas)
    files, nearest = next((pair for pair in folders if pair[0]), (None, replicas[0]))
    addresses = [replica.address for replica in replicas]
    endpoint = Endpoint(nearest.address, first.timeout_ms, first.tls, addresses, first.token)
    try:
        readings = (_Reading(split, schema, endpoint, row_filter) for split in task.splits)
        batches = (_read_split(reading, files) for reading in readings)
        # Small batches are joined: each costs Java as much as a thousand rows.
        for small in gathered(itertools.chain.from_iterable(batches), _SMALL_BYTES):
            yield small[0] if len(small) == 1 else pa.concat_batches(small)
    finally:
        endpoint.close()


def _read_split(reading: _Reading, files: SegmentFiles | None) -> Iterator[pa.RecordBatch]:
    split = reading.split
    try:
        if split.view == "batches":
            yield from reading.overview(files)
            return
        if files is not None:
            yield from reading.from_files(files)
        yield from reading.from_broker()
    except BrokerNotFound as error:
        loss = LossReport.RECREATION if isinstance(error, MadeAnew) else LossReport.DELETION
        reading.lose(split.end, loss, "while it was read")


class _Reading:
    """The progress of reading one split: `offset` is the next one wanted."""

    def __init__(
        self,
        split: Split,
        schema: pa.Schema,
        endpoint: Endpoint,
        row_filter: RowFilter | None = None,
    ) -> None:
        self.split = split
        self.schema = schema
        self.row_filter = row_filter
        self.offset = split.start
        self.endpoint = endpoint
        self.damaged_count = 0
        """How many replicas have the next record damaged."""
        self.columns = Columns(
            schema,
            topic=split.key.topic,
            queue=split.key.queue,
            broker=split.key.broker,
            row_filter=row_filter,
        )

    def overview(self, files: SegmentFiles | None) -> Iterator[pa.RecordBatch]:
        """The rows of the view of batches."""
        # Import late: it needs much of the broker, and few queries need it.
        from martlet.reader.batch_view import overview

        row_filter = self.row_filter
        if row_filter is None:
            yield from overview(self.split, self.schema, self.endpoint, files)
            return
        wide = row_filter.widened(self.schema, self.split.view)
        for batch in overview(self.split, wide, self.endpoint, files):
            matching = row_filter.matching(batch, self.schema)
            if len(matching):
                yield matching

    def from_files(self, files: SegmentFiles) -> Iterator[pa.RecordBatch]:
        split = self.split
        if split.index:
            rows = np.frombuffer(split.index, ENTRY)
        else:
            rows = self.endpoint.index(split.source, self.offset, split.end)
        chunks = files.chunks(rows, split.queue_topic_id, split.key.queue, CHUNK_BYTES)
        try:
            for segment, chunk in chunks:
                batches = list(self._batches(chunk))
                segment.confirm()
                yield from batches
                self._pass(chunk)
        except (SegmentGone, BadRecord) as trouble:
            files.forget()
            _LOG.warning(
                "%s: asking the broker from offset %d on: %s", split.key, self.offset, trouble
            )

    def from_broker(self) -> Iterator[pa.RecordBatch]:
        split = self.split
        while self.offset < split.end:
            try:
                data = self.endpoint.batches(split.source, self.offset, CHUNK_BYTES)
            except OffsetGone as gone:
                there = max(gone.start_offset, self.offset + 1)
                self.offset = split.describe_gap(self.offset, there)
                continue
            if not data:
                self.lose(split.end, LossReport.TRUNCATION)
                return
            try:
                chunk = self._chunk(data, _starts_of(data))
            except BadRecord as trouble:
                if self.damaged_count < self.endpoint.other_count:
                    self.damaged_count += 1
                    self.endpoint.turn()
                    continue
                yield from self._intact_batches(data, trouble)
                continue
            self.damaged_count = 0
            yield from self._batches(chunk)
            self._pass(chunk)

    def _intact_batches(self, data: bytes, trouble: BadRecord) -> Iterator[pa.RecordBatch]:
        """Read the intact batches of a damaged answer, which the index locates."""
        split = self.split
        rows = next(self.endpoint.index_pages(split.source, self.offset, split.end), None)
        if rows is None or int(rows[0]["first_offset"]) > self.offset:
            if rows is None:
                self.lose(split.end, LossReport.CORRUPTION, str(trouble))
            return
        at = 0
        for row in rows:
            length = int(row["length"])
            if at >= len(data):
                return
            try:
                chunk = self._chunk(data[at : at + length], np.zeros(1, np.int64))
                if chunk.headers[0]["first_offset"] != row["first_offset"]:
                    raise BadRecord("it is the record of another batch")
            except BadRecord as damage:
                first, end = int(row["first_offset"]), int(row["first_offset"] + row["count"])
                lost = f"{row['count']} messages from offset {first} on, at position"
                detail = f"{lost} {row['position']} of the log; {damage}"
                self.lose(min(end, split.end), LossReport.CORRUPTION, detail)
            else:
                yield from self._batches(chunk)
                self._pass(chunk)
            at += length

    def _chunk(self, data: bytes, starts: Int64s) -> LogChunk:
        split = self.split
        return chunk_of(data, starts, topic_id=split.queue_topic_id, queue=split.key.queue)

    def _batches(self, chunk: LogChunk) -> Iterator[pa.RecordBatch]:
        """Convert the wanted messages of a chunk, and report each gap between them."""
        firsts = chunk.headers["first_offset"].astype(np.int64)
        ends = firsts + chunk.headers["count"]
        if firsts[0] > self.offset:
            self.offset = self.split.describe_gap(self.offset, int(firsts[0]))
        for number in np.flatnonzero(firsts[1:] != ends[:-1]).tolist():
            self.split.describe_gap(int(ends[number]), int(firsts[number + 1]))
        own = chunk.headers["deliver_at_ns"] < 0
        if own.any():
            if own.all():
                return
            chunk = LogChunk(chunk.data, chunk.starts[~own], chunk.headers[~own])
        batch = self.columns.batch(chunk, self.offset, self.split.end)
        if batch is not None:
            yield batch

    def _pass(self, chunk: LogChunk) -> None:
        last = chunk.headers[-1]
        self.offset = max(self.offset, int(last["first_offset"]) + int(last["count"]))

    def lose(self, there: int, loss: LossReport, detail: str = "") -> None:
        """Report the loss of the messages up to an offset. Raises DataLossError."""
        self.offset = self.split.lose(self.offset, there, loss, detail)


def _starts_of(data: bytes) -> Int64s:
    """Find where each of the consecutive records of an answer starts. Raises BadRecord."""
    starts = []
    at = 0
    while at < len(data):
        starts.append(at)
        at += read_header(data, at, int.from_bytes(data[at + 16 : at + 24], "little")).length
    return np.array(starts, np.int64)
