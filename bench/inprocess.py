"""A server without sockets: its connections are fed by hand, and its answers are kept.

Measured is the processor's time of reading commands, of the core, the log and building answers,
each turn of the loop one receive. The system's part of receiving and sending is left out; that of
writing the log is in. The best of the runs counts, as whatever else the machine does can only add
to it. So small changes can be seen on a busy machine, where rates say nothing.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from itertools import repeat as repeated
from typing import Any

from martlet.broker.policy import ChannelPolicy
from martlet.options import BrokerOptions
from martlet.protocol.nsq import commands
from martlet.server.build import build_server
from martlet.server.server import Server

TOPIC, CHANNEL = "hot", "path"
BODY = b"x" * 200


class Wire(asyncio.Transport):
    """A transport that keeps what the server sends."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self._protocol = protocol
        self.sent: list[Any] = []
        self.write = self.sent.append  # type: ignore[method-assign, assignment]
        self.writelines = self.sent.extend  # type: ignore[method-assign, assignment]

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The connection of the server."""
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Hold nothing back."""

    def pause_reading(self) -> None:
        """Do nothing: the connection keeps what it is fed, and goes on in its next turn."""

    resume_reading = pause_reading

    def is_closing(self) -> bool:
        """Stay open."""
        return False

    def close(self) -> None:
        """Show the server's last words, which say why it closes."""
        raise RuntimeError(f"the server closes: {self.sent[-1:]!r}")

    abort = close


class Client:
    """A client on a connection of the server."""

    def __init__(self, server: Server) -> None:
        self._connection = server.connect()
        self.wire = Wire(self._connection)
        self._connection.connection_made(self.wire)
        self.feed(commands.MAGIC)

    def feed(self, data: bytes) -> None:
        """Let the server receive the data."""
        rest = memoryview(data)
        while rest:
            space = self._connection.get_buffer(-1)
            part = rest[: len(space)]
            space[: len(part)] = part
            self._connection.buffer_updated(len(part))
            rest = rest[len(part) :]

    def taken(self) -> bytes:
        """The bytes that the server has sent since the last call."""
        data = b"".join(self.wire.sent)
        self.wire.sent.clear()
        return data


Step = Callable[[], tuple[Client, bytes, int]]
"""Returns the next receive of the server: its client, its bytes, how many commands they are."""


def publishing(data: bytes, count: int = 1) -> Callable[[Server], Step]:
    """The same bytes again and again, from two producers in turns."""

    def step_of(server: Server) -> Step:
        clients = [Client(server), Client(server)]

        def step() -> tuple[Client, bytes, int]:
            clients.reverse()
            clients[0].wire.sent.clear()
            return clients[0], data, count

        return step

    return step_of


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Server]:
    """A started server on a temporary folder."""
    anywhere = "127.0.0.1:0"
    with tempfile.TemporaryDirectory(prefix="martlet-bench-") as folder:
        options = BrokerOptions(
            tcp_address=anywhere, http_address=anywhere, data_path=folder, **settings
        )
        server = build_server(options, logging.getLogger("bench"))
        await server.start()
        server.commits.ticks.serve = None  # It would poll sockets, of which there are none.
        # As `martlet broker` does: collections would add the cost of whatever this process has.
        threshold = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(50_000)
        try:
            yield server
        finally:
            gc.set_threshold(*threshold)
            gc.unfreeze()
            # After an error too: uvloop does not close while a server listens.
            for connection in list(server.connections):
                connection.connection_lost(None)
            await server.stop()


async def least_cost_us(
    step_of: Callable[[Server], Step],
    seconds: float,
    repeat: int,
    *,
    queues: int = 1,
    backlog: int = 0,
    fill: Sequence[bytes] = (),
    policy: ChannelPolicy | None = None,
    trace: bool = False,
    profile: cProfile.Profile | None = None,
) -> float:
    """Return the least processor time of a command; first receive each of
    `fill`, `backlog` times.
    """
    best = float("inf")
    for _ in range(repeat):
        async with serving(trace=trace) as server:
            topic = server.broker.set_queues(TOPIC, queues)
            topic.channel(CHANNEL)
            if policy is not None:
                topic.configure_channel(CHANNEL, policy)
            producer = Client(server)
            producer.feed(commands.identify({"feature_negotiation": True, "martlet": True}))
            for data in chain.from_iterable(repeated(fill, backlog)):
                producer.feed(data)
                await asyncio.sleep(0)
                producer.wire.sent.clear()
            best = min(best, await _cost_us(step_of(server), seconds, profile))
    return best


async def _cost_us(step: Step, seconds: float, profile: cProfile.Profile | None) -> float:
    count = spent_ns = 0
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        client, data, commands_in_it = step()
        if profile:
            profile.enable()
        started_ns = time.thread_time_ns()
        client.feed(data)
        await asyncio.sleep(0)
        spent_ns += time.thread_time_ns() - started_ns
        if profile:
            profile.disable()
        count += commands_in_it
    return spent_ns / count / 1000
