"""Encode rows as blocks of messages, without Python code for each row.

A block is sent in one piece: messages of one topic, and of one queue if the rows choose queues.
Arrow joins the bodies of a column, each behind its size; properties are encoded by column too
(`martlet.spark.write.property_encoding`).  If a batch's rows have several destinations, one stable
sort by destination makes the rows of each contiguous and keeps their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from martlet.client.transactions.bulk import MessageBlock
from martlet.names import is_valid_name
from martlet.properties.model import MAX_PRIORITY, NORMAL_PRIORITY, KeyHash
from martlet.reader.no_value import MARK, bodies_of, marks_of, refusal
from martlet.spark.write.options import NullValues
from martlet.spark.write.property_encoding import (
    Int64s,
    as_binary,
    cuts_of,
    entries_of,
    marked_rows,
    of_fixed,
    priorities_of,
    sizes_of,
    tag_hashes,
)
from martlet.spark.write.schema import PASSED_OVER

_SIZE_BYTES = 4
_ROW_BYTES = 16
"""Bytes of a message with properties beside its body and its entry."""
_TIME_BYTES = 32
MAX_ROWS = 50_000
"""Rows of one block, so that the work for each row in a block stays short."""
MAX_PENDING_BYTES = 64 << 20
"""Pending rows of all destinations; above it the largest is sent before its block is full."""
_ANY = -1
_BY_PRIORITY = -2
"""Numbers from here down stand for the queues of priorities: of 0, of 1 and so on."""
_LOWEST = _BY_PRIORITY - MAX_PRIORITY
MAX_TIMES = 1000
"""Delivery times of one block; the broker takes 10,000 in a SEND."""
_MAX_QUEUES = 1 << 16
"""More than any topic has."""
_MS_US = 1000


class RowDestination(NamedTuple):
    """A topic and its queue: -1 for any, or `_BY_PRIORITY` and below."""

    topic: str
    queue: int


class KeyQueues(NamedTuple):
    """The queues of a topic that order keys lead to, and how."""

    queue_count: int
    key_hash: KeyHash


class Rows(NamedTuple):
    """Messages of one destination, as columns."""

    bodies: pa.Array
    """Binary, without nulls."""
    entries: pa.Array | None
    """The property entries, binary; None if no message has properties."""
    tags: npt.NDArray[np.uint32] | None
    """The tags' hashes; None if no message has a tag."""
    times: Int64s | None
    """The delivery times in milliseconds, 0 for at once; None if all are at once."""

    @property
    def sizes(self) -> Int64s:
        """The bytes of each message in a block."""
        sizes = sizes_of(self.bodies) + _SIZE_BYTES
        if self.entries is not None:
            sizes += sizes_of(self.entries) + _ROW_BYTES
        if self.times is not None:
            sizes += _TIME_BYTES
        return sizes

    def take(self, order: Int64s) -> Rows:
        """Select rows by their numbers, in that order."""
        return Rows(
            self.bodies.take(pa.array(order)),
            None if self.entries is None else self.entries.take(pa.array(order)),
            None if self.tags is None else self.tags[order],
            None if self.times is None else self.times[order],
        )

    def slice(self, first: int, stop: int) -> Rows:
        """Select the rows from `first` up to `stop`."""
        return Rows._make(None if column is None else column[first:stop] for column in self)


@dataclass
class _Pending:
    rows: list[Rows] = field(default_factory=list)
    size_bytes: int = 0


class Encoder:
    """Builds blocks of a task's rows.

    Args:
        key_queues: returns those of a topic; it is called if rows have keys.
        delay_step_ms: delivery times are rounded up to multiples of it.
        uses_partition: whether column `partition` chooses queues; None if it does in rows that have
            no column of a source beside it.
    """

    def __init__(
        self,
        topic: str | None,
        key_queues: Callable[[str], KeyQueues],
        *,
        block_bytes: int,
        max_message_bytes: int,
        delay_step_ms: int = 1,
        null_values: NullValues = NullValues.ERROR,
        uses_partition: bool | None = None,
    ) -> None:
        self._topic = topic
        self._key_queues = key_queues
        self._queues_of_topic: dict[str, KeyQueues] = {}
        self._block_bytes = block_bytes
        self._max_message_bytes = max_message_bytes
        self._delay_step_ms = delay_step_ms
        self._null_values = null_values
        self._uses_partition = uses_partition
        self._pending: dict[RowDestination, _Pending] = {}
        self._pending_bytes = 0
        self._are_delays = False

    def add(self, batch: pa.RecordBatch) -> Iterator[MessageBlock]:
        """Add rows, and yield the blocks that are full then. Raises ValueError for a bad row."""
        if not len(batch):
            return
        self._are_delays = batch.schema.get_field_index("delay") >= 0
        for destination, rows in self._by_destination(batch):
            pending = self._pending.setdefault(destination, _Pending())
            pending.rows.append(rows)
            size_bytes = int(rows.sizes.sum())
            pending.size_bytes += size_bytes
            self._pending_bytes += size_bytes
            if pending.size_bytes >= self._block_bytes:
                yield from self._full(destination, pending)
        while self._pending_bytes > MAX_PENDING_BYTES:
            largest = max(self._pending, key=lambda key: self._pending[key].size_bytes)
            yield from self._all(largest)

    def rest(self) -> Iterator[MessageBlock]:
        """Yield the blocks of all pending rows."""
        for destination in list(self._pending):
            yield from self._all(destination)

    def _by_destination(self, batch: pa.RecordBatch) -> Iterator[tuple[RowDestination, Rows]]:
        batch, bodies, marks = self._bodies(batch)
        if not len(batch):
            return
        rows = Rows(bodies, entries_of(batch, marks), tag_hashes(batch), self._times(batch))
        topics, of_topic = self._topics(batch)
        queues = self._queues(batch, topics, of_topic) - _LOWEST
        width = int(queues.max()) + 1
        numbers = of_topic * width + queues
        first = int(numbers[0])
        if (numbers == first).all():
            yield RowDestination(topics[first // width], first % width + _LOWEST), rows
            return
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows.take(order), numbers[order]
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, stop in pairwise(edges):
            number = int(numbers[start])
            yield (
                RowDestination(topics[number // width], number % width + _LOWEST),
                rows.slice(start, stop),
            )

    def _bodies(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array, pa.Array | None]:
        """The rows to be written, their bodies, and a header of those that have no value."""
        bodies, marks = as_binary(batch.column("value")), None
        sizes = sizes_of(bodies)
        lacking = sizes == 0
        if lacking.any():
            # A row of the source has the header already: it is written whatever the option says.
            unmarked = lacking & ~marked_rows(batch, MARK)
            if unmarked.any() and self._null_values is NullValues.ERROR:
                raise refusal(batch, np.flatnonzero(unmarked).tolist())
            if unmarked.any() and self._null_values is NullValues.DROP:
                kept = ~unmarked
                batch, bodies = batch.filter(pa.array(kept)), bodies.filter(pa.array(kept))
                lacking, unmarked = lacking[kept], unmarked[kept]
            marks = marks_of(bodies, unmarked)
            bodies = bodies_of(bodies, lacking)
            sizes = sizes_of(bodies)
        max_length = int(sizes.max(initial=0))
        if max_length > self._max_message_bytes:
            raise ValueError(
                f"column 'value' has {max_length} bytes in a row, and the broker takes"
                f" {self._max_message_bytes} in one message: raise its --max-msg-size"
            )
        return batch, bodies, marks

    def _topics(self, batch: pa.RecordBatch) -> tuple[list[str], Int64s]:
        """The topics, and the number of each row's topic among them."""
        if self._topic is not None:
            return [self._topic], np.zeros(len(batch), np.int64)
        column = batch.column("topic")
        if column.null_count:
            raise ValueError(
                f"column 'topic' is null in {column.null_count} of {len(batch)} rows: leave them"
                " out, or use coalesce(topic, '...')"
            )
        coded = column.dictionary_encode()
        topics: list[str] = coded.dictionary.to_pylist()
        for topic in topics:
            if not is_valid_name(topic):
                raise ValueError(
                    f"column 'topic' has {topic[:80]!r}, which is not a topic name: 1 to 64 of"
                    " . a-z A-Z 0-9 _ -"
                )
        return topics, coded.indices.to_numpy().astype(np.int64)

    def _queues(self, batch: pa.RecordBatch, topics: list[str], of_topic: Int64s) -> Int64s:
        """The queue of each row; -1 for any, and `_BY_PRIORITY` and below for priorities."""
        queues = np.full(len(batch), _ANY, np.int64)
        at = batch.schema.get_field_index("key")
        if at >= 0 and batch.column(at).null_count < len(batch):
            some = [self._queues_of(topic) for topic in topics]
            if max(queues_of.queue_count for queues_of in some) > 1:
                queues = _queues_of_keys(as_binary(batch.column(at)), some, of_topic)
        at = batch.schema.get_field_index("partition")
        uses_partition = self._uses_partition
        if uses_partition is None:
            uses_partition = PASSED_OVER.isdisjoint(batch.schema.names)
        if at >= 0 and uses_partition:
            column = batch.column(at)
            exact: Int64s = column.fill_null(_ANY).to_numpy(zero_copy_only=False).astype(np.int64)
            if int(exact.min()) < 0 and (exact[np.asarray(column.is_valid())] < 0).any():
                raise ValueError(f"column 'partition' has {int(exact.min())}: queues count from 0")
            if int(exact.max()) >= _MAX_QUEUES:
                raise ValueError(
                    f"column 'partition' has {int(exact.max())}: no topic has that many queues"
                )
            queues = np.where(np.asarray(column.is_valid()), exact, queues)
        priorities = priorities_of(batch)
        if priorities is not None:
            queues = np.where(priorities == NORMAL_PRIORITY, queues, _BY_PRIORITY - priorities)
        return queues

    def _queues_of(self, topic: str) -> KeyQueues:
        if topic not in self._queues_of_topic:
            self._queues_of_topic[topic] = self._key_queues(topic)
        return self._queues_of_topic[topic]

    def _times(self, batch: pa.RecordBatch) -> Int64s | None:
        """The delivery time of each row, in milliseconds, rounded up to `delay_step_ms`."""
        for name in ("deliver_at", "delay"):
            at = batch.schema.get_field_index(name)
            if at < 0 or batch.column(at).null_count == len(batch):
                continue
            column = batch.column(at)
            step = self._delay_step_ms
            if not pa.types.is_integer(column.type):
                unit = "us"
                kind = pa.timestamp(unit, column.type.tz) if name == "deliver_at" else None
                column = column.cast(kind or pa.duration(unit)).cast(pa.int64())
                step *= _MS_US
            values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            if name == "delay" and int(values.min()) < 0:
                raise ValueError("column 'delay' is below 0 in a row: greatest(delay, 0)")
            # A time before 1970 means at once too.
            rounded: Int64s = -(-np.maximum(values, 0) // step) * self._delay_step_ms
            return rounded
        return None

    def _full(self, destination: RowDestination, pending: _Pending) -> Iterator[MessageBlock]:
        """Yield the full blocks of a destination; the rows behind them stay pending."""
        rows = _joined(pending.rows)
        ends = np.cumsum(rows.sizes)
        first, before = 0, 0
        while int(ends[-1]) - before >= self._block_bytes or len(ends) - first > MAX_ROWS:
            stop = int(np.searchsorted(ends, before + self._block_bytes, "right"))
            stop = min(max(stop, first + 1), first + MAX_ROWS)
            yield from self._blocks(destination, rows.slice(first, stop))
            first, before = stop, int(ends[stop - 1])
            if first == len(ends):
                break
        self._pending_bytes -= before
        pending.size_bytes -= before
        pending.rows = [rows.slice(first, len(ends))] if first < len(ends) else []
        if not pending.rows:
            del self._pending[destination]

    def _all(self, destination: RowDestination) -> Iterator[MessageBlock]:
        pending = self._pending[destination]
        if len(pending.rows) > 1 or len(pending.rows[0].bodies) > MAX_ROWS:
            yield from self._full(destination, pending)
        if destination in self._pending:
            self._pending_bytes -= pending.size_bytes
            del self._pending[destination]
            yield from self._blocks(destination, _joined(pending.rows))

    def _blocks(self, destination: RowDestination, rows: Rows) -> Iterator[MessageBlock]:
        """Yield the block of some rows; several if they have too many delivery times."""
        edges, at_ms = [0, len(rows.bodies)], rows.times
        if at_ms is not None and at_ms.any():
            order = np.argsort(at_ms, kind="stable")
            rows, at_ms = rows.take(order), at_ms[order]
            edges = [0, *(np.flatnonzero(np.diff(at_ms)) + 1).tolist(), len(at_ms)]
        else:
            at_ms = None
        queue = destination.queue
        for first in range(0, len(edges) - 1, MAX_TIMES):
            of_block = edges[first : first + MAX_TIMES + 1]
            part = rows.slice(of_block[0], of_block[-1])
            times = [] if at_ms is None else [(int(at_ms[a]), b - a) for a, b in pairwise(of_block)]
            yield MessageBlock(
                destination.topic,
                len(part.bodies),
                _framed(part.bodies),
                _properties(part),
                None if queue < 0 else queue,
                times,
                self._are_delays,
                NORMAL_PRIORITY if queue > _BY_PRIORITY else _BY_PRIORITY - queue,
            )


def _joined(some: list[Rows]) -> Rows:
    if len(some) == 1:
        return some[0]
    entries = tags = times = None
    if any(rows.entries is not None for rows in some):
        empty = pa.scalar(b"", pa.binary())
        entries = pa.concat_arrays(
            [pa.repeat(empty, len(r.bodies)) if r.entries is None else r.entries for r in some]
        )
    if any(rows.tags is not None for rows in some):
        tags = np.concatenate(
            [np.zeros(len(r.bodies), np.uint32) if r.tags is None else r.tags for r in some]
        )
    if any(rows.times is not None for rows in some):
        times = np.concatenate(
            [np.zeros(len(r.bodies), np.int64) if r.times is None else r.times for r in some]
        )
    return Rows(pa.concat_arrays([rows.bodies for rows in some]), entries, tags, times)


def _queues_of_keys(keys: pa.Array, topic_queues: list[KeyQueues], of_topic: Int64s) -> Int64s:
    """The queue of each key, hashed once for each distinct key."""
    coded = keys.dictionary_encode()
    crcs = np.array([*map(crc32c, coded.dictionary.to_pylist()), 0], np.int64)
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    counts = np.array([queues_of.queue_count for queues_of in topic_queues], np.int64)[of_topic]
    kinds = list(KeyHash)
    kind = np.array([kinds.index(queues_of.key_hash) for queues_of in topic_queues])[of_topic]
    numbers = np.stack([queues_of.of(crcs) for queues_of in kinds])[kind, codes]
    has_key = (codes >= 0) & (counts > 1) & (sizes_of(keys) > 0)
    queues: Int64s = np.where(has_key, numbers % counts, _ANY)
    return queues


def _framed(bodies: pa.Array) -> memoryview:
    """Concatenate the bodies, each behind its size."""
    count = len(bodies)
    cuts = cuts_of(bodies)
    sizes = np.diff(cuts)
    size = int(sizes[0])
    if (sizes == size).all():
        data = np.frombuffer(bodies.buffers()[2], np.uint8, count * size, int(cuts[0]))
        framed = np.empty((count, _SIZE_BYTES + size), np.uint8)
        framed[:, :_SIZE_BYTES] = np.frombuffer(size.to_bytes(_SIZE_BYTES, "big"), np.uint8)
        framed[:, _SIZE_BYTES:] = data.reshape(count, size)
        return memoryview(framed.data).cast("B")
    joined = pc.binary_join_element_wise(of_fixed(sizes.astype(">u4")), bodies, b"")
    ends = cuts_of(joined)
    return memoryview(joined.buffers()[2])[int(ends[0]) : int(ends[-1])]


def _properties(rows: Rows) -> bytes:
    """The block of properties of some messages (see `martlet.properties.model`); empty for none."""
    entries = rows.entries
    if entries is None:
        return b""
    sizes = sizes_of(entries)
    numbers = np.flatnonzero(sizes)
    if not len(numbers):
        return b""
    cuts = cuts_of(entries)
    data = memoryview(entries.buffers()[2])[int(cuts[0]) : int(cuts[-1])]
    tags = np.zeros(len(numbers), np.uint32) if rows.tags is None else rows.tags[numbers]
    head = (
        len(numbers).to_bytes(4, "little"),
        numbers.astype("<u4").tobytes(),
        np.cumsum(sizes[numbers]).astype("<u4").tobytes(),
        tags.astype("<u4").tobytes(),
    )
    return b"".join([*head, data])
