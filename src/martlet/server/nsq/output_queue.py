"""The output queue: the way to one client, and the bytes that wait to be sent to it.

The transport holds the bytes; the queue keeps the limit. At the limit the client is paused: until
it has read most of the output, it gets no more messages, and the broker reads none of its commands
that need an answer. A paused client that reads nothing for a while is dropped, so that other
consumers get its messages; one that reads, however slowly, is not. nsqd has a deadline for each
write instead.

Progress is measured by the bytes that wait here and in the kernel together: a socket accepts more
only when a third of its buffer has been sent, and that may be a megabyte.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable

LIMIT_BYTES = 1 << 20
"""The limit: at this size the queue is full, until a quarter of it is left."""

MAX_BYTES = 64 << 20
"""The size at which a client is dropped: a paused consumer's FINs are still read, and without this
limit its other commands could add answers for ever.
"""


class OutputQueue:
    """The output of one client.

    Args:
        on_stuck: called when the client reads nothing.
    """

    def __init__(self, transport: asyncio.Transport, on_stuck: Callable[[], None]) -> None:
        transport.set_write_buffer_limits(high=LIMIT_BYTES)
        self._loop = asyncio.get_running_loop()
        self._lowest = transport
        self.transport = transport
        """Takes what is sent: the socket's, or a layer's after an upgrade."""
        self._on_stuck = on_stuck
        self._timer: asyncio.TimerHandle | None = None
        self._patience_s = 0.0
        self._unsent_bytes: int | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.fd = -1
        """The socket, while the connection is served without the loop."""
        self.full = False
        """Whether the limit is reached."""

    def send(self, data: bytes) -> None:
        """Send answers; while the limit is reached, no more commands are read."""
        self.transport.write(data)
        if self.full:
            # A client that asks and never reads must not accumulate answers without limit.
            self.transport.pause_reading()

    def filled(self, patience_ns: int) -> None:
        """Note that the limit is reached: check every `patience_ns` whether the client reads."""
        self.full = True
        self._patience_s = patience_ns / 1e9
        self._unsent_bytes = None
        self._wait()

    def _wait(self) -> None:
        self.close()
        self._timer = self._loop.call_later(self._patience_s, self._check_progress)

    def _check_progress(self) -> None:
        """Drop a client that has read nothing since the last check. The first check only records
        the size: bytes already in transit when the queue filled up follow it.
        """
        unsent = self._lowest.get_write_buffer_size() + self._held_by_kernel()
        if self._unsent_bytes is not None and unsent >= self._unsent_bytes:
            self._on_stuck()
            return
        self._unsent_bytes = unsent
        self._wait()

    def _held_by_kernel(self) -> int:
        """Return the bytes that the client's machine has not acknowledged; 0 if unknown."""
        sock = self._lowest.get_extra_info("socket")
        try:
            unsent = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            return 0
        return int(struct.unpack("i", unsent)[0])

    def emptied(self) -> None:
        """Resume answers: the client has read."""
        self.full = False
        self.close()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def check(self) -> None:
        """Drop a client that asks for more and more and reads nothing."""
        if self._lowest.get_write_buffer_size() > MAX_BYTES:
            self._on_stuck()

    async def drained(self) -> None:
        """Wait until it is not full, before making a large answer."""
        while self.full:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(future)
            await future

    def close(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
