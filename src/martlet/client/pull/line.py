"""The line: queues of which something can be handled, and those who wait to handle it.

The queues take turns, message by message, so that a long backlog in one does not hold up the
others.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.client.pull.batch import PulledBatch
    from martlet.client.pull.held import HeldQueue
    from martlet.client.pull.message import PulledMessage

TURN_S = 0.001
"""How long messages may be handled in one turn of the event loop, by all together."""


class Line:
    """The queues that have something.

    Attributes:
        is_closed: whether nothing more is to be handed out.
        turn_ends_at_s: when whoever handles messages is to ``rest``.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self.turn_ends_at_s = 0.0
        self._queues: deque[HeldQueue] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._error: Exception | None = None
        self._is_resting = False

    def add(self, held: HeldQueue) -> None:
        """There may be something of it to be handled."""
        if not held.is_in_line and held.is_ready:
            held.is_in_line = True
            self._queues.append(held)
            self._wake(1)

    def close(self, error: Exception | None = None) -> None:
        """Hand out no more; whoever asks is told the error, if there is one."""
        self.is_closed = True
        self._error = self._error or error
        self._wake(len(self._waiters))

    def check(self) -> None:
        """Raise the error that the line was closed with, if it was."""
        if self._error is not None:
            raise self._error

    async def message(self, *, in_order: bool = False) -> PulledMessage | None:
        """The next message; None at the end.

        With ``in_order`` none of a queue of which one taken so is at work.
        """
        while not self.is_closed:
            if time.monotonic() > self.turn_ends_at_s:
                await self._rest()
            elif (message := self.message_now(in_order)) is not None:
                return message
            else:
                await self._arrival()
        return None

    def message_now(self, in_order: bool) -> PulledMessage | None:
        """The next message, where one may be handled now: for those who handle many."""
        if self.is_closed or time.monotonic() > self.turn_ends_at_s:
            return None
        held = self._next(in_order)
        if held is None:
            return None
        message = held.take()
        held.is_busy = in_order
        self._back(held, in_order)
        return message

    async def batch(self, most: int, wait_s: float = 0.0) -> PulledBatch | None:
        """The next messages of one queue, as many as are here up to so many; None at the end.

        With ``wait_s`` that is how long it may take to fill.
        """
        while not self.is_closed:
            held = self._next(False)
            if held is None:
                await self._arrival()
                continue
            if wait_s > 0 and held.count < most:
                self._back(held, False)
                await asyncio.sleep(wait_s)
                wait_s = 0.0
                continue
            batch = held.take_batch(most)
            self._back(held, False)
            return batch
        return None

    def _next(self, in_order: bool) -> HeldQueue | None:
        """The queue whose turn it is."""
        queues = self._queues
        while queues:
            held = queues.popleft()
            held.is_in_line = False
            if held.is_ready and not (in_order and held.is_busy):
                return held
        return None

    def _back(self, held: HeldQueue, in_order: bool) -> None:
        """Let it wait for its next turn, if there is more of it; let the next one take its own."""
        if held.is_ready and not (in_order and held.is_busy):
            held.is_in_line = True
            self._queues.append(held)
        if self._queues:
            self._wake(1)

    async def _rest(self) -> None:
        """Let the event loop do other things before the next message is handled."""
        if not self._is_resting:
            self._is_resting = True
            asyncio.get_running_loop().call_soon(self._begin_turn)
        await asyncio.sleep(0)

    def _begin_turn(self) -> None:
        self._is_resting = False
        self.turn_ends_at_s = time.monotonic() + TURN_S

    async def _arrival(self) -> None:
        """Wait until there may be something, or the line is closed."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(1)  # What woke this one is for another.
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
