"""The input and the output of one client: commands that wait, answers that are due, bytes to send.

A command's outcome says whether the commands behind it wait: None if the connection just continues.
All connections receive into one shared buffer; a client has one of its own only while a command is
incomplete, or waits.

Answers keep the order of the commands. A publish is answered once its batch is written, or flushed;
later commands are answered after it.

The transport holds the bytes to send; the output queue keeps the limit. At the limit the client is
paused: until it has read most of the output, it gets no more messages, and the broker reads none of
its commands that need an answer. A paused client that reads nothing for a while is dropped, so that
other consumers get its messages; one that reads, however slowly, is not. nsqd has a deadline for
each write instead.

Progress is measured by the bytes that wait here and in the kernel together: a socket accepts more
only when a third of its buffer has been sent, and that may be a megabyte.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused
from martlet.broker.queue.queue_log import Receipt
from martlet.protocol.nsq import v2

if TYPE_CHECKING:
    from martlet.server.group_commit import GroupCommit

_FIRST_OWN_BYTES = 1 << 16
LIMIT_BYTES = 1 << 20
"""The size at which the output queue is full, until a quarter of it is left."""
MAX_BYTES = 64 << 20
"""The size at which a client is dropped: a paused consumer's FINs are still read, and without this
limit its other commands could add answers for ever.
"""


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


class DeferredReply(ABC):
    """An answer that says more than OK.

    Args:
        waits: whether it waits for a flush if a PUB's answer would, and not only for the write.
    """

    __slots__ = ("waits",)

    def __init__(self, waits: bool) -> None:
        self.waits = waits

    @abstractmethod
    def stored(self) -> bytes:
        """Return the answer once the messages are stored."""

    @abstractmethod
    def refused(self, error: WritesRefused) -> bytes:
        """Return the answer if they are refused; the connection stays open."""


Answer = tuple[Receipt | None, str, int | bytes | DeferredReply]
"""A due answer: of a publish its receipt, its verb and the number of OKs or another reply; of any
other command the bytes, with a receipt and the verb where those behind it wait for a change.
"""


class ReplyQueue:
    """The due answers of one client.

    Args:
        on_answered: called when no answer is due any more, with whether the last one was a refusal
            that ends the connection.
        on_error: called with an unforeseen error: some answer cannot be given.
    """

    def __init__(
        self,
        output: OutputQueue,
        commits: GroupCommit,
        on_answered: Callable[[bool], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._output = output
        self._commits = commits
        self._on_answered = on_answered
        self._on_error = on_error
        self.due: deque[Answer] = deque()
        """The answers, the oldest first."""
        self.is_closed = False
        """Whether the client has disconnected."""
        self.settles = False
        """Whether the next command waits until a change is answered."""

    def reply(self, data: bytes) -> None:
        """Send an answer, after all that are due before it."""
        if self.due:
            self.due.append((None, "", data))
        else:
            self._output.send(data)

    def promise(self, receipt: Receipt, verb: str, reply: int | DeferredReply) -> None:
        """Answer a publish, with a number of OKs or with a reply of its own, when the flush mode's
        promise holds for its receipt. An error names the verb.
        """
        self.due.append((receipt, verb, reply))
        self._commits.stage(self)

    def promise_flushed(self, position: int) -> None:
        """Answer a PUB that is stored once the log is durable up to a position."""
        receipt = Receipt()
        receipt.position = position
        self.promise(receipt, "PUB", 1)

    def settle_change(self, verb: str, handle: Callable[[], Outcome]) -> Outcome:
        """Handle a command that may change topics or channels. Its answers, and the next commands,
        wait until the flush mode's promise holds for all such changes. An error names the verb.
        """
        if self.due:
            return WAIT  # A message must not overtake an answer that waits behind earlier ones.
        receipt = Receipt()
        self.due.append((receipt, verb, b""))
        try:
            outcome = handle()
        except BaseException:
            self.due.clear()
            raise
        if outcome is not None:
            self.due.clear()
            return outcome
        receipt.position = self._commits.changed_position
        self.settles = not self._commits.covers(receipt.position)
        if self.settles:
            self._commits.stage(self)
            return ANSWER
        self.settle(self._commits.durable_position)
        return None

    def fail(self, error: WritesRefused) -> None:
        """Refuse all publishes that are not durable, since they never will be."""
        for receipt, _, _ in self.due:
            if receipt is not None and receipt.error is None:
                receipt.error = error

    def settle(self, durable_position: int | None) -> bool:
        """Send the answers that are due: of committed publishes that are durable up to a position,
        or of all written ones for None. Returns whether any is left.
        """
        try:
            data, is_refused = self._take(durable_position)
            if data:
                self._output.send(data)
            if not self.due:
                self.settles = False
                self._on_answered(is_refused)
        except Exception as error:  # The other connections must get their answers all the same.
            self._on_error(error)
            return False
        return bool(self.due)

    def close(self) -> None:
        """Drop all answers, as the client has disconnected."""
        self.is_closed = True
        self.due.clear()
        self._commits.forget(self)

    def _take(self, durable_position: int | None) -> tuple[bytes, bool]:
        """Take the answers that may be sent now, and whether a refusal ends the connection."""
        due = self.due
        parts: list[bytes] = []
        reached = float("inf") if durable_position is None else durable_position
        while due:
            receipt, verb, reply = due[0]
            if receipt is None:
                assert isinstance(reply, bytes)
                parts.append(reply)
            elif receipt.error is not None:
                if isinstance(reply, DeferredReply):
                    parts.append(reply.refused(receipt.error))
                    due.popleft()
                    continue
                text = f"{verb} failed {receipt.error}"
                parts.append(v2.ProtocolError(f"E_{verb}_FAILED", text).frame())
                due.clear()
                return b"".join(parts), True
            elif isinstance(reply, (int, bytes)):
                if not receipt.position or receipt.position > reached:
                    break
                parts.append(v2.OK * reply if isinstance(reply, int) else reply)
            else:
                if not receipt.position or (reply.waits and receipt.position > reached):
                    break
                parts.append(reply.stored())
            due.popleft()
        return parts[0] if len(parts) == 1 else b"".join(parts), False


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
