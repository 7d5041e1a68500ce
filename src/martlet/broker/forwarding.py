"""Forwarding: half messages go to where they belong, all at once.

They are copied into batches of their topics, which are written as one bundle of the log, together
with what was decided (see `martlet.log.bundle`).  So there is no moment at which some of them are
there: not for a crash, and not for a consumer, who is handed nothing before all are in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from martlet.broker.queue import ID_MASK, MOST_BATCH_BYTES
from martlet.log.bundle import Part
from martlet.log.index import Entry
from martlet.log.record import FRAME_HEADER_BYTES, record_length
from martlet.properties import BLOCK_HEAD_BYTES, BLOCK_ROW_BYTES

if TYPE_CHECKING:
    from martlet.broker.broker import Broker
    from martlet.broker.half import Stored
    from martlet.broker.topic import Topic
    from martlet.log.batch import Batch


class _Piece(NamedTuple):
    """A batch to be: what goes into one batch of a topic."""

    topic: Topic
    first_offset: int
    stored: list[Stored]
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    payload_length: int
    properties_length: int

    @property
    def length(self) -> int:
        """Of the record."""
        return record_length(self.payload_length, self.count, self.properties_length)


def forward(
    broker: Broker,
    wanted: Sequence[tuple[Topic, Stored]],
    entry: Callable[[Sequence[Topic]], bytes],
) -> int:
    """Store messages in their topics, all or none of them.

    Args:
        broker: where.
        wanted: batches of half messages and where each belongs, in order.
        entry: makes what the journal is to say of it, for the topics at their queues.

    Returns the position of the log behind them.

    Raises:
        BadRecord: half messages are damaged.
        WritesRefused: there is no room.
    """
    broker.commit()
    batch = broker.lend_scratch()
    pieces = list(_pieces(wanted))
    topics = list(dict.fromkeys(piece.topic for piece in pieces))
    now_ns = broker.stored_at_ns()
    try:
        positions = broker.log.append_bundle(
            entry(topics),
            [piece.length for piece in pieces],
            (_laid_out(batch, piece, now_ns) for piece in pieces),
            now_ns,
        )
    finally:
        broker.take_scratch(batch)
    firsts = {topic: topic.queue.end_offset for topic in topics}
    for piece, position in zip(pieces, positions, strict=True):
        queue = piece.topic.queue
        queue.index.add(Entry(piece.first_offset, position, piece.count, piece.length, now_ns, 0))
        queue.end_offset += piece.count
        queue.message_bytes += piece.payload_length - FRAME_HEADER_BYTES * piece.count
        broker.stored_count += piece.count
    position = broker.moved_to = broker.log.position
    for topic, first in firsts.items():
        topic.stored(first, False)
    return position


def _pieces(wanted: Sequence[tuple[Topic, Stored]]) -> Iterator[_Piece]:
    """What goes into each batch: those of one topic in their order, up to a size."""
    by_topic: dict[Topic, list[Stored]] = {}
    for topic, stored in wanted:
        by_topic.setdefault(topic, []).append(stored)
    for topic, all_stored in by_topic.items():
        offset = topic.queue.end_offset
        some: list[Stored] = []
        size_bytes = 0
        for stored in all_stored:
            if some and size_bytes + len(stored.frames) > MOST_BATCH_BYTES:
                piece = _piece(topic, offset, some)
                yield piece
                offset += piece.count
                some, size_bytes = [], 0
            some.append(stored)
            size_bytes += len(stored.frames)
        yield _piece(topic, offset, some)


def _piece(topic: Topic, first_offset: int, stored: list[Stored]) -> _Piece:
    count = sum(len(each.ends) for each in stored)
    payload_length = sum(len(each.frames) for each in stored)
    entries = [entry for each in stored for _, entry in each.entries]
    properties_length = 0
    if entries:
        properties_length = BLOCK_HEAD_BYTES + BLOCK_ROW_BYTES * len(entries)
        properties_length += sum(map(len, entries))
    return _Piece(topic, first_offset, stored, count, payload_length, properties_length)


def _laid_out(batch: Batch, piece: _Piece, now_ns: int) -> Part:
    queue = piece.topic.queue
    batch.begin((queue.id_base + piece.first_offset) & ID_MASK, now_ns)
    for stored in piece.stored:
        if stored.entries:
            batch.tell(batch.count, stored.entries)
        batch.add_frames(stored.frames, stored.ends)
    record, flags = batch.finish()
    return Part(
        record,
        batch.payload_length,
        flags,
        queue.topic,
        queue.number,
        piece.count,
        piece.first_offset,
        now_ns,
        0,
        batch.properties_length,
    )
