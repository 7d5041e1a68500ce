"""Stands between a consumer and its brokers, and sees to it that ready counts never sum too high.

Everything passes as it comes.  What the consumer sends is read along: RDY commands are added up
over all its connections, at the moment when they come, which is before any broker sees them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self


class ReadyProxy:
    """A proxy for one consumer, with a listener for each of its brokers.

    Args:
        brokers: the brokers' addresses.
        max_in_flight: what ready counts must not sum above; may be changed.

    Attributes:
        highest: the highest sum so far.
        rises: for each broker, how often its ready count went up from 0.
        too_many: what was wrong, if anything was.
    """

    def __init__(self, brokers: list[str], max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.highest = 0
        self.rises = dict.fromkeys(brokers, 0)
        self.too_many: list[str] = []
        self.addresses: list[str] = []
        self._servers: list[asyncio.Server] = []
        self._ready: dict[asyncio.StreamWriter, int] = {}
        """The ready count of each connection, by its way to the consumer."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        for broker in self.rises:
            server = await asyncio.start_server(partial(self._serve, broker), "127.0.0.1", 0)
            self._servers.append(server)
            self.addresses.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert not self.too_many

    async def _serve(
        self, broker: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._writers.add(writer)
        host, _, port = broker.rpartition(":")
        try:
            back, forth = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(forth)
        self._begin(self._commands(broker, reader, forth, writer))
        self._begin(self._answers(back, writer))

    def _begin(self, passing: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(passing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _commands(
        self,
        broker: str,
        reader: asyncio.StreamReader,
        forth: asyncio.StreamWriter,
        consumer: asyncio.StreamWriter,
    ) -> None:
        unread = b""
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                unread = self._read(broker, consumer, unread + data)
                forth.write(data)  # Nothing is awaited: the order over all connections counts.
        self._ready.pop(consumer, None)
        forth.close()

    async def _answers(self, back: asyncio.StreamReader, consumer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await back.read(1 << 16):
                consumer.write(data)
                await consumer.drain()
        # The broker is gone, and its ready count; only then does the consumer hear of it.
        self._ready.pop(consumer, None)
        consumer.close()

    def _read(self, broker: str, consumer: asyncio.StreamWriter, unread: bytes) -> bytes:
        """Read along; return the begin of a command whose end has not come."""
        while b"\n" in unread:
            line, _, rest = unread.partition(b"\n")
            if line.removeprefix(b"  V2") == b"IDENTIFY":
                size = int.from_bytes(rest[:4], "big")
                if len(rest) < 4 + size:
                    break
                rest = rest[4 + size :]
            elif line.startswith(b"RDY "):
                count = int(line[4:])
                self.rises[broker] += bool(count and not self._ready.get(consumer))
                self._ready[consumer] = count
                # What it sent to others before has arrived too, and is read in this turn.
                asyncio.get_running_loop().call_soon(self._check)
            unread = rest
        return unread

    def _check(self) -> None:
        total = sum(self._ready.values())
        self.highest = max(self.highest, total)
        if total > self.max_in_flight:
            self.too_many.append(f"{sorted(self._ready.values())} sum above {self.max_in_flight}")
