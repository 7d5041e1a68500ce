"""Publish half messages to their topics, all at once.

They are copied into batches of their topics, which are written as one bundle of the log, together
with the journal entry of the outcome (see `martlet.log.atomic_batches`). So at no moment are only
some of them visible: neither after a crash, nor to a consumer, which gets none before all are
stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from martlet.broker.queue.queue_log import ID_MASK, MAX_BATCH_BYTES
from martlet.log.atomic_batches import BatchSlot
from martlet.log.index import IndexEntry
from martlet.log.record import FRAME_HEADER_BYTES, Contents, record_length
from martlet.properties.bulk import packed_bytes

if TYPE_CHECKING:
    from martlet.broker.topic.registry import TopicRegistry
    from martlet.broker.topic.retained import Retained
    from martlet.broker.transactions.half_topic import SentMessages, StoredHalf
    from martlet.log.batch import LogBatch


class PendingCopy(NamedTuple):
    """Messages of a transaction and their target.

    Attributes:
        topic: the target, at one of its queues.
        stored: the messages.
        deliver_at_ns: when they are due, if the topic is a bucket.
    """

    topic: Retained
    stored: StoredHalf | SentMessages
    deliver_at_ns: int = 0


class _Piece(NamedTuple):
    """A batch to be written to one topic."""

    topic: Retained
    deliver_at_ns: int
    first_offset: int
    stored: list[StoredHalf | SentMessages]
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    payload_length: int
    properties_length: int

    @property
    def length(self) -> int:
        """The length of its record."""
        return record_length(self.payload_length, self.count, self.properties_length)


def forward(
    registry: TopicRegistry,
    wanted: Sequence[PendingCopy],
    entry: Callable[[Sequence[Retained]], bytes],
) -> int:
    """Store messages in their topics, all or none of them.

    Args:
        registry: all topics of the broker.
        wanted: batches of half messages, in order.
        entry: makes the journal entry, for the topics at their queues.

    Returns the position of the log behind them.

    Raises:
        BadRecord: half messages are damaged.
        WritesRefused: there is no space.
    """
    registry.commit()
    batch = registry.lend_scratch()
    pieces = list(_pieces(wanted))
    topics = list(dict.fromkeys(piece.topic for piece in pieces))
    now_ns = registry.stored_at_ns()
    try:
        positions = registry.log.append_bundle(
            entry(topics),
            [piece.length for piece in pieces],
            (_laid_out(batch, piece, now_ns) for piece in pieces),
            now_ns,
        )
    finally:
        registry.take_scratch(batch)
    firsts = {topic: topic.queue.end_offset for topic in topics}
    for piece, position in zip(pieces, positions, strict=True):
        queue = piece.topic.queue
        assert queue.end_offset == piece.first_offset
        times_ns = (now_ns, piece.deliver_at_ns)
        queue.index.add(
            IndexEntry(piece.first_offset, position, piece.count, piece.length, *times_ns)
        )
        queue.end_offset += piece.count
        queue.message_bytes += piece.payload_length - FRAME_HEADER_BYTES * piece.count
        registry.stored_count += piece.count
        if piece.deliver_at_ns:
            # A bucket delivers nothing yet, and adds one row at a time.
            piece.topic.stored(piece.first_offset, queue.end_offset, False)
            firsts.pop(piece.topic, None)
    position = registry.relocated_position = registry.log.position
    for topic, first in firsts.items():
        registry.stored(topic, first, False)
    return position


def _pieces(wanted: Sequence[PendingCopy]) -> Iterator[_Piece]:
    """Yield the batches: messages of one topic and time in order, up to a size."""
    groups: dict[tuple[Retained, int], list[StoredHalf | SentMessages]] = {}
    for topic, stored, deliver_at_ns in wanted:
        groups.setdefault((topic, deliver_at_ns), []).append(stored)
    offsets = {topic: topic.queue.end_offset for topic, _ in groups}
    for (topic, deliver_at_ns), all_stored in groups.items():
        some: list[StoredHalf | SentMessages] = []
        size_bytes = 0
        for stored in all_stored:
            if some and size_bytes + stored.size_bytes > MAX_BATCH_BYTES:
                piece = _piece(topic, deliver_at_ns, offsets[topic], some)
                yield piece
                offsets[topic] += piece.count
                some, size_bytes = [], 0
            some.append(stored)
            size_bytes += stored.size_bytes
        piece = _piece(topic, deliver_at_ns, offsets[topic], some)
        yield piece
        offsets[topic] += piece.count


def _piece(
    topic: Retained, deliver_at_ns: int, first_offset: int, stored: list[StoredHalf | SentMessages]
) -> _Piece:
    count = sum(each.message_count for each in stored)
    payload_length = sum(each.size_bytes for each in stored)
    properties_length = packed_bytes([each.entries for each in stored])
    return _Piece(
        topic, deliver_at_ns, first_offset, stored, count, payload_length, properties_length
    )


def _laid_out(batch: LogBatch, piece: _Piece, now_ns: int) -> BatchSlot:
    queue = piece.topic.queue
    batch.begin((queue.id_base + piece.first_offset) & ID_MASK, now_ns)
    for stored in piece.stored:
        if stored.entries:
            batch.set_properties(batch.count, stored.entries)
        stored.add_to(batch)
    record, flags = batch.finish()
    contents = Contents(
        queue.topic,
        queue.number,
        piece.count,
        piece.first_offset,
        now_ns,
        piece.deliver_at_ns,
        batch.payload_length,
        batch.properties_length,
    )
    return BatchSlot(record, flags, contents)
