"""The bytes of other brokers' protocols, as far as the load generator needs them.

All messages have one body, so answers and deliveries are counted by searching the bytes that came,
and no step of Python is taken for a message where a broker sends many at once. What is counted is
checked: an answer that is an error ends the run.
"""

from __future__ import annotations

import json
import re
import struct
from abc import ABC, abstractmethod

from bench.servers.link import LoadFailed

BODY = b"x" * 200


class Protocol(ABC):
    """One connection's side of a protocol.

    Args:
        queue: the name of the queue, stream or tube.
        prefetch: how many messages a consumer asks for at once.
    """

    def __init__(self, queue: str, prefetch: int = 0) -> None:
        self.queue = queue
        self.prefetch = prefetch

    create: bytes = b""
    """Makes the queue."""
    created: bytes = b""
    """Stands in the answer to that."""

    def hello(self) -> list[tuple[bytes, bytes]]:
        """What is sent first, and after each what has to come."""
        return []

    def subscribe(self) -> list[tuple[bytes, bytes]]:
        """The same of a consumer, behind `hello`."""
        return []

    @abstractmethod
    def publish(self) -> bytes:
        """The command that publishes a message."""

    @abstractmethod
    def answered(self, data: bytes) -> tuple[int, bytes]:
        """Count the publishes that received bytes confirm; what has to be sent at once."""

    @abstractmethod
    def delivered(self, data: bytearray) -> tuple[int, bytes]:
        """Remove whole deliveries; return how many they are, and their acknowledgements."""

    def ask(self) -> bytes:
        """What asks for the first messages, where they have to be asked for."""
        return b""


def _fail_on(broken: bool, data: bytes | bytearray) -> None:
    if broken:
        raise LoadFailed(f"the broker answered {bytes(data[:200])!r}")


class Redis(Protocol):
    """Streams: XADD, XREADGROUP, XACK."""

    def __init__(self, queue: str, prefetch: int = 0) -> None:
        super().__init__(queue, prefetch)
        self.create = _resp("XGROUP", "CREATE", queue, "g", "0", "MKSTREAM")
        self.created = b"+OK\r\n"
        self._lines = 0
        self._asked = _resp(
            "XREADGROUP", "GROUP", "g", "c", "COUNT", str(prefetch), "STREAMS", queue, ">"
        )

    def publish(self) -> bytes:
        """The command that publishes a message."""
        return _resp("XADD", self.queue, "*", "d", BODY.decode())

    def answered(self, data: bytes) -> tuple[int, bytes]:
        """Count confirmed publishes."""
        _fail_on(re.search(rb"(?:^|\n)-[A-Z]", data) is not None, data)
        before = self._lines
        self._lines += data.count(b"\n")  # An answer is two lines: its length, and the id.
        return self._lines // 2 - before // 2, b""

    def ask(self) -> bytes:
        """Ask for messages."""
        return self._asked

    def delivered(self, data: bytearray) -> tuple[int, bytes]:
        """Take whole deliveries."""
        head = re.match(rb"(?::\d+\r\n)?\*1\r\n\*2\r\n\$\d+\r\n[^\r]*\r\n\*(\d+)\r\n", data)
        if head is None or data.count(BODY + b"\r\n") < int(head[1]):
            _fail_on(data.startswith(b"-"), data)
            return 0, b""
        ids = re.findall(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n", data)
        data.clear()
        done = _resp("XACK", self.queue, "g", *(each.decode() for each in ids))
        return len(ids), done + self._asked


def _resp(*words: str) -> bytes:
    parts = (f"${len(word)}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{''.join(parts)}".encode()


class Nats(Protocol):
    """JetStream: publishes with answers, and a pull consumer."""

    def __init__(self, queue: str, prefetch: int = 0) -> None:
        super().__init__(queue, prefetch)
        self._inbox = f"_R{id(self)}"
        self._lines = self._left = 0
        stream = {"name": queue, "subjects": [queue], "storage": "file", "num_replicas": 1}
        config = {"durable_name": queue, "ack_policy": "explicit", "max_ack_pending": 10_000}
        consumer = {"stream_name": queue, "config": config}
        self.create = _nats(f"$JS.API.STREAM.CREATE.{queue}", self._inbox, stream) + _nats(
            f"$JS.API.CONSUMER.DURABLE.CREATE.{queue}.{queue}", self._inbox, consumer
        )
        self.created = b"consumer_create_response"

    def hello(self) -> list[tuple[bytes, bytes]]:
        """Log in."""
        options = b'{"verbose":false,"headers":true,"no_responders":true}'
        hello = b"CONNECT %b\r\nSUB %b 1\r\nPING\r\n" % (options, self._inbox.encode())
        return [(b"", b"INFO "), (hello, b"PONG\r\n")]

    def publish(self) -> bytes:
        """The command that publishes a message."""
        return f"PUB {self.queue} {self._inbox} {len(BODY)}\r\n".encode() + BODY + b"\r\n"

    def answered(self, data: bytes) -> tuple[int, bytes]:
        """Count confirmed publishes."""
        _fail_on(b"-ERR" in data or b'"error"' in data, data)
        before, pings = self._lines, data.count(b"PING\r\n")
        self._lines += data.count(b"\n") - pings  # A head and its JSON.
        return self._lines // 2 - before // 2, b"PONG\r\n" * pings

    def ask(self) -> bytes:
        """Ask for messages."""
        self._left = self.prefetch
        wanted = {"batch": self.prefetch, "expires": 20_000_000_000}
        return _nats(f"$JS.API.CONSUMER.MSG.NEXT.{self.queue}.{self.queue}", self._inbox, wanted)

    def delivered(self, data: bytearray) -> tuple[int, bytes]:
        """Take whole deliveries."""
        end = data.rfind(BODY + b"\r\n") + len(BODY) + 2
        if end < len(BODY) + 2:
            return 0, b""
        receipts = re.findall(rb"(\$JS\.ACK\.\S+) 200\r\n", data[:end])
        del data[:end]
        self._left -= len(receipts)
        more = self.ask() if self._left <= 0 else b""
        return len(receipts), b"".join(b"PUB %b 0\r\n\r\n" % each for each in receipts) + more


def _nats(subject: str, inbox: str, content: object) -> bytes:
    text = json.dumps(content)
    return f"PUB {subject} {inbox} {len(text)}\r\n{text}\r\n".encode()


class Beanstalk(Protocol):
    """put, reserve, delete, each pipelined."""

    def hello(self) -> list[tuple[bytes, bytes]]:
        """Log in."""
        tube = f"use {self.queue}\r\nwatch {self.queue}\r\nignore default\r\n"
        return [(tube.encode(), b"WATCHING 1\r\n")]

    def publish(self) -> bytes:
        """The command that publishes a message."""
        return f"put 0 0 600 {len(BODY)}\r\n".encode() + BODY + b"\r\n"

    def answered(self, data: bytes) -> tuple[int, bytes]:
        """Count confirmed publishes."""
        _fail_on(re.search(rb"[A-Z]+_|BURIED|DRAINING", data) is not None, data)
        return data.count(b"\n"), b""

    def ask(self) -> bytes:
        """Ask for messages."""
        return b"reserve-with-timeout 0\r\n" * self.prefetch

    def delivered(self, data: bytearray) -> tuple[int, bytes]:
        """Take whole deliveries."""
        ends = data.count(BODY + b"\r\n") + data.count(b"TIMED_OUT\r\n")
        if ends < self.prefetch:
            return 0, b""
        ids = re.findall(rb"RESERVED (\d+) 200\r\n", data)
        data.clear()
        return len(ids), b"".join(b"delete %b\r\n" % each for each in ids) + self.ask()


_ACK = struct.Struct(">BHIHHQBB")


class Amqp(Protocol):
    """AMQP 0-9-1: durable queues, persistent messages, confirms, and acknowledgements.

    Attributes:
        kind: of the queue: classic or quorum.
    """

    kind = "classic"

    def __init__(self, queue: str, prefetch: int = 0) -> None:
        super().__init__(queue, prefetch)
        self._rest = b""
        self._confirmed = self._tag = 0
        self._early: set[int] = set()
        name = (
            _short("x-queue-type") + b"S" + struct.pack(">I", len(self.kind)) + self.kind.encode()
        )
        arguments = struct.pack(">I", len(name)) + name
        self.create = _method(1, 50, 10, b"\0\0" + _short(queue) + b"\2" + arguments)
        self.created = struct.pack(">HH", 50, 11)

    def hello(self) -> list[tuple[bytes, bytes]]:
        """Log in."""
        login = b"\0guest\0guest"
        start = bytes(4) + _short("PLAIN") + struct.pack(">I", len(login)) + login + _short("en_US")
        tune = struct.pack(">HIH", 16, 131_072, 0)
        return [
            (b"AMQP\0\0\x09\x01", struct.pack(">HH", 10, 10)),
            (_method(0, 10, 11, start), struct.pack(">HH", 10, 30)),
            (
                _method(0, 10, 31, tune) + _method(0, 10, 40, _short("/") + b"\0\0"),
                struct.pack(">HH", 10, 41),
            ),
            (_method(1, 20, 10, b"\0"), struct.pack(">HH", 20, 11)),
            (_method(1, 85, 10, b"\0"), struct.pack(">HH", 85, 11)),
        ]

    def subscribe(self) -> list[tuple[bytes, bytes]]:
        """Begin to consume."""
        limit = struct.pack(">IHB", 0, self.prefetch, 0)
        consume = b"\0\0" + _short(self.queue) + b"\0\0" + bytes(4)
        return [
            (_method(1, 60, 10, limit), struct.pack(">HH", 60, 11)),
            (_method(1, 60, 20, consume), b""),
        ]

    def publish(self) -> bytes:
        """The command that publishes a message."""
        target = b"\0\0\0" + _short(self.queue) + b"\0"
        header = struct.pack(">HHQHB", 60, 0, len(BODY), 0x1000, 2)
        return _method(1, 60, 40, target) + _frame(2, 1, header) + _frame(3, 1, BODY)

    def answered(self, data: bytes) -> tuple[int, bytes]:
        """Count confirmed publishes."""
        data = self._rest + data
        before, whole = self._confirmed + len(self._early), len(data) // _ACK.size * _ACK.size
        self._rest = data[whole:]
        for kind, _, _, group, method, tag, multiple, _ in _ACK.iter_unpack(data[:whole]):
            _fail_on((kind, group, method) != (1, 60, 80), data)
            if multiple:
                self._confirmed = max(self._confirmed, tag)
                self._early = {each for each in self._early if each > tag}
            else:
                self._early.add(tag)
            while self._confirmed + 1 in self._early:
                self._confirmed += 1
                self._early.remove(self._confirmed)
        return self._confirmed + len(self._early) - before, b""

    def delivered(self, data: bytearray) -> tuple[int, bytes]:
        """Take whole deliveries."""
        end = data.rfind(BODY + b"\xce") + len(BODY) + 1
        if end < len(BODY) + 1:
            return 0, b""
        count = data.count(BODY + b"\xce")
        del data[:end]
        self._tag += count
        return count, _method(1, 60, 80, struct.pack(">QB", self._tag, 1))


class AmqpQuorum(Amqp):
    """The same on a quorum queue, which confirms what is flushed to disk."""

    kind = "quorum"


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def _method(channel: int, group: int, number: int, arguments: bytes) -> bytes:
    return _frame(1, channel, struct.pack(">HH", group, number) + arguments)


PROTOCOLS: dict[str, type[Protocol]] = {
    "redis": Redis,
    "nats": Nats,
    "beanstalk": Beanstalk,
    "amqp": Amqp,
    "amqp-quorum": AmqpQuorum,
}
