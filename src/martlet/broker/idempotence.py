"""Producers: which of their sends are stored, so that one that is repeated is not stored again.

A producer has an id of 16 random bytes and numbers its sends from 1.  The first message of a send
carries both in its properties (`martlet.properties.model.Sent`), so what tells that a send is
stored is the very record that stores it: both survive a crash, or neither does.

Of each producer the last sends are known, of the producers those that were heard last::

    forgotten: too old     known: answered again     new: stored
    ------------------- | ------------------------ | ------------->  sequence
                      floor                      newest

Sends may come in any order within that window.  What is told of it in the journal is an entry of
the kind PRODUCERS, little-endian::

     0 durable position u64 | 8 forgotten until i64 ns
    then for each producer
     0 id 16 bytes | 16 floor u64 | 24 heard at i64 ns | 32 doubted until i64 ns | 40 count u64
    48 count x (sequence u64 | end position u64 | offset u64 | topic u32 | target u32
        | messages u32 | 0 u32)

An entry may survive a power cut that a batch before it did not survive.  So a send that it tells of
is believed where the log was durable up to it then, and else only where its batch was seen.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from martlet.broker.errors import BrokerError
from martlet.broker.queue.queue_log import Receipt
from martlet.properties.block import Block
from martlet.properties.model import SENT_BYTES, Field, Sent, fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from martlet.broker.topic.retained import Retained
    from martlet.broker.topic.topic import Topic

MAX_SENDS_EACH = 64
"""So many of the last sends of a producer are known."""
MAX_PRODUCERS = 10_000
"""So many producers are known."""
_MIN_SENDS = 1024
_SEGMENT_BYTES_A_SEND = 2048
"""For so many bytes of a segment one send is known: its head tells each of them in 40."""
_ENTRY_BYTES = 1 << 15
_LATE_NS = 10 * 10**9
"""How much later a send may seem to have been tried first than it was, as it came late."""
_WAY_OUT = "look whether it is stored before you send it by another number"

_HEAD = struct.Struct("<Qq")
_PRODUCER = struct.Struct("<16sQqqQ")
_ROW = struct.Struct("<QQQIIII")
_SENT_FIELD = struct.Struct("<BBH")
_SENT_HEAD = _SENT_FIELD.pack(Field.SENT, 0, SENT_BYTES)
_MARK_BYTES = len(_SENT_HEAD) + SENT_BYTES


class TooOld(BrokerError):
    """Whether a repeated send is stored is not known any more; the text says why."""


class Reused(BrokerError):
    """A producer has given a number to two sends."""


class ProducerSend:
    """A send that was staged or stored.

    Attributes:
        receipt: what became of it.
        topic: the topic's number in the log, at the queue where it is; a bucket's, for later ones.
        target: the same of the queue that they go to in the end.
        offset: of its first message.
        count: its messages.
    """

    __slots__ = ("_row", "count", "offset", "receipt", "target", "topic")

    def __init__(
        self, receipt: Receipt, topic: int, offset: int, count: int, target: int | None = None
    ) -> None:
        self.receipt = receipt
        self.topic = topic
        self.target = topic if target is None else target
        self.offset = offset
        self.count = count
        self._row = b""

    def row(self, sequence: int) -> bytes:
        """As the journal tells it, once it is stored."""
        if not self._row:
            position = self.receipt.position
            places = (self.topic, self.target, self.count, 0)
            self._row = _ROW.pack(sequence, position, self.offset, *places)
        return self._row

    @property
    def is_stored(self) -> bool:
        """Whether it is stored."""
        return bool(self.receipt.position) and self.receipt.error is None


class _Window:
    """One producer's sends.

    Attributes:
        sends: by their numbers.
        floor: sends up to this number that are not among them were, or may have been, forgotten.
        heard_at_ns: when the last came.
        doubted_until_ns: sends of the time up to this may have been forgotten with the producer,
            before it was heard again.
    """

    __slots__ = ("doubted_until_ns", "floor", "heard_at_ns", "sends")

    def __init__(self, doubted_until_ns: int) -> None:
        self.doubted_until_ns = doubted_until_ns
        self.sends: dict[int, ProducerSend] = {}
        self.floor = 0
        self.heard_at_ns = 0


class ProducerState:
    """The sends that are known.

    Args:
        max_producers, max_sends: so many are known; of who has been silent longest, all is
            forgotten.
    """

    def __init__(self, max_producers: int, max_sends: int) -> None:
        self.topics: Mapping[int, Retained] = {}
        """The topics that there are, hidden ones too, by their numbers."""
        self._max_producers = max_producers
        self._max_sends = max_sends
        self._windows: dict[bytes, _Window] = {}
        """Who was heard last stands last."""
        self._count = 0
        self.forgotten_until_ns = 0
        """Of sends up to this time nothing may be known."""
        self.repeated_count = 0
        """How many sends came again since the start."""

    @classmethod
    def beside(cls, segment_bytes: int) -> ProducerState:
        """With the limits for segments of that size."""
        return cls(MAX_PRODUCERS, max(_MIN_SENDS, segment_bytes // _SEGMENT_BYTES_A_SEND))

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def send_count(self) -> int:
        """How many sends are known."""
        return self._count

    def find(self, sent: Sent, topic: Topic, first_tried_ns: int = 0) -> ProducerSend | None:
        """The send of that number, if it is stored or about to be; None where it is new.

        Args:
            sent: whose, and which.
            topic: where it goes, at any of its queues.
            first_tried_ns: when it was sent first; 0 where this is the first time.

        Raises:
            TooOld: that is not known any more.
            Reused: another send had that number.
        """
        window = self._windows.get(sent.producer)
        known = window.sends.get(sent.sequence) if window is not None else None
        if window is None or known is None:
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
        target = self.topics.get(known.target)
        if known.receipt.error is not None or target is None:
            # It was not stored, or has gone with its topic.
            self._drop(window, sent.sequence)
            return None
        if known.count != sent.count or target.target not in topic.parts:
            raise Reused(
                f"producer {sent.producer.hex()} has sent other messages, or to another topic, by"
                f" number {sent.sequence}: each send needs a number of its own"
            )
        self.repeated_count += 1
        return known

    def add(self, sent: Sent, send: ProducerSend, now_ns: int) -> None:
        """Know a send from now on, unless it is too old to be known."""
        window = self._heard(sent.producer, now_ns, self.forgotten_until_ns)
        if sent.sequence > window.floor:
            self._count += sent.sequence not in window.sends
            window.sends[sent.sequence] = send
            self._trim(window)

    def _heard(self, producer: bytes, now_ns: int, doubted_until_ns: int) -> _Window:
        """A producer's window, as that of who was heard last."""
        window = self._windows.pop(producer, None) or _Window(doubted_until_ns)
        self._windows[producer] = window
        window.heard_at_ns = max(window.heard_at_ns, now_ns)
        return window

    def _trim(self, window: _Window) -> None:
        """Forget what is too much, of the producer that was heard last or of others."""
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
        """Let go of who has been silent longest."""
        window = self._windows.pop(next(iter(self._windows)))
        self._count -= len(window.sends)
        self.forgotten_until_ns = max(self.forgotten_until_ns, window.heard_at_ns)

    # the journal

    def entries(self, durable_position: int) -> Iterator[bytes]:
        """All of it as journal entries; none where there is nothing to tell.

        Args:
            durable_position: up to where the log is durable.
        """
        if not self._windows and not self.forgotten_until_ns:
            return
        head = _HEAD.pack(durable_position, self.forgotten_until_ns)
        parts, size = [head], 0
        for producer, window in self._windows.items():
            rows = [send.row(number) for number, send in window.sends.items() if send.is_stored]
            times_ns = (window.heard_at_ns, window.doubted_until_ns)
            parts.append(_PRODUCER.pack(producer, window.floor, *times_ns, len(rows)))
            parts += rows
            size += _PRODUCER.size + _ROW.size * len(rows)
            if size >= _ENTRY_BYTES:
                yield b"".join(parts)
                parts, size = [head], 0
        yield b"".join(parts)

    def learn(self, entry: bytes, durable_position: int = 0) -> None:
        """Take in what an entry tells, as far as it is to be believed.

        Args:
            entry: the entry.
            durable_position: up to where the log is known to have been durable, whatever the entry
                says of that.
        """
        durable, forgotten_until_ns = _HEAD.unpack_from(entry)
        durable = max(durable, durable_position)
        self.forgotten_until_ns = max(self.forgotten_until_ns, forgotten_until_ns)
        at = _HEAD.size
        while at < len(entry):
            producer, floor, heard_at_ns, doubted_ns, count = _PRODUCER.unpack_from(entry, at)
            at += _PRODUCER.size
            end = at + count * _ROW.size
            window = self._heard(producer, heard_at_ns, doubted_ns)
            window.floor = max(window.floor, floor)
            sends = window.sends
            for row in _ROW.iter_unpack(memoryview(entry)[at:end]):
                sequence, position, offset, topic, target, messages, _ = row
                is_new = sequence > window.floor and sequence not in sends
                if is_new and position <= durable:
                    receipt = Receipt()
                    receipt.position = position
                    sends[sequence] = ProducerSend(receipt, topic, offset, messages, target)
                    self._count += 1
            self._trim(window)
            at = end


def marked(properties: Sequence[tuple[int, bytes]], sent: Sent) -> list[tuple[int, bytes]]:
    """Properties of a send's messages, the first message's with the send's mark at their end."""
    mark = _SENT_HEAD + sent.pack()
    if properties and not properties[0][0]:
        return [(0, properties[0][1] + mark), *properties[1:]]
    return [(0, mark), *properties]


def marks(block: memoryview) -> list[tuple[int, Sent]]:
    """The sends that begin in a batch, by its block of properties: the number of each one's first
    message in the batch, and its mark.
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
