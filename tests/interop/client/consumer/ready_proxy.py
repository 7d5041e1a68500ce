"""Stands between a consumer and its brokers, and sees to it that ready counts never sum too high.

Everything passes as it comes.  What the consumer sends is read along: RDY commands are added up
over all its connections, at the moment when they come, which is before any broker sees them.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self, cast


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
        self._ready: dict[Consumer, int] = {}
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        for broker in self.rises:
            server = await self._loop.create_server(
                lambda broker=broker: Consumer(self, broker),  # type: ignore[misc]
                "127.0.0.1",
            )
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
        assert not self.too_many

    def ready(self, consumer: Consumer, count: int) -> None:
        """The consumer has this ready count there from now on."""
        if count and not self._ready.get(consumer):
            self.rises[consumer.broker] += 1
        self._ready[consumer] = count
        # What it sent to others before has arrived too, and is read in this turn of the loop.
        self._loop.call_soon(self._check)

    def gone(self, consumer: Consumer) -> None:
        """One end has hung up."""
        self._ready.pop(consumer, None)

    def _check(self) -> None:
        total = sum(self._ready.values())
        self.highest = max(self.highest, total)
        if total > self.max_in_flight:
            self.too_many.append(f"{sorted(self._ready.values())} sum above {self.max_in_flight}")


class _End(asyncio.Protocol):
    """One end of a connection; what comes goes to the other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.is_lost = False
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)
        else:
            self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def join(self, other: _End) -> None:
        self.other = other
        early, self._early = self._early, b""
        if early:
            self.data_received(early)


class Consumer(_End):
    """The consumer's end: what comes here is read along."""

    def __init__(self, proxy: ReadyProxy, broker: str) -> None:
        super().__init__()
        self.broker = broker
        self._proxy = proxy
        self._unread = b""
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        assert self.transport is not None
        host, _, port = self.broker.rpartition(":")
        try:
            _, end = await asyncio.get_running_loop().create_connection(
                lambda: _BrokerEnd(self), host, int(port)
            )
        except OSError:
            self.transport.abort()
            return
        end.join(self)
        self.join(end)
        if self.is_lost and end.transport is not None:
            end.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._unread is not None:
            self._read(data)
        super().data_received(data)

    def join(self, other: _End) -> None:
        self.other = other
        early, self._early = self._early, b""
        assert other.transport is not None
        other.transport.write(early)

    def _read(self, data: bytes) -> None:
        self._unread += data
        while b"\n" in self._unread:
            line, _, rest = self._unread.partition(b"\n")
            if line.removeprefix(b"  V2") == b"IDENTIFY":
                size = int.from_bytes(rest[:4], "big")
                if len(rest) < 4 + size:
                    return
                rest = rest[4 + size :]
            elif line.startswith(b"RDY "):
                self._proxy.ready(self, int(line[4:]))
            self._unread = rest

    def broker_lost(self) -> None:
        self._proxy.gone(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxy.gone(self)
        super().connection_lost(exc)


class _BrokerEnd(_End):
    """The broker's end: when it is gone, nothing of its ready count stands."""

    def __init__(self, consumer: Consumer) -> None:
        super().__init__()
        self._consumer = consumer

    def connection_lost(self, exc: Exception | None) -> None:
        self._consumer.broker_lost()
        super().connection_lost(exc)
