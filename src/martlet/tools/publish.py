"""Publish: sends what comes from a pipe or files to a topic, a message for each line.

Each of the brokers named gets every message, as from to_nsq.

What has been read is published in batches, as much as there is at a time; reading waits while the
broker has more than a few of them to answer.  It ends when everything is stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, suppress
from io import FileIO
from threading import Thread

from martlet.client import Producer
from martlet.client.names import check_name
from martlet.options.tools import PublishOptions
from martlet.tools.client_settings import producer_settings
from martlet.tools.dead_letter import body_of

_READ_BYTES = 1 << 18
_FLYING = 8
"""How many batches may be on their way."""


class PublishTool:
    """Publishes files.

    Args:
        options: as the flags give them.
        on_stored: told how many more bytes of the input are stored.
        clock: seconds.
    """

    def __init__(
        self,
        options: PublishOptions,
        on_stored: Callable[[int], None] = lambda size_bytes: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._on_stored = on_stored
        self._clock = clock
        self._delimiter = b"\n" if options.dead_letters else options.delimiter.encode()
        self.count = 0
        """How many messages are stored."""

    async def run(self, files: Iterable[FileIO]) -> int:
        """Publish what the files hold, and return how many messages that was.

        Raises:
            ClientError: the broker does not take it, or is not there.
        """
        check_name(self._options.topic, "topic")
        flying = asyncio.Semaphore(_FLYING)
        settings = producer_settings(self._options.client)
        async with AsyncExitStack() as connected:
            producers = [
                await connected.enter_async_context(
                    Producer(address, timeout_s=self._options.timeout_ns / 1e9, **settings)
                )
                for address in dict.fromkeys(self._options.nsqd_tcp_addresses)
            ]
            async with asyncio.TaskGroup() as group:
                async for bodies in self._paced(files):
                    await flying.acquire()
                    group.create_task(self._send(producers, bodies, flying))
        return self.count

    async def _send(
        self, producers: list[Producer], bodies: list[bytes], flying: asyncio.Semaphore
    ) -> None:
        topic = self._options.topic
        try:
            await asyncio.gather(*(each.publish_many(topic, bodies) for each in producers))
        finally:
            flying.release()
        self.count += len(bodies)
        self._on_stored(sum(map(len, bodies)) + len(bodies) * len(self._delimiter))

    async def _paced(self, files: Iterable[FileIO]) -> AsyncIterator[list[bytes]]:
        """The messages, no faster than is allowed."""
        rate = self._options.rate
        sent, began_s = 0, self._clock()
        async for bodies in self._messages(files):
            if not rate:
                yield bodies
                continue
            max_count = max(1, rate // 10)
            for at in range(0, len(bodies), max_count):
                some = bodies[at : at + max_count]
                await asyncio.sleep(max(0.0, began_s + sent / rate - self._clock()))
                sent += len(some)
                yield some

    async def _messages(self, files: Iterable[FileIO]) -> AsyncIterator[list[bytes]]:
        """What is read, cut into messages; empty ones are left out, as nobody may publish them."""
        unpack: Callable[[bytes], bytes] = body_of if self._options.dead_letters else bytes
        for file in files:
            rest = b""
            async for data in _pieces(file):
                *whole, rest = (rest + data).split(self._delimiter)
                if bodies := [body for body in map(unpack, filter(None, whole)) if body]:
                    yield bodies
            if rest:
                yield [unpack(rest)]


async def _pieces(file: FileIO) -> AsyncIterator[bytes]:
    """What is read, piece by piece.

    A thread of its own reads, which nobody waits for: a pipe may never say anything again.  So the
    file has no buffer: the thread would hold its lock, and Python ends badly where somebody does.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue(1)

    def hand(piece: bytes | OSError) -> bytes | OSError:
        asyncio.run_coroutine_threadsafe(pieces.put(piece), loop).result()
        return piece

    def reader() -> None:
        with suppress(CancelledError, RuntimeError):  # nobody listens any more
            try:
                while hand(file.read(_READ_BYTES)):
                    pass
            except OSError as error:
                hand(error)

    Thread(target=reader, name="martlet pub", daemon=True).start()
    while piece := await pieces.get():
        if isinstance(piece, OSError):
            raise piece
        yield piece
