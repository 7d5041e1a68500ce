"""A proxy that swallows the broker's answers and cuts its clients off, on request."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType


class CuttingProxy:
    """Stands between clients and a broker on the loopback interface.

    Attributes:
        address: where it listens, as ``host:port``.
        swallows: whether what the broker says does not reach the clients.
        swallowed: set when something did not.
        refuses: whether who comes is cut off.
        connected_count: how many clients have come.
    """

    def __init__(self, broker_address: str) -> None:
        self._host, _, port = broker_address.rpartition(":")
        self._port = int(port)
        self.swallows = False
        self.swallowed = asyncio.Event()
        self.refuses = False
        self.connected_count = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut all clients off."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def swallow(self) -> None:
        """Swallow what the broker says from now on."""
        self.swallows = True
        self.swallowed.clear()

    def go_on(self) -> None:
        """Cut off those who have heard nothing, and let the others hear again."""
        self.swallows = False
        self.cut()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected_count += 1
        if self.refuses:
            writer.transport.abort()
            return
        try:
            back, forth = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, forth}
        for source, target, is_answer in ((reader, forth, False), (back, writer, True)):
            task = asyncio.create_task(self._pass_on(source, target, is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, is_answer: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                if is_answer and self.swallows:
                    self.swallowed.set()
                    continue
                target.write(data)
                await target.drain()
        target.transport.abort()
