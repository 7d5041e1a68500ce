"""One connection to a broker: it identifies itself, answers heartbeats, and matches replies.

A broker replies to commands in the order in which they came, and a reply does not name its command.
So each command that has a reply leaves an object that gets it, and the oldest is next.  Three
errors are no reply to such a command and harm nothing (a finish, requeue or touch that came too
late); after any other the broker hangs up, and so does the client.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

from martlet import unreachable
from martlet.addresses import Address
from martlet.client.errors import (
    ConnectFailed,
    ConnectionLost,
    NotSupported,
    PublishUnclear,
    Refused,
)
from martlet.client.transport.calls import Answer, Calls
from martlet.client.transport.handshake import HEARTBEAT, Handshake
from martlet.client.transport.identity import Features, Identity
from martlet.client.transport.property_frames import carry
from martlet.properties.block import Block
from martlet.properties.model import BadProperties
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.frames import (
    MAX_FRAME_BYTES,
    BadFrame,
    CallAnswer,
    Carried,
    ChannelNews,
    ErrorReply,
    FrameSplitter,
    Response,
)
from martlet.protocol.nsq.message_run import MessageRun

HARMLESS = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})
WRITE_BUFFER_BYTES = 1024 * 1024
"""How much may wait to be written before ``drain`` waits."""
_GRACE_S = 1.0


class Reply(Protocol):
    """An object that waits for the reply to a command."""

    def answered(self, data: bytes) -> None:
        """The broker has answered. Raises PublishUnclear where the answer is not understood."""

    def refused(self, error: Refused) -> None:
        """The broker answered an error."""

    def lost(self, error: ConnectionLost) -> None:
        """No answer will come."""


class _Waiter:
    """Gives a coroutine the reply that it waits for."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[bytes]) -> None:
        self.future = future

    def answered(self, data: bytes) -> None:
        if not self.future.done():
            self.future.set_result(data)

    def refused(self, error: Refused) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def lost(self, error: ConnectionLost) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _ignore_run(_run: MessageRun) -> None:
    """A connection that has not subscribed gets no messages."""


def _ignore_room() -> None:
    """A client that writes no more than is answered continues with the answers."""


def _ignore_refusal(_error: Refused) -> None:
    """A connection that has not subscribed answers no messages."""


class Connection(asyncio.BufferedProtocol):
    """A connection to a broker, identified and alive until ``lost`` is done.

    Attributes:
        address: the broker's.
        features: what it answered to IDENTIFY and AUTH.
        lost: done once the connection is gone, with the reason.
        on_run: called with each run of messages, as soon as it is received.
        on_refusal: called when a finish, requeue or touch came too late.
        on_writable: called when more may be written, after it could not.
        max_attempts: how often a message of the channel may fail, -1 for ever; 0 where the broker
            does not count failures.
    """

    def __init__(
        self, address: Address, identity: Identity, *, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        loop = asyncio.get_running_loop()
        self.address = address
        self.features = Features()
        self.max_attempts = 0
        self.lost: asyncio.Future[ConnectionLost] = loop.create_future()
        self.on_run: Callable[[MessageRun], None] = _ignore_run
        self.on_refusal: Callable[[Refused], None] = _ignore_refusal
        self.on_writable: Callable[[], None] = _ignore_room
        self._identity = identity
        self._loop = loop
        self._splitter = FrameSplitter(max_frame_bytes=max_frame_bytes)
        self._replies: deque[Reply] = deque()
        self._calls = Calls(self.write)
        self._carried: Block | None = None
        self._carried_from = 0
        """How many messages have come since the block of their properties."""
        self._transport: asyncio.Transport | None = None
        self._error: ConnectionLost | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._received_at = loop.time()
        self._watch: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        address: Address,
        identity: Identity,
        *,
        timeout_s: float = 10.0,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> Connection:
        """Connect, identify, and return the connection.

        Raises:
            ConnectFailed: nothing listens there, or no NSQ broker.
            ConnectRefused: the broker lacks what the identity needs, or needs what that lacks.
        """
        connection = cls(address, identity, max_frame_bytes=max_frame_bytes)
        handshake = Handshake(address, identity, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await connection._loop.create_connection(lambda: handshake, *address)
                connection.features = await handshake.run()
            handshake.hand_over(connection)
        except BaseException as error:
            handshake.abort()
            if isinstance(error, TimeoutError):
                raise ConnectFailed(f"{address}: no answer within {timeout_s:g} s") from error
            if isinstance(error, ConnectionLost):
                raise ConnectFailed(str(error)) from error
            if isinstance(error, (OSError, ValueError, BadFrame)) and not isinstance(
                error, ConnectFailed
            ):
                why = unreachable.reason(error) if isinstance(error, OSError) else str(error)
                raise ConnectFailed(f"{address}: {why}") from error
            raise
        return connection

    @property
    def is_alive(self) -> bool:
        """Whether commands can be written."""
        return self._transport is not None and not self.lost.done() and self._error is None

    @property
    def can_write(self) -> bool:
        """Whether the broker reads what is written, so that more of it will not pile up here."""
        return self._can_write.is_set()

    async def wait_lost(self) -> ConnectionLost:
        """Wait until the connection is gone, and return why."""
        return await asyncio.shield(self.lost)

    async def drain(self) -> None:
        """Wait until the broker has read most of what was written, or the connection is lost."""
        await self._can_write.wait()

    def write(self, data: bytes) -> None:
        """Send commands that have no reply; nothing happens once the connection is lost."""
        if self._transport is not None and self._error is None:
            self._transport.write(data)

    def send(self, data: bytes, reply: Reply) -> None:
        """Send a command whose reply this gets."""
        self._replies.append(reply)
        self.write(data)

    async def ask(self, data: bytes) -> bytes:
        """Send a command and wait for what the broker answers.

        Raises:
            Refused: it answered an error.
            ConnectionLost: it did not answer.
        """
        if self.lost.done():
            raise self.lost.result()
        waiter = _Waiter(self._loop.create_future())
        self.send(data, waiter)
        return await waiter.future

    async def call(self, method: str, **fields: Any) -> Answer:
        """Call a method of a Martlet broker; see `martlet.client.transport.calls`.

        Raises:
            NotSupported: it is a broker of NSQ.
            CallRefused: the broker did not do it.
            ConnectionLost: it did not answer; it may have done it or not.
        """
        if not self.features.extensions:
            raise NotSupported(f"{self.address} is no Martlet broker, which has no call {method!r}")
        if self.lost.done():
            raise self.lost.result()
        return await self._calls.call(method, fields)

    def unanswered(self, method: str, **fields: Any) -> bytes:
        """Encode a call to a Martlet broker whose answer is ignored, to be written with others."""
        return self._calls.unanswered(method, fields)

    def close(self) -> None:
        """Hang up once everything written is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: ConnectionLost | None = None) -> None:
        """Hang up at once, for that reason."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._watch_after(self._silence_s)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the space to receive into."""
        return self._splitter.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle so many bytes that were received."""
        self._received_at = self._loop.time()
        try:
            for piece in self._splitter.received(nbytes):
                if type(piece) is MessageRun:
                    if self._carried is not None:
                        self._carry(piece, self._carried)
                    self.on_run(piece)
                elif type(piece) is Response:
                    self._respond(piece.data)
                elif type(piece) is ErrorReply:
                    self._refuse(piece)
                elif type(piece) is Carried:
                    self._carried, self._carried_from = Block(piece.data), 0
                elif type(piece) is CallAnswer:
                    self._calls.answered(piece.data)
                elif type(piece) is ChannelNews:
                    self._learn(piece)
        except (BadFrame, BadProperties) as error:
            self.abort(ConnectionLost(f"{self.address}: {error}"))

    def pause_writing(self) -> None:
        """The broker does not read as fast as the client writes."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """The broker has read enough."""
        self._can_write.set()
        self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._watch is not None:
            self._watch.cancel()
        error = self._error
        if error is None:
            error = ConnectionLost(f"{self.address}: {unreachable.loss(exc)}")
            error.__cause__ = exc
        self._error = error
        self._can_write.set()
        self.lost.set_result(error)
        while self._replies:
            self._replies.popleft().lost(error)
        self._calls.lost(error)

    # What came.

    def _learn(self, news: ChannelNews) -> None:
        try:
            self.max_attempts = int(json.loads(news.data)["max_attempts"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadFrame(f"what it says of the channel cannot be read: {error}") from None

    def _carry(self, run: MessageRun, block: Block) -> None:
        """Give messages the properties that came before them."""
        if carry(run, block, self._carried_from):
            self._carried = None
        self._carried_from += run.count

    def _respond(self, data: bytes) -> None:
        if data == HEARTBEAT:
            self.write(commands.NOP)
        elif self._replies:
            try:
                self._replies.popleft().answered(data)
            except PublishUnclear as error:
                self.abort(ConnectionLost(str(error)))
        else:
            self.abort(ConnectionLost(f"{self.address}: an answer to nothing: {data[:80]!r}"))

    def _refuse(self, reply: ErrorReply) -> None:
        error = Refused(reply.code, reply.text)
        if error.code in HARMLESS:
            self.on_refusal(error)
            return
        if self._replies:
            self._replies.popleft().refused(error)
        lost = ConnectionLost(f"{self.address}: {error}")
        lost.__cause__ = error
        self.abort(lost)

    # Whether the broker lives.

    @property
    def _silence_s(self) -> float:
        """How long nothing may come."""
        return 2 * self._identity.heartbeat_interval_ms / 1000

    def _watch_after(self, seconds: float) -> None:
        self._watch = self._loop.call_later(seconds, self._check_silence, False)

    def _check_silence(self, looked_again: bool) -> None:
        left_s = self._received_at + self._silence_s - self._loop.time()
        if left_s > 0:
            self._watch_after(left_s)
        elif not looked_again:
            # The application may have held up the loop, so that what came was not yet read.
            self._watch = self._loop.call_later(_GRACE_S, self._check_silence, True)
        else:
            self.abort(
                ConnectionLost(
                    f"{self.address}: nothing came for {self._silence_s:g} s, not even a heartbeat"
                )
            )
