"""One connection to a broker: identify, answer heartbeats, and match replies to commands.

A broker replies in the order of the commands, and a reply does not name its command. So each
command with a reply queues an object that receives it, the oldest first. Three errors are no such
reply and harmless (to a finish, requeue or touch that was too late); after any other the broker
closes the connection, and so does the client.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
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
"""The maximum unsent output before ``drain`` waits."""
_GRACE_S = 1.0


class ReplyReceiver(Protocol):
    """An object that waits for the reply to a command."""

    def answered(self, data: bytes) -> None:
        """Handle the broker's answer. Raises PublishUnclear if it is unintelligible."""

    def refused(self, error: Refused) -> None:
        """Handle an error of the broker."""

    def lost(self, error: ConnectionLost) -> None:
        """Handle that no answer will come."""


class _Waiter:
    """Pass a reply to the coroutine that waits for it."""

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


def _ignore(*_: object) -> None:
    """Ignore what comes for a subscription, where there is none."""


OnDone = Callable[[BaseException | None], object]


class Connection(asyncio.BufferedProtocol):
    """A connection to a broker, identified and alive until ``lost`` is done.

    Attributes:
        lost: done once the connection is gone, with the reason.
        on_run: called with each run of messages on receipt.
        on_refusal: called when a finish, requeue or touch was too late.
        on_writable: called when more may be written again.
        max_attempts: the maximum number of failures of the channel's messages, -1 for no limit; 0
            if the broker does not count failures.
        id_base: leads from a message's id to its queue, for a client that handles messages in
            order; None if the broker does not know of such clients.
        on_recalled: called with a queue whose messages until now are redelivered.
    """

    def __init__(
        self, address: Address, identity: Identity, *, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        loop = asyncio.get_running_loop()
        self.address = address
        self.features = Features()
        self.max_attempts = 0
        self.id_base: int | None = None
        self.on_recalled: Callable[[int], None] = _ignore
        self.lost: asyncio.Future[ConnectionLost] = loop.create_future()
        self.on_run: Callable[[MessageRun], None] = _ignore
        self.on_refusal: Callable[[Refused], None] = _ignore
        self.on_writable: Callable[[], None] = _ignore
        self._identity = identity
        self._loop = loop
        self._splitter = FrameSplitter(max_frame_bytes=max_frame_bytes)
        self._replies: deque[ReplyReceiver] = deque()
        self._calls = Calls(self.write)
        self._carried: Block | None = None
        self._carried_from = 0
        """The number of messages received since the block of their properties."""
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
            ConnectFailed: no NSQ broker listens there. ConnectRefused: the broker lacks a feature
            that the identity needs, or the other way round.
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
        """Whether the broker reads the output, so that more of it does not accumulate."""
        return self._can_write.is_set()

    async def wait_lost(self) -> ConnectionLost:
        """Wait until the connection is lost, and return the reason."""
        return await asyncio.shield(self.lost)

    async def drain(self) -> None:
        """Wait until the broker has read most of the output, or the connection is lost."""
        await self._can_write.wait()

    def write(self, data: bytes) -> None:
        """Send commands without a reply; do nothing once the connection is lost."""
        if self._transport is not None and self._error is None:
            self._transport.write(data)

    def send(self, data: bytes, reply: ReplyReceiver) -> None:
        """Send a command whose reply goes to this object."""
        self._replies.append(reply)
        self.write(data)

    async def ask(self, data: bytes) -> bytes:
        """Send a command and wait for the broker's answer.

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
            NotSupported: it is an NSQ broker. CallRefused: the broker refused it. ConnectionLost:
            it did not answer; it may have done it or not.
        """
        return await self._begin_call(method, fields)

    def call_then(self, on_done: OnDone, method: str, **fields: Any) -> None:
        """Write a call; `on_done` gets None, or CallRefused or ConnectionLost, when it is over."""
        if self.lost.done():
            self._loop.call_soon(on_done, self.lost.result())
        else:
            answer = self._begin_call(method, fields)
            answer.add_done_callback(lambda done: on_done(done.exception()))

    def _begin_call(self, method: str, fields: Mapping[str, Any]) -> asyncio.Future[Answer]:
        if not self.features.extensions:
            raise NotSupported(f"{self.address} is no Martlet broker, which has no call {method!r}")
        if self.lost.done():
            raise self.lost.result()
        return self._calls.call(method, fields)

    def unanswered(self, method: str, **fields: Any) -> bytes:
        """Encode a call whose answer is ignored, to be written with other commands."""
        return self._calls.unanswered(method, fields)

    def close(self) -> None:
        """Close the connection after all output is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: ConnectionLost | None = None) -> None:
        """Abort the connection, with a reason."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._watch_after(self._silence_s)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the receive buffer."""
        return self._splitter.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes."""
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
        """Note that the broker reads more slowly than the client writes."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """Note that the broker has read enough."""
        self._can_write.set()
        self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all waiting commands: the connection is lost."""
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

    # Input.

    def _learn(self, news: ChannelNews) -> None:
        try:
            fields = {str(name): int(value) for name, value in json.loads(news.data).items()}
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
            raise BadFrame(f"what it says of the channel cannot be read: {error}") from None
        self.max_attempts = fields.get("max_attempts", self.max_attempts)
        self.id_base = fields.get("id_base", self.id_base)
        if "recalled" in fields:
            self.on_recalled(fields["recalled"])

    def _carry(self, run: MessageRun, block: Block) -> None:
        """Attach the properties that preceded the messages."""
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

    # Liveness.

    @property
    def _silence_s(self) -> float:
        """The maximum time without input."""
        return 2 * self._identity.heartbeat_interval_ms / 1000

    def _watch_after(self, seconds: float) -> None:
        self._watch = self._loop.call_later(seconds, self._check_silence, False)

    def _check_silence(self, is_second_check: bool) -> None:
        left_s = self._received_at + self._silence_s - self._loop.time()
        if left_s > 0:
            self._watch_after(left_s)
        elif not is_second_check:
            # The application may have blocked the loop, so that input was not read yet.
            self._watch = self._loop.call_later(_GRACE_S, self._check_silence, True)
        else:
            self.abort(
                ConnectionLost(
                    f"{self.address}: nothing came for {self._silence_s:g} s, not even a heartbeat"
                )
            )
