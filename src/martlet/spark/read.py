"""A task's work: the messages of a split as record batches.

From the segment files where the broker runs on this machine, else through the broker.  Whatever
goes wrong with the files, a segment that was recycled or a batch that cleaning has moved, is asked
of the broker, which knows best; a record that the broker too hands out damaged is an error.
"""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from martlet.log.record import BadRecord, read_header
from martlet.spark.decode import Chunk, Columns, chunk_of
from martlet.spark.endpoint import Endpoint, OffsetGone
from martlet.spark.loss import tell_loss
from martlet.spark.segments import SegmentFiles, SegmentGone
from martlet.spark.split import Split

_LOG = logging.getLogger(__name__)
CHUNK_BYTES = 4 << 20
"""Bytes of the log that become one record batch."""


def read(split: Split, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a split, in order.

    Raises:
        DataLossError: some have gone, and the split says to fail then.
        BadRecord: the log is damaged.
        BrokerUnreachable, BrokerRefused: the broker is needed and does not answer.
    """
    reading = _Reading(split, schema)
    try:
        yield from reading.from_files()
        yield from reading.from_broker()
    finally:
        reading.endpoint.close()
        _spare_collector()


@functools.cache
def _spare_collector() -> None:
    """Take what is loaded when the first split has been read out of garbage collection.

    Spark's workers collect all garbage after each task, and go through everything that pyspark,
    pandas and pyarrow have loaded: 50 ms, as long as decoding 100 MB of the log takes.
    """
    gc.freeze()


class _Reading:
    """How far the reading of a split has come: `offset` is the next that is wanted."""

    def __init__(self, split: Split, schema: pa.Schema) -> None:
        self.split = split
        self.offset = split.start
        self.endpoint = Endpoint(split.address, split.timeout_ms)
        self.columns = Columns(
            schema, topic=split.key.topic, queue=split.key.queue, broker=split.key.broker
        )

    def from_files(self) -> Iterator[pa.RecordBatch]:
        """What the segment files give, from `offset` on; nothing, where they are not here."""
        split = self.split
        files = SegmentFiles.find(split.data_path, split.key.broker)
        if files is None:
            return
        rows = self.endpoint.index(split.key.topic, split.key.queue, self.offset, split.end)
        chunks = files.chunks(rows, split.topic_id, split.key.queue, CHUNK_BYTES)
        try:
            for segment, chunk in chunks:
                batches = list(self._batches(chunk))
                segment.confirm()
                yield from batches
                self._pass(chunk)
        except (SegmentGone, BadRecord) as trouble:
            _LOG.warning(
                "%s: asking the broker from offset %d on: %s", split.key, self.offset, trouble
            )

    def from_broker(self) -> Iterator[pa.RecordBatch]:
        """What the broker gives, from `offset` on."""
        split = self.split
        while self.offset < split.end:
            try:
                data = self.endpoint.batches(
                    split.key.topic, split.key.queue, self.offset, CHUNK_BYTES
                )
            except OffsetGone as gone:
                why = "the broker let go of it, as every channel had passed it"
                self._lose(gone.start_offset, why)
                continue
            if not data:
                self._lose(split.end, "the broker's log ends before it")
                return
            chunk = chunk_of(data, _starts_of(data), topic_id=split.topic_id, queue=split.key.queue)
            yield from self._batches(chunk)
            self._pass(chunk)

    def _batches(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """The wanted messages of a chunk, checked to be without a gap."""
        firsts = chunk.headers["first_offset"].astype(np.int64)
        ends = firsts + chunk.headers["count"]
        if firsts[0] > self.offset:
            self._lose(int(firsts[0]), "the messages before it were removed")
        for number in np.flatnonzero(firsts[1:] != ends[:-1]).tolist():
            why = "the messages between were removed"
            tell_loss(
                self.split.fail_on_data_loss,
                self.split.key,
                int(ends[number]),
                int(firsts[number + 1]),
                why,
            )
        batch = self.columns.batch(chunk, self.offset, self.split.end)
        if batch is not None:
            yield batch

    def _pass(self, chunk: Chunk) -> None:
        last = chunk.headers[-1]
        self.offset = max(self.offset, int(last["first_offset"]) + int(last["count"]))

    def _lose(self, there: int, why: str) -> None:
        self.offset = tell_loss(
            self.split.fail_on_data_loss, self.split.key, self.offset, there, why
        )


def _starts_of(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where each of the records starts that stand one behind the other in an answer."""
    starts = []
    at = 0
    while at < len(data):
        starts.append(at)
        at += read_header(data, at, int.from_bytes(data[at + 16 : at + 24], "little")).length
    return np.array(starts, np.int64)
