"""The loads of one connection of the load generator.

A load prepares (connects, subscribes, builds its bytes), waits at the gate for the others, and
runs.  All bytes are built before; while batches run there is no step of Python for a message.

Where messages go one by one, Python wakes up for each, which takes 10 to 20 us longer than a
program in C: on both servers alike, so that the better one looks a little less so than it is.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.servers.link import ANSWER_S, BenchConnection, LoadFailed
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.message_run import MessageRun

TOPIC = "martlet-bench"
CHANNEL = "bench"
Gate = Callable[[], None]
"""Returns when all connections are prepared."""
QUIET_S = 1.0
"""A consumer that got nothing for this time has got everything."""
_VARIANTS = 8
_FINISH_BYTES = 21


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """The result of a connection; times are of the machine's monotonic clock.

    Attributes:
        messages: how many.
        started_ns: when the gate opened.
        ended_ns: when the last message was answered, or received.
        latencies_ns: of each message, where that is measured.
    """

    messages: int
    started_ns: int
    ended_ns: int
    latencies_ns: list[int] = field(default_factory=list, repr=False)


@dataclass(frozen=True, kw_only=True)
class Load:
    """Work for one connection.

    Attributes:
        seconds: for how long.
        seed: of what is drawn at random.
    """

    topic: str = TOPIC
    channel: str = CHANNEL
    seconds: float = 1.0
    seed: int = 1

    def run(self, host: str, port: int, gate: Gate) -> LoadResult:
        """Do it. Raises LoadFailed."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class PublishLoad(Load):
    """Publishes for some time.

    Attributes:
        batch: messages a command: 1 is PUB, more is MPUB.
        smallest_bytes, largest_bytes: sizes of bodies, drawn evenly where they differ.
        window: commands in flight; each is a write of its own, as most clients do it.
        joined: whether commands that may be sent are sent in one write.
    """

    batch: int = 1
    smallest_bytes: int = 200
    largest_bytes: int = 200
    window: int = 1
    joined: bool = False

    def run(self, host: str, port: int, gate: Gate) -> LoadResult:
        """Publish until the time is over, then wait for the last answers."""
        writes = self._writes()
        variants = len(writes)
        window = self.window
        sent = answered = 0
        with BenchConnection(host, port) as link:
            gate()
            started_ns = time.monotonic_ns()
            ends_ns = started_ns + int(self.seconds * 1e9)
            while time.monotonic_ns() < ends_ns:
                if self.joined:
                    link.send(writes[0] * (answered + window - sent))
                else:
                    for number in range(sent, answered + window):
                        link.send(writes[number % variants])
                sent = answered + window
                answered += link.receive_oks()
            while answered < sent:
                answered += link.receive_oks()
            ended_ns = time.monotonic_ns()
        return LoadResult(
            messages=sent * self.batch,
            started_ns=started_ns,
            ended_ns=ended_ns,
        )

    def _writes(self) -> list[bytes]:
        """A few commands, sent in turns; one if they would be all the same."""
        draw = random.Random(self.seed).randint
        sizes = (self.smallest_bytes, self.largest_bytes)
        writes = []
        for _ in range(1 if sizes[0] == sizes[1] else _VARIANTS):
            bodies = [b"x" * draw(*sizes) for _ in range(self.batch)]
            if self.batch == 1:
                writes.append(commands.publish(self.topic, bodies[0]))
            else:
                writes.append(commands.publish_many(self.topic, bodies))
        return writes


@dataclass(frozen=True, kw_only=True)
class HttpPublishing(Load):
    """Publishes by ``POST /pub`` for some time, on one connection that stays open.

    Attributes:
        body_bytes: the size of each message.
    """

    body_bytes: int = 200

    def run(self, host: str, port: int, gate: Gate) -> LoadResult:
        """Publish one message after the other until the time is over."""
        head = f"POST /pub?topic={self.topic} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        head += f"Content-Length: {self.body_bytes}\r\n\r\n"
        request = head.encode() + b"x" * self.body_bytes
        messages = 0
        with socket.create_connection((host, port), timeout=ANSWER_S) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.settimeout(None)
            gate()
            started_ns = ended_ns = time.monotonic_ns()
            while ended_ns < started_ns + self.seconds * 1e9:
                link.sendall(request)
                answer = link.recv(1 << 16)
                while answer and not answer.endswith(b"\r\n\r\nOK"):
                    if b"\r\n\r\n" in answer and not answer.startswith(b"HTTP/1.1 200 "):
                        break
                    more = link.recv(1 << 16)
                    answer = answer + more if more else b""
                if not answer.startswith(b"HTTP/1.1 200 "):
                    raise LoadFailed(f"{host}:{port} answered POST /pub with {answer[:200]!r}")
                messages += 1
                ended_ns = time.monotonic_ns()
        return LoadResult(messages=messages, started_ns=started_ns, ended_ns=ended_ns)


@dataclass(frozen=True, kw_only=True)
class Consuming(Load):
    """Consumes and finishes for some time, or until there is nothing more.

    Attributes:
        ready: the ready count.
        finish_batch: how many FINs are written at a time.
    """

    ready: int
    finish_batch: int = 256

    def run(self, host: str, port: int, gate: Gate) -> LoadResult:
        """Consume until the time is over."""
        messages = 0
        with BenchConnection(host, port) as link:
            link.send(commands.subscribe(self.topic, self.channel))
            link.wait_ok()
            link.set_patience(QUIET_S)
            gate()
            last_ns = started_ns = time.monotonic_ns()
            ends_ns = started_ns + int(self.seconds * 1e9)
            link.send(commands.ready(self.ready))
            while last_ns < ends_ns:
                runs = link.receive_runs()
                if runs is None:
                    break
                for run in runs:
                    self._finish(link, run)
                    messages += run.count
                if runs:
                    last_ns = time.monotonic_ns()
            link.send(commands.NOP)
        return LoadResult(messages=messages, started_ns=started_ns, ended_ns=last_ns)

    def _finish(self, link: BenchConnection, run: MessageRun) -> None:
        data = memoryview(commands.finish_array(run.ids()))
        step = self.finish_batch * _FINISH_BYTES
        for start in range(0, len(data), step):
            link.send(data[start : start + step])


@dataclass(frozen=True, kw_only=True)
class Pinging(Load):
    """Publishes on one connection, receives on another, one message at a time.

    Attributes:
        body_bytes: the size of each.
    """

    body_bytes: int = 200

    def run(self, host: str, port: int, gate: Gate) -> LoadResult:
        """Measure each message from before it is sent until it is received."""
        command = commands.publish(self.topic, b"x" * self.body_bytes)
        latencies_ns: list[int] = []
        with BenchConnection(host, port) as publisher, BenchConnection(host, port) as consumer:
            consumer.send(commands.subscribe(self.topic, self.channel))
            consumer.wait_ok()
            consumer.send(commands.ready(1))
            gate()
            ended_ns = started_ns = time.monotonic_ns()
            while ended_ns < started_ns + self.seconds * 1e9:
                sent_ns = time.monotonic_ns()
                publisher.send(command)
                run = _one(consumer)
                ended_ns = time.monotonic_ns()
                latencies_ns.append(ended_ns - sent_ns)
                consumer.send(commands.finish_array(run.ids()))
                publisher.wait_ok()
        return LoadResult(
            messages=len(latencies_ns),
            started_ns=started_ns,
            ended_ns=ended_ns,
            latencies_ns=latencies_ns,
        )


def _one(consumer: BenchConnection) -> MessageRun:
    """Wait for the one message that is on its way."""
    while True:
        runs = consumer.receive_runs()
        if runs is None:
            raise LoadFailed("a message that was published did not come")
        if runs:
            return runs[0]
