"""The loads of one connection to another broker."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Self

from bench.peers.protocols import PROTOCOLS, Protocol
from bench.servers.link import LoadFailed
from bench.servers.load import QUIET_S, Gate, Load, LoadResult

ANSWER_S = 30.0
_RECEIVE_BYTES = 1 << 20


class PeerConnection:
    """A connection that has said hello."""

    def __init__(self, host: str, port: int, protocol: Protocol, *, consumes: bool = False) -> None:
        self._protocol = protocol
        self._socket = socket.create_connection((host, port), timeout=ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for data, awaited in [*protocol.hello(), *(protocol.subscribe() if consumes else [])]:
            self.talk(data, awaited)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()

    def talk(self, data: bytes, awaited: bytes) -> None:
        """Send something, and wait until the answer has something in it."""
        self.send(data)
        answer = b""
        while awaited not in answer:
            answer += self.receive()

    def send(self, data: bytes) -> None:
        """Send everything."""
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """Wait for bytes. Raises LoadFailed where the broker has closed the connection."""
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise LoadFailed("the broker closed the connection")
        return data

    def set_patience(self, seconds: float) -> None:
        """Limit the wait for bytes."""
        self._socket.settimeout(seconds)


def create(host: str, port: int, name: str, queue: str) -> None:
    """Make a queue. Raises LoadFailed and OSError."""
    protocol = PROTOCOLS[name](queue)
    if protocol.create:
        with PeerConnection(host, port, protocol) as link:
            link.talk(protocol.create, protocol.created)


@dataclass(frozen=True, kw_only=True)
class PeerPublishing(Load):
    """Publishes for some time: `batch` messages, then waits until all are confirmed.

    Attributes:
        protocol: its name.
    """

    protocol: str
    batch: int

    def run(self, host: str, port: int, gate: Gate) -> LoadResult:
        """Publish until the time is over."""
        protocol = PROTOCOLS[self.protocol](self.topic)
        data, messages = protocol.publish() * self.batch, 0
        with PeerConnection(host, port, protocol) as link:
            gate()
            started_ns = ended_ns = time.monotonic_ns()
            while ended_ns < started_ns + self.seconds * 1e9:
                link.send(data)
                left = self.batch
                while left > 0:
                    count, answer = protocol.answered(link.receive())
                    left -= count
                    if answer:
                        link.send(answer)
                messages += self.batch
                ended_ns = time.monotonic_ns()
        return LoadResult(messages=messages, started_ns=started_ns, ended_ns=ended_ns)


@dataclass(frozen=True, kw_only=True)
class PeerConsuming(Load):
    """Consumes and acknowledges for some time, or until nothing has come for a moment.

    Attributes:
        protocol: its name.
        prefetch: how many messages are asked for at once.
    """

    protocol: str
    prefetch: int

    def run(self, host: str, port: int, gate: Gate) -> LoadResult:
        """Consume until the time is over."""
        protocol, messages = PROTOCOLS[self.protocol](self.topic, self.prefetch), 0
        gate()
        started_ns = last_ns = time.monotonic_ns()
        received = bytearray()
        with PeerConnection(host, port, protocol, consumes=True) as link:
            link.set_patience(QUIET_S)
            link.send(protocol.ask())
            try:
                while last_ns < started_ns + self.seconds * 1e9:
                    received += link.receive()
                    count, acknowledgements = protocol.delivered(received)
                    link.send(acknowledgements)
                    messages += count
                    if count:
                        last_ns = time.monotonic_ns()
                    elif time.monotonic_ns() > last_ns + QUIET_S * 1e9:
                        break
            except TimeoutError:
                pass  # There is nothing more.
        return LoadResult(messages=messages, started_ns=started_ns, ended_ns=last_ns)
