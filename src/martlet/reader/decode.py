"""Decode records of the log into Arrow columns, without Python code for each message.

The frames of a queue's batches lie in one buffer, a mapped segment or an answer of the broker::

    | header | frame frame frame | ends | ... | header | frame frame | ends | ...
               ^34 bytes, then the body

An Arrow binary array is one buffer and n + 1 offsets into it, so its values leave no bytes out.
But the offsets ``body 0 starts, body 0 ends, body 1 starts, body 1 ends ...`` cut the same buffer
into values that alternate between a body and the gap behind it, and ``take`` copies every second
value.  The ends stored with each batch say where bodies start and end.  numpy gathers all other
columns at fixed distances from the frames' starts, or they are constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from martlet.log.record import (
    FRAME_HEADER_BYTES,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    BadRecord,
    RecordKind,
    align8,
)
from martlet.properties.block import Block
from martlet.reader.carried import CARRIED, CarriedProperties, column_of, pieces_of
from martlet.reader.no_value import MARK
from martlet.reader.schema import MESSAGES

if TYPE_CHECKING:
    from martlet.reader.filters import RowFilter

Int64s = npt.NDArray[np.int64]

LOG_APPEND_TIME = 1
"""Kafka's timestampType of a time set by the broker, as a frame's is."""
MAX_BYTES = 2**31 - 1
"""The size limit of a chunk: the offsets of Arrow's binary arrays are int32."""

_TIMESTAMP_AT = 8
_ATTEMPTS_AT = 16
_ID_AT = 18
_ID_BYTES = 16


@dataclass(frozen=True)
class LogChunk:
    """Verified batches of one queue, in the order of their offsets, in one buffer."""

    data: pa.Buffer
    starts: Int64s
    """Where each record starts in `data`, in bytes."""
    headers: npt.NDArray[Any]
    """The records' headers, as rows of `HEADER`."""


def chunk_of(
    data: Any,
    starts: Int64s,
    *,
    topic_id: int,
    queue: int,
    positions: npt.NDArray[np.uint64] | None = None,
) -> LogChunk:
    """Check the records that start at `starts` in a buffer and return them as a chunk.

    Args:
        starts: ascending multiples of 8, not empty.
        positions: where they must lie in the log; None if unknown.

    Raises:
        BadRecord: a record is no batch of this queue and this position, or is damaged.
    """
    view = memoryview(data).cast("B")
    if int(starts[-1]) + HEADER_BYTES > len(view):
        raise BadRecord(f"cut: a header at byte {int(starts[-1])} of {len(view)}")
    headers = headers_at(view, starts)
    wrong = (
        (headers["magic"] != MAGIC)
        | (headers["version"] != VERSION)
        | (headers["kind"] != RecordKind.BATCH)
        | (headers["topic"] != topic_id)
        | (headers["queue"] != queue)
    )
    if positions is not None:
        wrong |= headers["position"] != positions
    lengths = headers["length"].astype(np.int64)
    wrong |= starts + lengths > len(view)
    ends_at = _ends_at(headers)
    wrong |= ends_at + 4 * headers["count"].astype(np.int64) > lengths
    if wrong.any():
        number = int(np.argmax(wrong))
        where = f"byte {int(starts[number])}" if positions is None else f"{int(positions[number])}"
        raise BadRecord(f"position {where}: not a whole batch of topic {topic_id}, queue {queue}")
    for start, length, crc, position in zip(
        starts.tolist(),
        lengths.tolist(),
        headers["crc32c"].tolist(),
        headers["position"].tolist(),
        strict=True,
    ):
        if crc32c(view[start + 8 : start + length]) != crc:
            raise BadRecord(f"position {position}: the checksum does not fit")
    return LogChunk(pa.py_buffer(view), starts, headers)


def gathered(batches: Iterable[pa.RecordBatch], size_bytes: int) -> Iterator[list[pa.RecordBatch]]:
    """Gather consecutive batches until they have that size; the last ones may have less."""
    some: list[pa.RecordBatch] = []
    some_bytes = 0
    for batch in batches:
        some.append(batch)
        some_bytes += batch.nbytes
        if some_bytes >= size_bytes:
            yield some
            some, some_bytes = [], 0
    if some:
        yield some


def repeated(value: str | int, count: int) -> pa.Array:
    """A column with one value: int32 or string."""
    if isinstance(value, int):
        return column_of(np.full(count, value, np.int32), pa.int32())
    text = value.encode()
    cuts = np.arange(count + 1, dtype=np.int32) * len(text)
    buffers = [None, pa.py_buffer(cuts), pa.py_buffer(text * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def headers_at(data: memoryview, starts: Int64s) -> npt.NDArray[Any]:
    """The headers that start at these multiples of 8."""
    words = np.frombuffer(data, "<u8", len(data) // 8)
    headers: npt.NDArray[Any] = words[(starts // 8)[:, None] + np.arange(HEADER_BYTES // 8)]
    return headers.view(HEADER).reshape(-1)


def _ends_at(headers: npt.NDArray[Any]) -> Int64s:
    """Where the list of frame ends starts in each record."""
    ends_at: Int64s = (HEADER_BYTES + headers["payload_length"].astype(np.int64) + 7) & ~7
    return ends_at


class DecodedFrames:
    """The frames of the wanted messages of a chunk, as positions in its buffer."""

    _all: DecodedFrames | None = None
    """The frames that these are some of; None if they are all."""
    _rows: Int64s
    """Their rows in those."""

    def __init__(self, chunk: LogChunk, start_offset: int, end_offset: int) -> None:
        headers = chunk.headers
        counts = headers["count"].astype(np.int64)
        firsts = np.cumsum(counts) - counts
        rows = np.arange(int(counts.sum()))
        self.data = chunk.data
        offsets = rows + np.repeat(headers["first_offset"].astype(np.int64) - firsts, counts)
        low, high = np.searchsorted(offsets, [start_offset, end_offset])

        end_words = (chunk.starts + _ends_at(headers)) // 4
        words = np.frombuffer(chunk.data, "<u4", chunk.data.size // 4)
        payloads = chunk.starts + HEADER_BYTES
        ends = words[rows + np.repeat(end_words - firsts, counts)] + np.repeat(payloads, counts)
        starts = np.empty_like(ends)
        starts[1:] = ends[:-1]
        starts[firsts] = payloads
        self._chunk = chunk
        self._first_rows = firsts - low
        """The row of these frames that each record begins at; below 0 if its start is cut off."""
        self.offsets: Int64s = offsets[low:high]
        self.starts: Int64s = starts[low:high]
        self.ends: Int64s = ends[low:high]

    def __len__(self) -> int:
        return len(self.offsets)

    def only(self, rows: Int64s) -> DecodedFrames:
        """Some of the frames, by ascending rows."""
        some = copy(self)
        some.__dict__.pop("carried", None)
        some._all, some._rows = self, rows
        some.offsets, some.starts, some.ends = (
            positions[rows] for positions in (self.offsets, self.starts, self.ends)
        )
        return some

    def bodies(self) -> pa.Array:
        """The bodies as a binary array."""
        return pieces_of(self.data, self.starts + FRAME_HEADER_BYTES, self.ends)

    def gather(self, at: int, dtype: str) -> npt.NDArray[Any]:
        """Gather a field that stands at a fixed distance from each frame's start."""
        field = np.dtype(dtype)
        fields: npt.NDArray[Any] = np.ndarray(
            (self.data.size - field.itemsize + 1,), field, self.data, strides=(1,)
        )
        return fields[self.starts + at]

    def values(self) -> pa.Array:
        """The bodies, with null or empty bytes for those that stand for them: binary."""
        frames = self if self._all is None else self._all
        if not frames._is_marked:
            return self.bodies()
        if frames is not self:
            return frames.values().take(pa.array(self._rows))
        return self.carried.unmarked(self.bodies())

    @cached_property
    def _is_marked(self) -> bool:
        """Whether a body may stand for a value; most messages have no properties, or no mark."""
        return any(MARK in bytes(self.data[at:end]) for at, end in self._blocks().values())

    def _blocks(self) -> dict[int, tuple[int, int]]:
        """Where the block of properties of each record that has one begins and ends."""
        headers = self._chunk.headers
        ends_at = self._chunk.starts + _ends_at(headers) + 4 * headers["count"].astype(np.int64)
        lengths = headers["properties_length"].astype(np.int64)
        return {
            record: (at := align8(int(ends_at[record])), at + int(lengths[record]))
            for record in np.flatnonzero(lengths).tolist()
        }

    def carried_column(self, field: pa.Field) -> pa.Array:
        """A column of the messages' properties; null where a message has no such property."""
        if self._all is not None:
            return self._all.carried_column(field).take(pa.array(self._rows))
        return self.carried.column(field)

    @cached_property
    def carried(self) -> CarriedProperties:
        """The properties of the messages."""
        rows, starts, stops = [], [], []
        for record, (at, end) in self._blocks().items():
            block = Block(memoryview(self.data)[at:end])
            numbers = block.numbers + self._first_rows[record]
            own = slice(*np.searchsorted(numbers, [0, len(self)]).tolist())
            ends = block.ends.astype(np.int64) + (end - block.entries_length)
            rows.append(numbers[own])
            starts.append(np.concatenate(([end - block.entries_length], ends[:-1]))[own])
            stops.append(ends[own])
        none = [np.empty(0, np.int64)]
        entries = (np.concatenate(parts or none) for parts in (rows, starts, stops))
        return CarriedProperties(self.data, len(self), *entries)

    def timestamps(self) -> pa.Array:
        """When the broker stored each message: timestamp[us, UTC]."""
        micros = self.gather(_TIMESTAMP_AT, ">i8").astype(np.int64) // 1000
        return column_of(micros, pa.timestamp("us", "UTC"))

    def attempts(self) -> pa.Array:
        """The deliveries of each message, as its first consumer would see them: int32."""
        return column_of(self.gather(_ATTEMPTS_AT, ">u2").astype(np.int32), pa.int32())

    def message_ids(self) -> pa.Array:
        """The NSQ message id of each message, 16 hexadecimal digits: string."""
        count = len(self)
        cuts = np.arange(0, _ID_BYTES * (count + 1), _ID_BYTES, dtype=np.int32)
        digits = np.ascontiguousarray(self.gather(_ID_AT, f"S{_ID_BYTES}"))
        return pa.Array.from_buffers(
            pa.string(), count, [None, pa.py_buffer(cuts), pa.py_buffer(digits.view(np.uint8))]
        )


_GATHERED: Mapping[str, Callable[[DecodedFrames], pa.Array]] = {
    "value": DecodedFrames.values,
    "offset": lambda frames: column_of(frames.offsets, pa.int64()),
    "timestamp": DecodedFrames.timestamps,
    "attempts": DecodedFrames.attempts,
    "message_id": DecodedFrames.message_ids,
}


class Columns:
    """Builds record batches of one queue in a wanted schema, with any of the columns of
    `martlet.reader.schema`.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        topic: str,
        queue: int,
        broker: str,
        row_filter: RowFilter | None = None,
    ) -> None:
        self._schema = schema
        self._row_filter = row_filter
        offset = pa.schema([MESSAGES.field("offset")])  # A batch of no columns has no rows.
        self._tested = row_filter.widened(offset, "messages") if row_filter else offset
        self._values: dict[str, str | int] = {
            "topic": topic,
            "partition": queue,
            "timestampType": LOG_APPEND_TIME,
            "broker": broker,
        }
        self._constants: dict[str, pa.Array] = {}

    def batch(self, chunk: LogChunk, start_offset: int, end_offset: int) -> pa.RecordBatch | None:
        """The messages of a chunk from `start_offset` up to `end_offset`; None for none."""
        frames = DecodedFrames(chunk, start_offset, end_offset)
        if len(frames) and self._row_filter is not None:
            matches = self._row_filter.mask(pa.Table.from_batches([self._of(frames, self._tested)]))
            if not matches.all():
                frames = frames.only(np.flatnonzero(matches))
        return self._of(frames, self._schema) if len(frames) else None

    def _of(self, frames: DecodedFrames, schema: pa.Schema) -> pa.RecordBatch:
        arrays = [
            _GATHERED[field.name](frames)
            if field.name in _GATHERED
            else frames.carried_column(field)
            if field.name in CARRIED
            else self._constant(field, len(frames))
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _constant(self, field: pa.Field, count: int) -> pa.Array:
        """A constant column, cached at the largest length needed so far."""
        cached = self._constants.get(field.name)
        if cached is None or len(cached) < count:
            rows = 1 << (count - 1).bit_length()
            cached = repeated(self._values[field.name], rows)
            self._constants[field.name] = cached
        return cached.slice(0, count)
