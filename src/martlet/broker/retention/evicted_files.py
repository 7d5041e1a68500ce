"""The dead letter: a message given up by a channel, as it is kept outside of the log.

A file holds those of one channel of one segment, named by the segment's first position, the topic
and the channel (which none of them has an ``@`` in), a line of JSON each::

    00000000000104857600@orders@mail.jsonl
    {"offset":17,"id":"1f...","timestamp_ns":1760...,"deliver_at_ns":0,"body_base64":"aGVsbG8="}

Without a channel the name ends behind the topic: they waited for a first one.  A queue's number
stands behind the position, ``00000000000104857600.2@orders``, but for number 0.  Delayed messages,
which waited for their time, are in files of their own, by their bucket's number:
``00000000000104857600-17@orders``.  Half messages of all topics are in ``...@%half``, and each line
says the ``transaction`` and the ``topic``.  A name is the same when a segment is evicted once more
after a crash, so nothing is kept twice for that.  The line of a message that has properties tells
them too: ``"properties":{"tag":...,"keys":[...],"order_key":...,"headers":{...},"system":{...}}``.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from martlet.broker.transactions.half_topic import HalfTopic, description_in_record
from martlet.log.index import IndexEntry
from martlet.log.record import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    BadRecord,
    frame_ends,
    properties,
    read_record,
)
from martlet.properties.block import Block
from martlet.properties.model import BadProperties, Properties

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.in_flight import Offsets
    from martlet.broker.retention.eviction import EvictionLoss
    from martlet.broker.topic.topic import Topic
    from martlet.log.storage import Segment


def file_name(base: int, topic: Topic, channel: Channel | None) -> str:
    """The file of a channel's dead letters from the segment that begins at a position."""
    home = topic.home
    queue = f".{home.number}" if home.number else ""
    bucket = f"-{topic.id}" if home is not topic else ""
    place = f"{base:020d}{queue}{bucket}"
    return "@".join([place, home.name, *([channel.name] if channel else [])]) + ".jsonl"


def lines(
    segment: Segment, loss: EvictionLoss, offsets: Offsets, on_bad: Callable[[int, int, str], None]
) -> Iterator[bytes]:
    """The lines of some messages, batch by batch.

    Args:
        segment: which they are in.
        loss: that they belong to.
        offsets: of the messages; they rise.
        on_bad: told of batches that do not verify: first offset, end offset, why.
    """
    message_id = loss.topic.queue.message_id
    is_half = isinstance(loss.topic, HalfTopic)
    for row in loss.rows.tolist():
        entry = IndexEntry._make(row)
        begin, stop = offsets.searchsorted([entry.first_offset, entry.end_offset]).tolist()
        if begin == stop:
            continue
        try:
            header, record = read_record(
                segment.view, entry.position - segment.base, entry.position
            )
        except BadRecord as error:
            on_bad(entry.first_offset, entry.end_offset, str(error))
            continue
        ends = [0, *frame_ends(header, record).tolist()]
        told = description_in_record(header, record) if is_half else None
        of_all = _fields({name: told[name] for name in ("transaction", "topic")}) if told else b""
        block = Block(properties(header, record)) if header.properties_length else None
        parts = []
        for offset in offsets[begin:stop].tolist():
            number = offset - entry.first_offset
            at = HEADER_BYTES + ends[number]
            entry_bytes = block.of(number) if block is not None else b""
            beside = of_all + (_carried(entry_bytes) if entry_bytes else b"")
            parts.append(
                b'{"offset":%d,"id":"%b",%b"timestamp_ns":%d,"deliver_at_ns":%d,"body_base64":"%b"}\n'
                % (
                    offset,
                    message_id(offset),
                    beside,
                    int.from_bytes(record[at + 8 : at + 16]),
                    max(0, entry.deliver_at_ns),  # Negative: for one channel alone.
                    b2a_base64(
                        record[at + FRAME_HEADER_BYTES : HEADER_BYTES + ends[number + 1]],
                        newline=False,
                    ),
                )
            )
        yield b"".join(parts)


def _carried(entry: bytes) -> bytes:
    """The properties of a message, among the fields of its line."""
    try:
        known = Properties.unpack(entry)
    except BadProperties:
        return _fields({"properties_base64": b2a_base64(entry, newline=False).decode()})
    told = {
        "tag": known.tag,
        "keys": list(known.keys),
        "order_key": known.order_key,
        "headers": dict(known.headers),
        "system": dict(known.system),
    }
    found = {name: value for name, value in told.items() if value}
    return _fields({"properties": found}) if found else b""


def _fields(told: dict[str, Any]) -> bytes:
    """What stands in a line among its other fields."""
    return json.dumps(told, separators=(",", ":"))[1:-1].encode() + b","
