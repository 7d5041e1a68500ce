"""The trace search: finds messages in the log by id or key, with their history.

::

    the log   | batch: stored | ... | trace: delivered, requeued | trace: finished | ...
                ^ by the id, its offset and the index, or by the index of keys
                                    ^ from there on, the traces of its topic

An id leads to an offset of a queue, and the queue's index to the batch. The id of a delayed message
leads to its bucket; the forwarded message names that id in its properties. A key is found by the
index of keys (`martlet.log.keys.search`). The history of a message is in the trace records
(`martlet.broker.tracing.recorder`) behind it: the search scans all headers, and reads the trace
records of its topic. The journal has each channel's current position.

The search only reads the data folder, with or without a running broker; nothing is locked. It ends
at a time limit, and reports whether it was complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from martlet.broker.journal.entries import IndexRecord, checkpoint_head
from martlet.broker.queue.queue_log import ID_MASK
from martlet.broker.recovery.journal_replay import RecoveredState, RecoveredTopic
from martlet.broker.tracing.recorder import TraceChunk, TraceEvent, TraceStep
from martlet.log import checkpoint_file as checkpoint
from martlet.log.folder import Folder, ReadOnlySegment
from martlet.log.index import ENTRY, index_name
from martlet.log.keys.search import KeyQuery, KeySearch
from martlet.log.record import (
    FRAME_HEADER_BYTES,
    BadRecord,
    Header,
    RecordKind,
    frame_ends,
    payload,
    properties,
    read_header,
    read_record,
)
from martlet.log.recovery import begun_at_ns, heads, segments_since
from martlet.log.storage import Segment, Storage
from martlet.names import ID_RULE, is_message_id, is_system
from martlet.properties.block import Block
from martlet.properties.model import NONE, Properties

if TYPE_CHECKING:
    from pathlib import Path

_NO_INDEX = IndexRecord(0, 0, 0)


@dataclass
class Standing:
    """The state of a message in a channel."""

    channel: str
    state: str
    """``waiting`` for its first delivery, ``unfinished`` where it was delivered and may be in
    flight, ``deferred``, or ``done``.
    """
    attempts: int = 0
    """The number of deliveries, of one that is unfinished or deferred."""
    due_ns: int = 0
    """When it is to be delivered, of one that is deferred."""
    is_group: bool = False
    """Whether it is a group, whose members fetch and commit."""


@dataclass
class Trace:
    """A message and its history."""

    id: str
    topic: str
    queue: int
    offset: int
    """-1 if it has none in the topic."""
    stored_at_ns: int
    deliver_at_ns: int
    """When a deferred or delayed one is due; else 0."""
    body_bytes: int
    properties: Properties
    events: list[TraceEvent] = field(default_factory=list)
    starts_ns: list[int] = field(default_factory=list)
    """The later starts of the broker: messages in flight were redelivered."""
    standing: list[Standing] = field(default_factory=list)
    known_since_ns: int = 0
    """The log has its history from this time on."""
    delayed: str = ""
    """Of a delayed message that is not in its topic: ``waiting`` for its time, or ``done``, which
    is cancelled, or delivered and deleted since.
    """


@dataclass
class TraceResult:
    """The result of a search."""

    traces: list[Trace]
    """The messages, by time."""
    complete: bool
    """Whether the search was complete; not if the time limit was reached or there are more."""
    traced: bool
    """Whether the log has any history of their topics' messages."""
    log_since_ns: int
    """When the oldest segment was begun."""


class TraceNotFound(Exception):
    """The message does not exist, or was deleted; the text says which."""


class Search:
    """A search in a data folder, of all topics or of one, until the time limit `is_over`."""

    def __init__(
        self, folder: Folder, is_over: Callable[[], bool] = lambda: False, topic: str = ""
    ) -> None:
        self._folder = folder
        self._is_over = is_over
        self._topic = topic
        self._complete = True
        self.not_indexed: list[Path] = []
        """The segments that were read since they have no index of keys that fits."""
        self._indexes: Mapping[int, IndexRecord] = {}
        self._segments = folder.segments()
        self._journal = self._read_journal()
        if topic and topic not in {t.record.name for t in self._journal.topics.values()}:
            raise TraceNotFound(f"there is no topic {topic!r}")

    def by_id(self, id: str) -> TraceResult:
        """Return the message with an id, or those that had it before they were moved: delayed
        messages and dead letters. Raises TraceNotFound.
        """
        if not is_message_id(id.lower()):
            raise TraceNotFound(f"{id[:80]!r} is no message id: {ID_RULE}")
        number = int(id, 16)
        matches = [
            (topic, offset)
            for topic in self._topics()
            if (offset := (number - topic.record.id_base) & ID_MASK) < topic.next_offset
        ]
        if not matches:
            with suppress(TraceNotFound):
                return self.by_key(id.lower())
            delayed = self._delayed(number)
            if delayed is not None:
                return TraceResult([delayed], self._complete, True, begun_at_ns(self._segments))
            raise TraceNotFound(
                f"no message of {'topic ' + repr(self._topic) if self._topic else 'this broker'}"
                f" has the id {id}: another broker gave it, its topic was deleted, or a delayed"
                " message had it that was delivered or cancelled since"
            )
        traces: list[Trace] = []
        for topic, offset in matches:
            if (trace := self._located(topic, offset)) is None:
                raise TraceNotFound(self._gone(topic, offset))
            traces.append(trace)
        return self._completed(traces)

    def by_key(self, key: str, since_ns: int = 0, max_count: int = 20) -> TraceResult:
        """Return the newest messages with a key, stored since a time, delayed ones included. Raises
        TraceNotFound.
        """
        topics = {topic.record.id: topic for topic in self._topics()}
        buckets = {bucket.record.id: (bucket, topic) for bucket, topic in self._buckets()}
        topics |= {number: bucket for number, (bucket, _) in buckets.items()}
        traces: dict[tuple[int, int], Trace] = {}
        query = KeyQuery(key, topics.keys(), since_ns, has_notes=True)
        search = KeySearch(self._folder.path, query, self._folder.end, self._ask)
        self.not_indexed = search.not_indexed
        for match in search.find():
            number, offset = match.header.topic, match.offset
            trace = _trace(topics[number], match.header, offset, match.body_bytes, match.entry)
            if number in buckets:
                self._add_delayed(trace, *buckets[number])
            traces.setdefault((number, offset), trace)
            if len(traces) > max_count:
                self._complete = False
                break
        if not traces:
            since = f" since {_shown(since_ns)}" if since_ns else ""
            where = f"topic {self._topic!r}" if self._topic else "the log"
            far = "" if self._complete else ", as far as it was read in the time given"
            began = _shown(begun_at_ns(self._segments))
            raise TraceNotFound(
                f"no message with the key {key!r} is stored in {where}{since}{far}; the log goes"
                f" back to {began}"
            )
        # Leave out a delayed message if the forwarded one, which names its id, was found.
        new = {value for trace in traces.values() for value in trace.properties.system.values()}
        some = [one for one in traces.values() if not one.delayed or one.id not in new]
        return self._completed(some[max_count - 1 :: -1])

    # the journal

    def _read_journal(self) -> RecoveredState:
        """Read the current topics, channels and cursors."""
        state = RecoveredState(cast(Storage, self._folder), 1 << 20)
        start = 0
        loaded = checkpoint.load(self._folder)
        if not isinstance(loaded, str):
            head = checkpoint_head(loaded)
            start, self._indexes = head.position, head.indexes
            for kind, topic, entry in loaded.entries:
                if kind in (RecordKind.TOPOLOGY, RecordKind.CURSOR, RecordKind.MARKS):
                    state.apply(kind, topic, entry)
        journal = (RecordKind.TOPOLOGY, RecordKind.CURSOR, RecordKind.MARKS, RecordKind.BATCH)
        for header, segment in heads(self._segments, start, journal):
            if header.kind != RecordKind.BATCH:
                record = _verified(header, segment)
                if record is not None:
                    state.apply(header.kind, header.topic, bytes(payload(header, record)))
            elif header.topic in state.topics:
                recovered = state.topics[header.topic]
                recovered.end_offset = max(recovered.end_offset, header.first_offset + header.count)
        return state

    def _topics(self) -> Iterator[RecoveredTopic]:
        for topic in self._journal.topics.values():
            name = topic.record.name
            if name == self._topic if self._topic else not is_system(name):
                yield topic

    def _buckets(self) -> Iterator[tuple[RecoveredTopic, RecoveredTopic]]:
        """Yield the buckets, with the topic of each."""
        for bucket in self._journal.topics.values():
            delayed = bucket.record.delayed
            topic = self._journal.topics.get(delayed.topic) if delayed else None
            if topic is not None and self._topic in ("", topic.record.name):
                yield bucket, topic

    # messages

    def _delayed(self, id: int) -> Trace | None:
        """Return a message that is delayed, or was and is not in its topic."""
        for bucket, topic in self._buckets():
            offset = (id - bucket.record.id_base) & ID_MASK
            if offset >= bucket.next_offset:
                continue
            if (trace := self._located(bucket, offset)) is not None:
                self._add_delayed(trace, bucket, topic)
                return trace
        return None

    def _add_delayed(self, trace: Trace, bucket: RecoveredTopic, topic: RecoveredTopic) -> None:
        """Set the target topic of a message that was found in a bucket."""
        marks = self._journal.marks.get(bucket.record.id)
        is_done = marks is not None and marks.has(trace.offset)
        trace.delayed = "done" if is_done else "waiting"
        trace.topic = topic.record.name
        trace.queue, trace.offset = topic.record.queue, -1

    def _located(self, topic: RecoveredTopic, offset: int) -> Trace | None:
        located = self._by_index(topic, offset) or self._by_scan(topic.record.id, offset)
        return None if located is None else self._read(topic, *located, offset)

    def _by_index(self, topic: RecoveredTopic, offset: int) -> tuple[Header, Segment] | None:
        """Return the batch of an offset by the index of the last checkpoint, if that has it."""
        number, queue = topic.record.id, topic.record.queue
        first_row, stored = self._indexes.get(number, _NO_INDEX)[:2]
        data = self._folder.map(index_name(number, queue, first_row)) if stored else None
        if data is None or len(data) < stored * ENTRY.itemsize:
            return None
        rows = np.frombuffer(data, ENTRY, stored)
        row = int(np.searchsorted(rows["first_offset"], np.uint64(offset), "right")) - 1
        if row < 0 or not offset < int(rows[row]["first_offset"]) + int(rows[row]["count"]):
            return None
        return self._at(int(rows[row]["position"]), number, offset)

    def _at(self, position: int, topic: int, offset: int) -> tuple[Header, Segment] | None:
        for segment in self._segments:
            if segment.base <= position < segment.base + segment.capacity:
                try:
                    header = read_header(segment.view, position - segment.base, position)
                except BadRecord:
                    return None
                return (header, segment) if _holds(header, topic, offset) else None
        return None

    def _by_scan(self, topic: int, offset: int) -> tuple[Header, Segment] | None:
        """Return the batch of an offset by the headers of all records; copies count."""
        located = None
        for header, segment in self._heads(self._segments, RecordKind.BATCH):
            if _holds(header, topic, offset):
                located = header, segment
        return located

    def _gone(self, topic: RecoveredTopic, offset: int) -> str:
        number, name = topic.record.id, topic.record.name
        first = None
        for header, _ in self._heads(self._segments, RecordKind.BATCH):
            if header.topic == number:
                first = header
                break
        queue = topic.record.queue
        where = f"queue {queue} of topic {name!r}" if queue else f"topic {name!r}"
        if first is None:
            stored = "nothing of it is stored any more"
        else:
            stored = (
                f"what is stored of it begins at offset {first.first_offset}, of"
                f" {_shown(first.stored_at_ns)}"
            )
        return f"that is offset {offset} of {where}, and the message has gone: {stored}"

    @staticmethod
    def _read(topic: RecoveredTopic, header: Header, segment: Segment, offset: int) -> Trace | None:
        """Return a message without its history; None where it does not verify."""
        record = _verified(header, segment)
        if record is None:
            return None
        number = offset - header.first_offset
        ends = frame_ends(header, record)
        length = int(ends[number]) - (int(ends[number - 1]) if number else 0)
        entry = Block(properties(header, record)).of(number) if header.properties_length else b""
        return _trace(topic, header, offset, length - FRAME_HEADER_BYTES, entry)

    # history

    def _completed(self, traces: list[Trace]) -> TraceResult:
        since_ns = min(trace.stored_at_ns for trace in traces)
        segments = segments_since(self._segments, since_ns)
        ids = {
            (topic.record.name, topic.record.queue): number
            for number, topic in self._journal.topics.items()
        }
        of_topic: dict[int, list[Trace]] = {}
        for trace in traces:
            if trace.delayed:
                continue
            of_topic.setdefault(ids[trace.topic, trace.queue], []).append(trace)
            trace.known_since_ns = max(trace.stored_at_ns, begun_at_ns(segments))
        starts_ns: list[int] = []
        traced = all(trace.delayed for trace in traces)
        for header, segment in self._heads(segments, RecordKind.EPOCH, RecordKind.TRACE):
            if header.kind == RecordKind.EPOCH:
                starts_ns.append(header.stored_at_ns)
            if header.kind != RecordKind.TRACE or header.topic not in of_topic:
                continue
            record = _verified(header, segment)
            if record is None:
                continue
            traced = True
            try:
                piece = TraceChunk(payload(header, record))
            except BadRecord:
                continue
            for trace in of_topic[header.topic]:
                trace.events += piece.of(trace.offset)
        for trace in traces:
            trace.events.sort(key=lambda event: event.time_ns)
            trace.starts_ns = [time_ns for time_ns in starts_ns if _matters(trace, time_ns)]
        traces.sort(key=lambda trace: trace.stored_at_ns)
        return TraceResult(traces, self._complete, traced, begun_at_ns(self._segments))

    def _heads(
        self, segments: list[Segment], *kinds: RecordKind
    ) -> Iterator[tuple[Header, Segment]]:
        return heads(segments, 0, kinds, self._ask)

    def _ask(self) -> bool:
        """Whether the time limit is reached, which leaves the search incomplete."""
        if self._is_over():
            self._complete = False
        return not self._complete


def _trace(
    topic: RecoveredTopic, header: Header, offset: int, body_bytes: int, entry: bytes
) -> Trace:
    """Return a message without its history."""
    queue = topic.record
    return Trace(
        f"{(queue.id_base + offset) & ID_MASK:016x}",
        queue.name,
        queue.queue,
        offset,
        header.stored_at_ns,
        max(0, header.deliver_at_ns),
        body_bytes,
        Properties.unpack(entry) if entry else NONE,
        standing=list(_standing(topic, offset)),
    )


def _holds(header: Header, topic: int, offset: int) -> bool:
    is_inside = header.first_offset <= offset < header.first_offset + header.count
    return header.kind == RecordKind.BATCH and header.topic == topic and is_inside


def _verified(header: Header, segment: Segment) -> memoryview | None:
    """Return the record of a header, if it verifies and its segment still exists."""
    try:
        _, record = read_record(segment.view, header.position - segment.base, header.position)
    except BadRecord:
        return None
    if isinstance(segment, ReadOnlySegment) and segment.gone:
        return None
    return record


def _standing(topic: RecoveredTopic, offset: int) -> Iterator[Standing]:
    paused_at = topic.record.paused_at
    for number, channel in topic.channels.items():
        cursor = topic.cursors.get(number)
        if cursor is None:
            continue
        is_group = (channel.policy or {}).get("kind") == "offsets"
        attempts, due_ns, _ = cursor.pending.get(offset, (0, 0, 0))
        if offset in cursor.pending:
            state = "deferred" if due_ns else "unfinished"
        elif any(first <= offset < end for first, end in cursor.ranges):
            state, attempts = "unfinished", 1
        elif offset >= cursor.next or (paused_at is not None and offset >= paused_at):
            state = "waiting"
        else:
            state = "done"
        yield Standing(channel.name, state, attempts, due_ns, is_group)


def _matters(trace: Trace, start_ns: int) -> bool:
    """Whether a start of the broker affected a message: a channel had received it, unfinished."""
    if start_ns <= trace.stored_at_ns:
        return False
    last: dict[str, TraceStep] = {}
    for event in trace.events:
        if event.time_ns < start_ns:
            last[event.channel] = event.step
    return bool({TraceStep.DELIVERED, TraceStep.FETCHED} & set(last.values()))


def _shown(time_ns: int) -> str:
    moment = np.datetime64(time_ns // 1000, "us")
    return f"{np.datetime_as_string(moment, 'ms')}Z"
