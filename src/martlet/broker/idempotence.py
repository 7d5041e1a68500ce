"""Idempotent producers: the known sends, so that a repeated one is not stored again.

A producer has an id of 16 random bytes and numbers its sends from 1.  The first message of a send
carries both in its properties (`martlet.properties.model.Sent`), so the record that stores a send
also identifies it: both survive a crash, or neither does.

The broker remembers the last sends of each producer, and the most recently active producers::

    forgotten: too old     known: answered again     new: stored
    ------------------- | ------------------------ | ------------->  sequence
                      floor                      newest

Sends may arrive in any order within that window. The journal has them in an entry of the kind
PRODUCERS, little-endian::

     0 durable position u64 | 8 forgotten until i64 ns
    then for each producer
     0 id 16 bytes | 16 floor u64 | 24 active at i64 ns | 32 doubted until i64 ns | 40 count u64
    48 count x (sequence u64 | end position u64 | offset u64 | topic u32 | target u32
        | messages u32 | 0 u32)

An entry may survive a power cut that an earlier batch did not survive. So recovery accepts a send
of an entry only if the log was durable up to that send when the entry was written, or if it has
read the batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

from martlet.broker.errors import BrokerError
from martlet.broker.queue.queue_log import Receipt
from martlet.broker.topic.retained import Retained
from martlet.broker.topic.topic import Topic
from martlet.properties.block import Block, Entry, Packed
from martlet.properties.model import SENT_BYTES, Field, Sent, fields

MAX_SENDS_EACH = 64
"""The number of a producer's last sends that are remembered."""
MAX_PRODUCERS = 10_000
"""The number of producers that are remembered."""
_MIN_SENDS = 1024
_SEGMENT_BYTES_A_SEND = 2048
"""One send, 40 bytes of each segment's head, is remembered for this many bytes of a segment."""
_ENTRY_BYTES = 1 << 15
_LATE_NS = 10 * 10**9
"""The tolerance for a first attempt that seems later than it was, because it arrived late."""
_WAY_OUT = "look whether it is stored before you send it by another number"

_HEAD = struct.Struct("<Qq")
_PRODUCER = struct.Struct("<16sQqqQ")
_ROW = struct.Struct("<QQQIIII")
_SENT_FIELD = struct.Struct("<BBH")
_SENT_HEAD = _SENT_FIELD.pack(Field.SENT, 0, SENT_BYTES)
_MARK_BYTES = len(_SENT_HEAD) + SENT_BYTES


class TooOld(BrokerError):
    """The repeated send is too old: whether it is stored is unknown; the text says why."""


class Reused(BrokerError):
    """A producer has used a number for two sends."""


class ProducerSend:
    """A send that was staged or stored."""

    __slots__ = ("_row", "count", "offset", "receipt", "target", "topic")

    def __init__(
        self, receipt: Receipt, topic: int, offset: int, count: int, target: int | None = None
    ) -> None:
        self.receipt = receipt
        self.topic = topic
        """The log number of the topic at its queue; for delayed messages, of their bucket."""
        self.target = topic if target is None else target
        """That of the queue that finally gets the messages."""
        self.offset = offset
        self.count = count
        self._row = b""

    def row(self, sequence: int) -> bytes:
        """Return the send's row in the journal, once it is stored."""
        if not self._row:
            position = self.receipt.position
            messages = (self.offset, self.topic, self.target, self.count)
            self._row = _ROW.pack(sequence, position, *messages, 0)
        return self._row

    @property
    def is_stored(self) -> bool:
        """Whether the send is stored."""
        return bool(self.receipt.position) and self.receipt.error is None


class _Window:
    """One producer's sends."""

    __slots__ = ("active_at_ns", "doubted_until_ns", "floor", "sends")

    def __init__(self, doubted_until_ns: int) -> None:
        self.doubted_until_ns = doubted_until_ns
        """Sends up to this time may have been forgotten, because the producer was."""
        self.sends: dict[int, ProducerSend] = {}
        """By their numbers."""
        self.floor = 0
        """Other sends up to this number were, or may have been, forgotten."""
        self.active_at_ns = 0
        """The time of the last send."""


class ProducerState:
    """The remembered sends of all producers, up to a number of either; beyond it, the longest
    inactive producer is forgotten.
    """

    def __init__(self, max_producers: int, max_sends: int) -> None:
        self.topics: Mapping[int, Retained] = {}
        """All existing topics, hidden ones included, by number."""
        self._max_producers = max_producers
        self._max_sends = max_sends
        self._windows: dict[bytes, _Window] = {}
        """The producers, the most recently active last."""
        self._count = 0
        self.forgotten_until_ns = 0
        """Sends up to this time may be unknown."""
        self.repeated_count = 0
        """The number of repeated sends since the start."""

    @classmethod
    def beside(cls, segment_bytes: int) -> ProducerState:
        """Create the state with limits that suit segments of that size."""
        return cls(MAX_PRODUCERS, max(_MIN_SENDS, segment_bytes // _SEGMENT_BYTES_A_SEND))

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def send_count(self) -> int:
        """The number of remembered sends."""
        return self._count

    def find(self, sent: Sent, topic: Topic, first_tried_ns: int = 0) -> ProducerSend | None:
        """Find a send that is stored or staged; None where it is new.

        Args:
            sent: its producer and number.
            topic: its target, at any of the queues.
            first_tried_ns: when it was first attempted; 0 for a first attempt.

        Raises:
            TooOld: that is no longer known.
            Reused: another send had that number.
        """
        window = self._windows.get(sent.producer)
        send = window.sends.get(sent.sequence) if window is not None else None
        if window is None or send is None:
            doubted = self.forgotten_until_ns if window is None else window.doubted_until_ns
            if doubted and first_tried_ns and first_tried_ns <= doubted + _LATE_NS:
                raise TooOld(
                    f"send {sent.sequence} of producer {sent.producer.hex()} was tried before, and"
                    f" that producer was forgotten: {self._max_producers} producers and"
                    f" {self._max_sends} sends are known; {_WAY_OUT}"
                )
            if window is not None and sent.sequence <= window.floor:
                raise TooOld(
                    f"send {sent.sequence} of producer {sent.producer.hex()} is too old: its last"
                    f" {MAX_SENDS_EACH} sends are known, and of those up to {window.floor} it is"
                    f" none; {_WAY_OUT}"
                )
            return None
        target = self.topics.get(send.target)
        if send.receipt.error is not None or target is None:
            # The send was refused, or deleted with its topic.
            self._drop(window, sent.sequence)
            return None
        if send.count != sent.count or target.target not in topic.at_queues:
            raise Reused(
                f"producer {sent.producer.hex()} has sent other messages, or to another topic, by"
                f" number {sent.sequence}: each send needs a number of its own"
            )
        self.repeated_count += 1
        return send

    def add(self, sent: Sent, send: ProducerSend, now_ns: int) -> None:
        """Remember a send, unless it is too old."""
        window = self._activated(sent.producer, now_ns, self.forgotten_until_ns)
        if sent.sequence > window.floor:
            self._count += sent.sequence not in window.sends
            window.sends[sent.sequence] = send
            self._trim(window)

    def _activated(self, producer: bytes, now_ns: int, doubted_until_ns: int) -> _Window:
        """Return a producer's window, now the most recently active."""
        window = self._windows.pop(producer, None) or _Window(doubted_until_ns)
        self._windows[producer] = window
        window.active_at_ns = max(window.active_at_ns, now_ns)
        return window

    def _trim(self, window: _Window) -> None:
        """Forget excess sends, of the last active producer or of others."""
        while len(window.sends) > MAX_SENDS_EACH:
            oldest = min(window.sends)
            self._drop(window, oldest)
            window.floor = max(window.floor, oldest)
        while len(self._windows) > self._max_producers or (
            self._count > self._max_sends and len(self._windows) > 1
        ):
            self._forget()

    def _drop(self, window: _Window, sequence: int) -> None:
        del window.sends[sequence]
        self._count -= 1
        assert self._count >= 0

    def _forget(self) -> None:
        """Forget the longest inactive producer."""
        window = self._windows.pop(next(iter(self._windows)))
        self._count -= len(window.sends)
        assert self._count >= 0
        self.forgotten_until_ns = max(self.forgotten_until_ns, window.active_at_ns)

    # the journal

    def entries(self, durable_position: int) -> Iterator[bytes]:
        """Yield the state as journal entries, of a log that is durable up to a position."""
        if not self._windows and not self.forgotten_until_ns:
            return
        head = _HEAD.pack(durable_position, self.forgotten_until_ns)
        pieces, size = [head], 0
        for producer, window in self._windows.items():
            rows = [send.row(number) for number, send in window.sends.items() if send.is_stored]
            times_ns = (window.active_at_ns, window.doubted_until_ns)
            pieces.append(_PRODUCER.pack(producer, window.floor, *times_ns, len(rows)))
            pieces += rows
            size += _PRODUCER.size + _ROW.size * len(rows)
            if size >= _ENTRY_BYTES:
                yield b"".join(pieces)
                pieces, size = [head], 0
        yield b"".join(pieces)

    def learn(self, entry: bytes, durable_position: int | None = 0) -> None:
        """Apply the sends of a journal entry that are certain to be stored: all if the position up
        to which the log is known to have been durable, whatever the entry says, is None.
        """
        durable, forgotten_until_ns = _HEAD.unpack_from(entry)
        durable = None if durable_position is None else max(durable, durable_position)
        self.forgotten_until_ns = max(self.forgotten_until_ns, forgotten_until_ns)
        at = _HEAD.size
        while at < len(entry):
            producer, floor, active_at_ns, doubted_ns, count = _PRODUCER.unpack_from(entry, at)
            at += _PRODUCER.size
            end = at + count * _ROW.size
            window = self._activated(producer, active_at_ns, doubted_ns)
            window.floor = max(window.floor, floor)
            sends = window.sends
            for row in _ROW.iter_unpack(memoryview(entry)[at:end]):
                sequence, position, offset, topic, target, messages, _ = row
                is_new = sequence > window.floor and sequence not in sends
                if is_new and (durable is None or position <= durable):
                    receipt = Receipt()
                    receipt.position = position
                    sends[sequence] = ProducerSend(receipt, topic, offset, messages, target)
                    self._count += 1
            self._trim(window)
            at = end


def marked(properties: Sequence[Entry], sent: Sent) -> Sequence[Entry]:
    """Return properties of a send's messages, with the send's mark appended to the first's."""
    mark = _SENT_HEAD + sent.pack()
    if properties and not properties[0][0]:
        if isinstance(properties, Packed):
            return properties.with_tail(mark)
        return [(0, properties[0][1] + mark), *properties[1:]]
    return [(0, mark), *properties]


def marks(block: memoryview) -> list[tuple[int, Sent]]:
    """Return the sends that begin in a batch, by its properties block: the number of the first
    message, and the mark.
    """
    if bytes(block).find(_SENT_HEAD) < 0:
        return []
    properties = Block(block)
    entries = [(number, properties.entry(at)) for at, number in enumerate(properties.numbers)]
    return [
        (int(number), Sent.unpack(value))
        for number, entry in entries
        if entry[-_MARK_BYTES:].tobytes().startswith(_SENT_HEAD)
        for kind, _, value in fields(entry)
        if kind == Field.SENT
    ]
