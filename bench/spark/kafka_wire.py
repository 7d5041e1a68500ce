"""The few requests of Kafka's protocol that a benchmark needs: topics, their ends, and messages.

Messages are laid out by numpy, a batch at a time, so that the load costs as little as the MPUBs of
`letters`.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from typing import Self

import numpy as np
from crc32c import crc32c

from bench.spark.letters import IN_FLIGHT, Bodies

_PRODUCE, _LIST_OFFSETS, _CREATE, _DELETE = (0, 3), (2, 1), (19, 2), (20, 1)
"""Keys and versions of requests."""
_LATEST = -1
_TIMEOUT_MS = 30_000
_ONE_BYTE = 64
"""Offsets in a batch below it take 1 byte, and the others 2."""


class KafkaRefused(Exception):
    """Kafka answered a request with an error."""


class KafkaConnection:
    """A connection to a broker on this machine."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_MS / 1000)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._answers.close()
        self._socket.close()

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        topics = b"\0\0\0\1" + _text(topic) + struct.pack(">ihii", partitions, 1, 0, 0)
        self._send(_CREATE, topics + struct.pack(">ib", _TIMEOUT_MS, 0))
        _require(struct.unpack_from(">h", self._receive(), 8 + len(_text(topic)))[0])

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._send(_DELETE, b"\0\0\0\1" + _text(topic) + struct.pack(">i", _TIMEOUT_MS))
        _require(struct.unpack_from(">h", self._receive(), 8 + len(_text(topic)))[0])

    def stored_count(self, topic: str, partitions: int) -> int:
        """Return how many messages a topic has."""
        asked = b"".join(struct.pack(">iq", number, _LATEST) for number in range(partitions))
        head = struct.pack(">ii", -1, 1) + _text(topic)
        self._send(_LIST_OFFSETS, head + struct.pack(">i", partitions) + asked)
        answer = self._receive()[4 + len(_text(topic)) + 4 :]
        count = 0
        for _, error, _, offset in struct.iter_unpack(">ihqq", answer):
            _require(error)
            count += offset
        return count

    def publish(self, topic: str, partitions: int, batches: Iterable[Bodies]) -> None:
        """Publish batches, to the partitions in turn, with several on the way."""
        waiting = 0
        head = struct.pack(">hhi", -1, 1, _TIMEOUT_MS) + b"\0\0\0\1" + _text(topic)
        for number, bodies in enumerate(batches):
            records = record_batch(bodies, time.time_ns() // 1_000_000)
            place = struct.pack(">iii", 1, number % partitions, len(records))
            self._send(_PRODUCE, head + place + records)
            waiting += 1
            if waiting >= IN_FLIGHT:
                self._expect_stored(topic)
                waiting -= 1
        for _ in range(waiting):
            self._expect_stored(topic)

    def _expect_stored(self, topic: str) -> None:
        _require(struct.unpack_from(">h", self._receive(), 4 + len(_text(topic)) + 4 + 4)[0])

    def _send(self, request: tuple[int, int], body: bytes) -> None:
        head = struct.pack(">hhi", *request, 0) + _text("bench")
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)

    def _receive(self) -> bytes:
        """The body of the next answer."""
        (size,) = struct.unpack(">i", self._answers.read(4))
        return self._answers.read(size)[4:]


def record_batch(bodies: Bodies, time_ms: int) -> bytes:
    """The bytes of a batch of messages without keys."""
    count = len(bodies)
    records = b"".join(
        _records(bodies[first:end], first) for first, end in ((0, _ONE_BYTE), (_ONE_BYTE, count))
    )
    times = struct.pack(">qq", time_ms, time_ms)
    fields = struct.pack(">hi", 0, count - 1) + times + struct.pack(">qhii", -1, -1, -1, count)
    checked = fields + records
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked)) + checked


def _records(bodies: Bodies, first: int) -> bytes:
    """Records whose numbers take equally many bytes."""
    count, size = bodies.shape
    if not count:
        return b""
    numbers = np.array([list(_varint(first + row)) for row in range(count)], np.uint8)
    before = np.frombuffer(b"\0\0", np.uint8)  # Attributes, and the time after the batch's.
    between = np.frombuffer(_varint(-1) + _varint(size), np.uint8)  # No key; the body's size.
    length = 2 + numbers.shape[1] + len(between) + size + 1
    parts = (np.frombuffer(_varint(length), np.uint8), before, numbers, between, bodies, b"\0")
    laid_out = [
        np.broadcast_to(np.frombuffer(part, np.uint8), (count, len(part)))
        if isinstance(part, bytes)
        else np.broadcast_to(part, (count, part.shape[-1]))
        for part in parts
    ]
    return np.concatenate(laid_out, axis=1).tobytes()


def _varint(value: int) -> bytes:
    """A signed number in 7 bits a byte, the sign last."""
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def _require(error: int) -> None:
    if error:
        raise KafkaRefused(f"Kafka answered with error {error}")
