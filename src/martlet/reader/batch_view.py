"""The view `batches`: a row for each batch of the log, without its bodies.

Most columns come from the index.  Those that stand in headers and properties are read only if the
query wants them: from the segment files on this machine, else from the broker, without bodies.

A batch belongs to the split that holds its first offset, so a stream yields it once, also when a
micro-batch ends in the middle of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from martlet.broker.idempotence import marks
from martlet.log.index import Rows
from martlet.log.record import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    HEADER_STRUCT,
    BadRecord,
    Header,
    RecordFlag,
    align8,
    properties_in,
    read_header,
)
from martlet.properties.model import BadProperties
from martlet.reader.brokers.endpoint import Endpoint, OffsetGone
from martlet.reader.data_loss import LossReport
from martlet.reader.schema import BATCHES
from martlet.reader.segments import SegmentFiles, SegmentGone

if TYPE_CHECKING:
    from martlet.reader.split import Split

_LOG = logging.getLogger(__name__)
_HEADS_BYTES = 4 << 20
"""Headers and properties to request at once, about."""
_RECORDS_BYTES = 16 << 20
"""Entire batches to request at once, to verify their checksums."""
_MICROSECOND_NS = 1000
_INDEXED = frozenset(BATCHES.names[: BATCHES.names.index("channel_id") + 1])


@dataclass
class Head:
    """The fields of a batch's record that the index lacks."""

    header: Header
    block: memoryview
    is_intact: bool | None
    """Whether the checksum fits; None if the query does not ask."""


def overview(
    split: Split, schema: pa.Schema, endpoint: Endpoint, files: SegmentFiles | None
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each batch that begins in a split.

    Raises:
        DataLossError: batches are missing, and the split is to fail then.
        BrokerUnreachable, BrokerRefused: the broker does not answer.
    """
    heads = None if _INDEXED.issuperset(schema.names) else _Heads(split, schema, endpoint, files)
    expected = split.start
    for rows in endpoint.index_pages(split.source, split.start, split.end):
        firsts = rows["first_offset"].astype(np.int64)
        ends = firsts + rows["count"]
        before = np.concatenate(([expected], ends[:-1]))
        for number in np.flatnonzero(firsts > before).tolist():
            split.describe_gap(int(before[number]), int(firsts[number]))
        expected = int(ends[-1])
        rows = rows[(firsts >= split.start) & (firsts < split.end)]
        if len(rows):
            heads_of_rows = [] if heads is None else heads.of(rows)
            yield _record_batch(split, schema, rows, heads_of_rows)
    if expected < split.end:
        split.lose(expected, split.end, LossReport.TRUNCATION)


class _Heads:
    def __init__(
        self, split: Split, schema: pa.Schema, endpoint: Endpoint, files: SegmentFiles | None
    ) -> None:
        self._split = split
        self._endpoint = endpoint
        self._verifies = "intact" in schema.names
        self._files = files

    def of(self, rows: Rows) -> list[Head | None]:
        """Read the heads of consecutive rows of the index; None for a damaged record."""
        if self._files is not None:
            try:
                return self._from_files(self._files, rows)
            except SegmentGone as trouble:
                self._files.forget()
                _LOG.warning("%s: asking the broker: %s", self._split.key, trouble)
        return self._from_broker(rows)

    def _from_files(self, files: SegmentFiles, rows: Rows) -> list[Head | None]:
        heads: list[Head | None] = []
        first = 0
        positions, lengths = rows["position"].tolist(), rows["length"].tolist()
        while first < len(rows):
            segment = files.segment(positions[first])
            view = memoryview(segment.data)
            while first < len(rows):
                at = positions[first] - segment.base
                if not 0 <= at <= len(view) - lengths[first]:
                    break
                record = view[at : at + lengths[first]]
                heads.append(self._head(record, rows[first], properties_in(record)))
                first += 1
            segment.confirm()
        return heads

    def _from_broker(self, rows: Rows) -> list[Head | None]:
        heads: list[Head | None] = []
        while len(heads) < len(rows):
            offset = int(rows[len(heads)]["first_offset"])
            max_bytes = _RECORDS_BYTES if self._verifies else _HEADS_BYTES
            try:
                data = self._endpoint.batches(
                    self._split.source, offset, max_bytes, bodies=self._verifies
                )
            except OffsetGone:
                data = b""
            if not data:
                heads.append(None)  # Retention removed it after the index was read.
                continue
            view = memoryview(data)
            at = 0
            for row in rows[len(heads) :]:
                if at + HEADER_BYTES > len(view):
                    break
                if self._verifies:
                    length = int(row["length"])
                    record = view[at : at + length]
                    heads.append(self._head(record, row, properties_in(record)))
                    at += length
                    continue
                header = HEADER_STRUCT.unpack_from(view, at)
                block, size = self._block_behind(view, at, Header._make(header))
                heads.append(self._head(view[at : at + HEADER_BYTES], row, block))
                at += HEADER_BYTES + size
        return heads

    @staticmethod
    def _block_behind(view: memoryview, at: int, header: Header) -> tuple[memoryview, int]:
        """The properties behind a header and their padded size; empty if it is damaged."""
        try:
            read_header(view, at, header.position)
        except BadRecord:
            return view[:0], 0
        size = align8(header.properties_length)
        start = at + HEADER_BYTES
        return view[start : start + header.properties_length], size

    def _head(self, record: memoryview, row: Any, block: memoryview) -> Head | None:
        """The head of a record; None if it is not the record of this index row."""
        split = self._split
        try:
            header = read_header(record, 0, int.from_bytes(record[16:24], "little"))
            if (header.topic, header.first_offset, header.length) != (
                split.queue_topic_id,
                int(row["first_offset"]),
                int(row["length"]),
            ):
                return None
        except BadRecord:
            return None
        is_intact = None
        if self._verifies:
            is_intact = crc32c(record[8 : header.length]) == header.crc32c
        # A copy, which stays when the segment is written again.
        return Head(header, memoryview(bytes(block[: header.properties_length])), is_intact)


def _record_batch(
    split: Split, schema: pa.Schema, rows: Rows, heads: list[Head | None]
) -> pa.RecordBatch:
    count = len(rows)
    deliver_at_ns = rows["deliver_at_ns"]
    constants: Mapping[str, object] = {
        "broker": split.key.broker,
        "topic": split.key.topic,
        "partition": split.key.queue,
        "topic_id": split.key.topic_id,
    }
    indexed: Mapping[str, Callable[[], Any]] = {
        "offset": lambda: rows["first_offset"].astype(np.int64),
        "end_offset": lambda: rows["first_offset"].astype(np.int64) + rows["count"],
        "count": lambda: rows["count"].astype(np.int64),
        "bytes": lambda: rows["length"].astype(np.int64),
        "position": lambda: rows["position"].astype(np.int64),
        "timestamp": lambda: _times(rows["stored_at_ns"]),
        "deliver_at": lambda: _times(deliver_at_ns, deliver_at_ns <= 0),
        "channel_id": lambda: pa.array(-deliver_at_ns, pa.int64(), mask=deliver_at_ns >= 0),
    }
    arrays = []
    for field in schema:
        if field.name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[field.name], field.type), count))
        elif field.name in indexed:
            made = indexed[field.name]()
            arrays.append(made if isinstance(made, pa.Array) else pa.array(made, field.type))
        else:
            read = _FROM_HEAD[field.name]
            values = [None if head is None else read(head) for head in heads]
            if field.name == "intact":
                values = [False if value is None else value for value in values]
            arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _times(ns: npt.NDArray[np.int64], none: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    micros = ns.astype(np.int64) // _MICROSECOND_NS
    return pa.array(micros, pa.int64(), mask=none).view(pa.timestamp("us", "UTC"))


def _sends(head: Head) -> list[dict[str, object]] | None:
    """The producers' sends that begin in a batch; None for none or damaged properties."""
    if not len(head.block):
        return None
    try:
        sends = marks(head.block)
    except BadProperties:
        return None
    return [
        {
            "producer": sent.producer.hex(),
            "sequence": sent.sequence,
            "offset": head.header.first_offset + number,
            "count": sent.count,
        }
        for number, sent in sends
    ] or None


_FROM_HEAD: Mapping[str, Callable[[Head], object]] = {
    "body_bytes": lambda head: head.header.payload_length - FRAME_HEADER_BYTES * head.header.count,
    "epoch": lambda head: head.header.epoch,
    "in_transaction": lambda head: bool(head.header.flags & RecordFlag.BUNDLED),
    "was_delayed": lambda head: bool(head.header.flags & RecordFlag.FORWARDED),
    "was_moved": lambda head: bool(head.header.flags & RecordFlag.RELOCATED),
    "sends": _sends,
    "intact": lambda head: head.is_intact,
}
