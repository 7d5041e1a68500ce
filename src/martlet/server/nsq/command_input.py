"""The input of a client: the beginning of an incomplete command, and whether more is read.

A command's outcome says whether the commands behind it wait: None if the connection just continues.
All connections receive into one shared buffer; a client has one of its own only while a command is
incomplete, or waits.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.server.nsq.output_queue import OutputQueue

_FIRST_OWN_BYTES = 1 << 16


class ConnectionUpgrade(ABC):
    """The switch of a connection to TLS or compression, as agreed by IDENTIFY."""

    @abstractmethod
    def begin(self, transport: asyncio.Transport, early: bytes) -> None:
        """Start, once the answer to IDENTIFY is written.

        Args:
            early: the bytes received after IDENTIFY.
        """


class Wait(Enum):
    """Why the next commands wait.

    WAIT: the command cannot run yet, and is handled again later. ANSWER: it has run, and is to be
    answered first.
    """

    WAIT = "wait"
    ANSWER = "answer"


WAIT = Wait.WAIT
ANSWER = Wait.ANSWER
Outcome = ConnectionUpgrade | Wait | None


class CommandInput:
    """The input of one client.

    Args:
        output: its transport is paused, and it holds up reading while it is full.
    """

    def __init__(self, output: OutputQueue, go_on: Callable[[], None]) -> None:
        self._output = output
        self._go_on = go_on
        self._going_on: asyncio.Handle | None = None
        self.own: bytearray | None = None
        """The client's buffer; None if nothing is in it."""
        self.filled_bytes = 0
        """The size of what is in it."""
        self.waits = False
        """Whether the next command waits: for an auth server, for an answer or for its turn."""
        self.upgrade: tuple[ConnectionUpgrade, bytes] | None = None
        """An upgrade that waits for the answers before it, and the bytes after its IDENTIFY."""

    def keep(self, buffer: bytearray, at: int, end: int, wanted_bytes: int) -> None:
        """Keep the rest of a buffer, in one large enough for the incomplete command."""
        left = end - at
        if not left:
            self.own = None
            return
        size = max(_FIRST_OWN_BYTES, wanted_bytes, left + 1)
        if buffer is self.own and len(buffer) >= size:
            if at:
                buffer[:left] = buffer[at:end]
        else:
            own = bytearray(size)
            own[:left] = memoryview(buffer)[at:end]
            self.own = own
        self.filled_bytes = left

    @property
    def is_held_up(self) -> bool:
        """Whether reading of the client's commands is paused."""
        return self.waits or self._output.full or self.upgrade is not None

    def hold(self) -> None:
        """Pause reading until `take_turn`."""
        self.waits = True
        self._output.transport.pause_reading()

    def resume(self) -> None:
        """Resume reading, unless another reason still holds it up."""
        if not (self.is_held_up or self._output.transport.is_closing()):
            self._output.transport.resume_reading()

    @property
    def has_turn_ahead(self) -> bool:
        """Whether received commands wait for nothing but their turn."""
        return self._going_on is not None

    def go_on_soon(self) -> None:
        """Handle the waiting command after the other connections have had their turn."""
        if self._going_on is None:
            self._going_on = asyncio.get_running_loop().call_soon(self._go_on)

    def take_turn(self) -> None:
        """Wait no more for a turn."""
        if self._going_on is not None:
            self._going_on.cancel()
            self._going_on = None

    def answered(self) -> None:
        """Continue: the answers that a command has waited for were sent."""
        if self.own is None:
            self.waits = False  # The client has sent nothing more.
            self.resume()
        else:
            self.go_on_soon()
