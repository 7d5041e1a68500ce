"""TLS, snappy and deflate: what they cost a broker, and nsqd beside it.

    NSQD=/path/to/nsqd ./run bench features [--seconds 2] [--repeat 3] [--json FILE]

One client drives each server in turns, on one connection with the feature. Its messages are
compressed before, so that the server's work is measured and not the client's; a raw deflate
stream may be sent again and again, since no block looks back beyond the first. Rows: MPUBs of 200
messages of 200 bytes, and the same messages consumed and finished. For each: messages a second,
and microseconds of the server's processor for a message, which tell more on a busy machine.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import trustme
from rich.console import Console
from rich.table import Table

from bench.flags import parse
from bench.http_api import post
from martlet.protocol.compression.deflate import Deflate
from martlet.protocol.compression.snappy import Snappy
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.frames import FrameSplitter, Response
from martlet.protocol.nsq.message_run import MessageRun
from martlet.testing import BrokerProcess

FEATURES = ("plain", "tls", "snappy", "deflate")
TOGETHER, BODY_BYTES, WINDOW = 200, 200, 10
READY = 2500
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
NSQD = os.environ.get("NSQD") or shutil.which("nsqd")


class Nsqd(BrokerProcess):
    """nsqd with its own defaults."""

    @property
    def command(self) -> list[str]:
        """The command line of nsqd."""
        own = "--disk-force-percent=0"  # Of Martlet's brokers alone.
        return [NSQD or "nsqd", *(word for word in super().command[4:] if word != own)]


class Link:
    """A connection with one feature."""

    def __init__(self, address: str, feature: str, authority: Path) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wanted = {"tls_v1": feature == "tls", feature: True, "feature_negotiation": True}
        self.socket.sendall(commands.MAGIC + commands.identify(wanted))
        (size,) = struct.unpack(">I", self._exactly(4))
        self._exactly(size)
        self.codec: Snappy | Deflate | None = None
        self._space = memoryview(bytearray(1 << 20))
        if feature == "tls":
            context = ssl.create_default_context(cafile=authority)
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        elif feature != "plain":
            self.codec = Snappy() if feature == "snappy" else Deflate()
        if feature != "plain":
            self.wait_oks(1)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.socket.recv(size - len(data))
        return data

    def wrap(self, data: bytes) -> bytes:
        """Return the bytes to send for the data."""
        return self.codec.encode([data]) if self.codec else data

    def receive(self) -> Iterator[memoryview]:
        """Wait for bytes, and yield them decoded."""
        space = self._space
        if self.codec is None:
            yield space[: self.socket.recv_into(space)]
            return
        self.codec.feed(memoryview(self.socket.recv(1 << 18)))
        count = len(space)
        while count == len(space):
            count = self.codec.read_into(space)
            yield space[:count]

    def wait_oks(self, count: int) -> None:
        """Wait for OKs and nothing else."""
        left = count * len(OK)
        while left > 0:
            for piece in self.receive():
                if bytes(piece).strip(OK):
                    raise RuntimeError(f"instead of OK: {bytes(piece)!r}")
                left -= len(piece)


def publish(link: Link, seconds: float) -> tuple[int, float]:
    """The messages published, and how long it took."""
    bodies = [os.urandom(BODY_BYTES // 2) + b"x" * (BODY_BYTES // 2) for _ in range(TOGETHER)]
    wire = b"".join(link.wrap(commands.publish_many("bench", bodies)) for _ in range(WINDOW))
    started_s = time.perf_counter()
    rounds = 0
    while time.perf_counter() - started_s < seconds:
        link.socket.sendall(wire)
        link.wait_oks(WINDOW)
        rounds += 1
    return rounds * WINDOW * TOGETHER, time.perf_counter() - started_s


def consume(link: Link, count: int) -> tuple[int, float]:
    """Consume and finish so many messages."""
    splitter = FrameSplitter()
    link.socket.sendall(link.wrap(commands.subscribe("bench", "c")))
    link.wait_oks(1)
    started_s = time.perf_counter()
    link.socket.sendall(link.wrap(commands.ready(READY)))
    left = count
    while left > 0:
        answers = []
        for data in link.receive():
            for piece in splitter.feed(bytes(data)):
                if isinstance(piece, MessageRun):
                    ids = piece.ids()
                    answers.append(commands.finish_array(ids))
                    left -= len(ids)
                elif not isinstance(piece, Response):
                    raise RuntimeError(f"instead of messages: {piece}")
        if answers:
            link.socket.sendall(link.wrap(b"".join(answers)))
    return count, time.perf_counter() - started_s


def measure(
    server: BrokerProcess, feature: str, authority: Path, seconds: float
) -> dict[str, tuple[float, float]]:
    """For each row the rate, and the processor's microseconds a message."""
    process = psutil.Process(server.process_id)
    post(server.http_address, "topic/create?topic=bench")
    post(server.http_address, "channel/create?topic=bench&channel=c")
    results = {}
    stored = 0
    for row in ("publish", "consume"):
        link = Link(server.tcp_address, feature, authority)
        before = process.cpu_times()
        if row == "publish":
            count, took_s = publish(link, seconds)
            stored = count
        else:
            count, took_s = consume(link, stored)
        after = process.cpu_times()
        used_s = after.user + after.system - before.user - before.system
        results[row] = (count / took_s, used_s / count * 1e6)
        link.socket.close()
    post(server.http_address, "topic/delete?topic=bench")
    return results


def main(arguments: Sequence[str]) -> None:
    """Let the servers take turns, and print their medians."""
    given = parse(__doc__, arguments, seconds=2.0, repeat=3, json=None)
    runs: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority, certificate, key = (folder / name for name in ("ca.pem", "c.pem", "k.pem"))
        issuer = trustme.CA()
        issuer.cert_pem.write_to_path(authority)
        leaf = issuer.issue_cert("localhost")
        leaf.cert_chain_pems[0].write_to_path(certificate)
        leaf.private_key_pem.write_to_path(key)
        flags = [f"--tls-cert={certificate}", f"--tls-key={key}", "--https-address="]
        kinds: dict[str, type[BrokerProcess]] = {"martlet": BrokerProcess}
        if NSQD:
            kinds["nsqd"] = Nsqd
        servers = {
            name: stack.enter_context(kind(None, *flags, "--log-level=warn"))
            for name, kind in kinds.items()
        }
        for feature in FEATURES:
            for _ in range(given.repeat):
                for name, server in servers.items():
                    for row, result in measure(server, feature, authority, given.seconds).items():
                        runs.setdefault(f"{feature} {row}", {}).setdefault(name, []).append(result)
    show(runs)
    if given.json:
        given.json.write_text(json.dumps(runs, indent=1))


def show(runs: dict[str, dict[str, Any]]) -> None:
    """Print the medians."""
    table = Table("row", "server", "messages/s", "processor us/message")
    for row, servers in runs.items():
        for name, results in servers.items():
            rates, costs = zip(*results, strict=True)
            table.add_row(
                row, name, f"{statistics.median(rates):,.0f}", f"{statistics.median(costs):.2f}"
            )
    Console().print(table)
