"""The output queue: what waits to be sent to one client.

The transport holds the bytes; here is the limit.  When so much waits, the client gets no more
messages, and none of its commands that want an answer are read, until it has read most of it: it
is paused.  One that then reads nothing at all for a while is dropped, so that what it holds goes
to others; one that reads, however slowly, is not.  nsqd has a deadline for each write instead.

Whether it reads is seen by what waits here and in the kernel together: a socket takes more only
when a third of its buffer has been sent, and that may be a megabyte.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable

LIMIT_BYTES = 1 << 20
"""When so much waits to be sent, the queue is full until a quarter of it is left."""

MAX_BYTES = 64 << 20
"""A consumer's answers are heard though its queue is full; what it calls beside that may not make
so much wait.
"""


class OutputQueue:
    """The limit of one client's transport.

    Args:
        transport: where the bytes wait.
        on_stuck: called when the client reads nothing.

    Attributes:
        full: whether the limit is reached.
    """

    __slots__ = (
        "_loop",
        "_on_stuck",
        "_patience_s",
        "_timer",
        "_transport",
        "_unsent_bytes",
        "_waiting",
        "full",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        on_stuck: Callable[[], None],
    ) -> None:
        transport.set_write_buffer_limits(high=LIMIT_BYTES)
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._on_stuck = on_stuck
        self._timer: asyncio.TimerHandle | None = None
        self._patience_s = 0.0
        self._unsent_bytes: int | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.full = False

    def filled(self, patience_ns: int) -> None:
        """Check every `patience_ns` whether the client reads: the limit is reached."""
        self.full = True
        self._patience_s = patience_ns / 1e9
        self._unsent_bytes = None
        self._wait()

    def _wait(self) -> None:
        self.close()
        self._timer = self._loop.call_later(self._patience_s, self._check_progress)

    def _check_progress(self) -> None:
        """Give up a client that has read nothing since the last check. The first check only
        takes the measure: bytes that were under way when the queue was filled come behind it.
        """
        unsent = self._transport.get_write_buffer_size() + self._held_by_kernel()
        if self._unsent_bytes is not None and unsent >= self._unsent_bytes:
            self._on_stuck()
            return
        self._unsent_bytes = unsent
        self._wait()

    def _held_by_kernel(self) -> int:
        """The bytes that the client's machine has not acknowledged; 0 where that is unknown."""
        sock = self._transport.get_extra_info("socket")
        try:
            unsent = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            return 0
        return int(struct.unpack("i", unsent)[0])

    def emptied(self) -> None:
        """Let answers go on: the client has read."""
        self.full = False
        self.close()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def check(self) -> None:
        """Give up a client that asks for more and more and reads nothing."""
        if self._transport.get_write_buffer_size() > MAX_BYTES:
            self._on_stuck()

    async def drained(self) -> None:
        """Return when it is not full: for answers that are made only then."""
        while self.full:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(future)
            await future

    def close(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
