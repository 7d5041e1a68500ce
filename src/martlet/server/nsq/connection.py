"""The connection of one client over TCP, by NSQ's protocol.

All connections receive into one shared buffer; only the beginning of an incomplete command is kept,
in the connection's own buffer. Each command goes to its handler (see
`martlet.server.nsq.commands`). Publishes are staged and answered when the tick is committed, or
flushed; other answers wait behind them, so that answers keep the order of the commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from martlet.addresses import shown_peer
from martlet.broker.errors import WritesRefused
from martlet.broker.queue.queue_log import Receipt
from martlet.names import is_valid_name
from martlet.protocol.nsq import v2
from martlet.protocol.nsq.decoder import Decoder
from martlet.protocol.nsq.negotiation import default_identity
from martlet.server.clock import TimeSlice
from martlet.server.http.access import OLD_TLS
from martlet.server.listening_socket import is_local
from martlet.server.nsq.authorizer import Authorizer
from martlet.server.nsq.heartbeat import Heartbeat
from martlet.server.nsq.lingering_close import take_leave
from martlet.server.nsq.outcome import ANSWER, WAIT, ConnectionUpgrade, Outcome
from martlet.server.nsq.output_queue import OutputQueue
from martlet.server.nsq.reply_queue import PendingReplies
from martlet.server.nsq.unread_input import handle_unread
from martlet.server.rpc.arguments import CallError

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.broker.channel.subscriber import Subscriber
    from martlet.broker.queue.consumer import ChannelConsumer
    from martlet.broker.topic.topic import Topic
    from martlet.layer.tls import TlsLayer
    from martlet.options import BrokerOptions
    from martlet.server.group_commit import GroupCommit
    from martlet.server.http.access import Operators
    from martlet.server.nsq.authorizer import AuthServers
    from martlet.server.nsq.clients import Clients
    from martlet.server.nsq.publish import LonePublish
    from martlet.server.nsq.reply_queue import DeferredReply
    from martlet.server.observability.event_log import EventLog

RECEIVE_BYTES = 1 << 18
GREETING_S = 20.0
"""How long a client may take until it has said which protocol it speaks."""
_FIRST_OWN_BYTES = 1 << 16
_MAX_CORKED_BYTES = 1 << 16
_UNTIMED = 4
"""The number of commands between two checks of the time."""


Handler = Callable[["ClientConnection", Any], Outcome]


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The parts of a broker that its connections share.

    Attributes:
        commands: the handler of each kind of command.
        lone: the fast path of PUBs that come by themselves.
        auth_servers: None if every client may do everything.
        operators: who may make operators' calls, where there are no auth servers.
        receive_buffer, receive_view: the shared receive buffer.
    """

    broker: BrokerCore
    options: BrokerOptions
    limits: v2.ProtocolLimits
    commits: GroupCommit
    clients: Clients[ClientConnection]
    events: EventLog
    auth_servers: AuthServers | None
    operators: Operators
    commands: Mapping[type, Handler]
    lone: LonePublish
    receive_buffer: bytearray
    receive_view: memoryview
    log: logging.Logger


class ClientConnection(asyncio.BufferedProtocol):
    """The connection of one client.

    Args:
        context: what the connections share.
        remote_address: of a client that another replica has accepted.
        is_vouched_for: whether that replica says that the client is an operator.
    """

    # More than 30 attributes in a dict cost each access the interpreter's quick way.
    __slots__ = (
        "__weakref__",
        "_closing",
        "_commands",
        "_context",
        "_corked",
        "_corked_bytes",
        "_error",
        "_fd",
        "_filled",
        "_going_on",
        "_greeting",
        "_is_spliced",
        "_is_vouched_for",
        "_output",
        "_own",
        "_publish_lone",
        "_refused",
        "_settles",
        "_ticks",
        "_upgrade",
        "_waits",
        "begun_calls",
        "brief",
        "calls",
        "channel",
        "connected_at_ns",
        "consumer",
        "decoder",
        "deflate",
        "greeted",
        "guard",
        "heard",
        "heartbeat",
        "identity",
        "message_counters",
        "remote_address",
        "replies",
        "snappy",
        "tls",
        "topic",
        "transport",
        "when_gone",
    )

    may_be_brief = True
    """Whether connections of this class use the fast path for a lone PUB."""

    def __init__(
        self,
        context: ConnectionContext,
        remote_address: str = "",
        *,
        is_vouched_for: bool = False,
    ) -> None:
        self._context = context
        self.remote_address = remote_address
        self._is_spliced = bool(remote_address)
        self._is_vouched_for = is_vouched_for
        self._commands = context.commands
        self._publish_lone = context.lone.publish
        self._ticks = context.commits.ticks
        self.decoder = Decoder(context.limits, is_valid_name)
        self.decoder.needs_tls = bool(context.options.tls_demanded)
        self._fd = -1
        """The socket, while the lane serves the connection."""
        self._error: Exception | None = None
        """The error that has ended the connection, unless the loop met it."""
        self._corked: list[memoryview | bytes | bytearray] | None = None
        """Messages that are sent together, at the end of a run of FINs."""
        self._corked_bytes = 0
        self._own: bytearray | None = None
        self._filled = 0
        self.greeted = False
        self.brief = False
        """Whether a lone PUB may be answered at once."""
        self._waits = False
        """Whether the next command waits, for an auth server's answer or for its turn."""
        self._settles = False
        """Whether the next command waits until a change is answered."""
        self._going_on: asyncio.Handle | None = None
        self.replies = PendingReplies()
        """The due answers."""
        self._closing = False
        self._refused = False
        """Whether the last answer is the error that ends the connection."""
        self.heard = True
        """Whether a command has come since the last heartbeat."""
        self.heartbeat = Heartbeat(self)
        self._upgrade: tuple[ConnectionUpgrade, bytes] | None = None
        """An upgrade that waits for the answers before it, and the bytes after its IDENTIFY."""
        self.message_counters: dict[str, int] = {}
        """The number of messages that the client has published, by topic."""
        self.calls: set[asyncio.Task[None]] = set()
        """The unanswered calls that wait."""
        self.begun_calls: set[asyncio.Task[None]] = set()
        """The calls whose changes are not confirmed yet."""
        self.when_gone: dict[object, Callable[[], None]] = {}
        """Functions to call when the client is gone, by key."""
        self.topic: Topic | None = None
        self.channel: Channel | PartitionedChannel | None = None
        self.consumer: ChannelConsumer | Subscriber | None = None
        self.tls: TlsLayer | None = None
        self.snappy = False
        self.deflate = False

    @property
    def state(self) -> v2.ParserState:
        """The state of the protocol."""
        return self.decoder.state

    @property
    def held_up(self) -> bool:
        """Whether reading of the client's commands is paused."""
        return self._waits or self._output.full or self._upgrade is not None

    @property
    def trace_name(self) -> str:
        """The client's name in traces."""
        return f"{self.identity.client_id} {self.remote_address}"

    # opening and closing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client's first bytes."""
        context = self._context
        self.transport = cast(asyncio.Transport, transport)
        self.remote_address = self.remote_address or shown_peer(transport)
        self.connected_at_ns = context.broker.wall()
        self.identity = default_identity(context.options, self.remote_address)
        self._output = OutputQueue(self.transport, partial(self.drop, "reads nothing"))
        self.guard: Authorizer | None = None
        if context.auth_servers is not None:
            self.guard = Authorizer(
                context.auth_servers,
                self.remote_address,
                lambda: self.tls.common_name if self.tls else None,
                self.go_on,
                context.log,
            )
            self.decoder.admit = partial(self._admits, self.guard)
        self._greeting = asyncio.get_running_loop().call_later(GREETING_S, self._end_ungreeted)
        context.clients.opened(self)
        self.heartbeat.start()

    def _end_ungreeted(self) -> None:
        """Close the connection of a client that does not say which protocol it speaks."""
        self._context.events.said_nothing(self.remote_address, is_spliced=False)
        self.abort()

    def _admits(self, guard: Authorizer, verb: str, topic: str) -> bool:
        """Return whether the decoder may continue with a publish; if not, the command waits."""
        if guard.may_publish(verb, topic):
            return True
        self._hold()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the client's unread input, then requeue its messages in flight."""
        self._leave_lane()
        exc = exc or self._error
        with ExitStack() as stack:  # Calls the last first, and all, though one of them raises.
            stack.callback(self._context.clients.closed, self, exc)
            stack.callback(self._context.commits.forget, self)
            stack.callback(self._detach)
            stack.callback(self.replies.clear)
            try:
                if isinstance(exc, OSError) and not self._closing and self._is_upgraded:
                    if self.consumer is not None and self.channel is not None:
                        # FINs in the unread input must not cause new deliveries.
                        self.channel.set_ready(cast(Any, self.consumer), 0)
                    handle_unread(self)
            finally:
                self._closing = True

    @property
    def _is_upgraded(self) -> bool:
        """False in the middle of an upgrade, when all input is a handshake, and no commands."""
        return self.transport.get_protocol() is self

    def _detach(self) -> None:
        """Requeue the client's messages in flight, and stop all its timers and calls."""
        self.heartbeat.stop()
        self._greeting.cancel()
        for waiting in (*self.calls, *self.begun_calls):
            waiting.cancel()
        leaving, self.when_gone = list(self.when_gone.values()), {}
        with ExitStack() as stack:  # As in `connection_lost`.
            stack.callback(self._unsubscribe)
            stack.callback(self._output.close)
            if self.guard is not None:
                stack.callback(self.guard.close)
            for leave in reversed(leaving):
                stack.callback(leave)

    def _unsubscribe(self) -> None:
        """Requeue the client's messages in flight."""
        if self.consumer is not None and self.channel is not None and self.topic is not None:
            consumer, self.consumer = self.consumer, None
            self.channel.remove_consumer(cast(Any, consumer))
            self._context.broker.left(self.topic, self.channel)

    def close(self) -> None:
        """Send due answers, then close."""
        self._closing = True
        if not self.replies:
            self._end()

    def _end(self) -> None:
        if self._refused:
            self._detach()
            take_leave(self.transport)
        else:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self.transport.abort()

    def lose(self, error: Exception) -> None:
        """Close at once: an error has ended the connection, and the loop has not met it."""
        self._error = error
        self.transport.abort()

    def break_off(self, error: Exception) -> None:
        """Close at once: an unforeseen error has left something of the connection undone, and its
        client would wait for an answer for ever.
        """
        self._closing = True
        asyncio.get_running_loop().call_exception_handler(
            {
                "message": f"an error in the connection of {self.remote_address}",
                "exception": error,
                "protocol": self,
            }
        )
        self.lose(error)

    def drop(self, reason: str) -> None:
        """Close at once: the client is gone or does not read."""
        self._context.log.warning("[%s] the client %s: closing", self.remote_address, reason)
        self.abort()

    # bytes in

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        if self._own is None:
            return self._context.receive_view
        return memoryview(self._own)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the commands completed by new bytes."""
        self._ticks.heard()
        if self._own is None:
            if self.brief and self._publish_lone(self, nbytes):
                return
            buffer, end = self._context.receive_buffer, nbytes
        else:
            buffer, end = self._own, self._filled + nbytes
        at = start = 0
        untimed, pace = _UNTIMED, None
        try:
            if not self.greeted:
                at = self._greet(buffer, end)
            while at < end and not self._closing:
                start = at
                decoded = self.decoder.decode(buffer, at, end)
                if decoded is None:
                    break
                command, at = decoded
                self.heard = True
                outcome = self._handle(command)
                if outcome is not None:
                    if isinstance(outcome, ConnectionUpgrade):
                        self._own = None
                        self._leave_lane()
                        self._upgrade = outcome, bytes(buffer[at:end])
                        self.transport.pause_reading()
                        self._begin_upgrade()
                        return
                    at = start if outcome is WAIT else at
                    self._hold()
                    break
                untimed -= 1
                if not untimed:
                    untimed = _UNTIMED
                    if pace is None:
                        pace = TimeSlice()
                    elif pace.over:
                        self._wait_for_turn()
                        break
        except Exception as error:
            self._stop_input(error)
        if not self._closing:
            self._keep(buffer, at, end)

    def _stop_input(self, error: Exception) -> None:
        """Handle the error of a command, which ends the connection where it is fatal."""
        match error:
            case v2.ProtocolError():
                self.refuse(error)
            case v2.LineTooLong():
                self._context.events.unreadable(self.remote_address, error)
                self.close()
            case WritesRefused():
                self.refuse(v2.ProtocolError("E_INVALID", str(error)))
            case _:  # The commands before it must not be handled again with later bytes.
                self.break_off(error)

    def _hold(self) -> None:
        """Pause reading until `go_on`."""
        self._waits = True
        self.transport.pause_reading()

    def _wait_for_turn(self) -> None:
        """Let other connections run before the rest of the input."""
        if not self._closing:
            self._hold()
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        if self._going_on is None:
            self._going_on = asyncio.get_running_loop().call_soon(self.go_on)

    def go_on(self) -> None:
        """Handle the waiting command."""
        if self._going_on is not None:
            self._going_on.cancel()
            self._going_on = None
        if self._waits and not self._closing and not self._settles:
            self._waits = False
            self._read_on()
            self.buffer_updated(0)

    @property
    def has_turn_ahead(self) -> bool:
        """Whether received commands wait for nothing but their turn."""
        return self._going_on is not None

    def _read_on(self) -> None:
        """Resume reading, unless another reason still holds it up."""
        if not (self.held_up or self.transport.is_closing()):
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        """Send due answers, then close: the client sends nothing more."""
        if self._own is not None and not self._closing and self.greeted:
            error = self.decoder.cut_off(self._own, self._filled)
            if error is not None:
                self.refuse(error)
        elif not self.greeted and not self._closing:
            self._context.events.said_nothing(self.remote_address, is_spliced=self._is_spliced)
        self.close()
        return True

    def _greet(self, buffer: bytearray, end: int) -> int:
        magic = bytes(buffer[: min(end, len(v2.MAGIC))])
        if not v2.MAGIC.startswith(magic):
            self._context.events.greeted(self.remote_address, magic, v2.MAGIC)
            self.transport.write(v2.frame(v2.FrameType.ERROR, b"E_BAD_PROTOCOL"))
            self._refused = True
            self.close()
            return end
        if len(magic) < len(v2.MAGIC):
            return 0
        self._context.events.greeted(self.remote_address, magic, v2.MAGIC)
        self.greeted = True
        self._greeting.cancel()
        self.brief = self.may_be_brief and self.guard is None
        lane, sock = self._context.lone.lane, self.transport.get_extra_info("socket")
        if lane is not None and self.brief and sock is not None:
            self._fd = sock.fileno()
            lane.add(self, self._fd)
        return len(magic)

    def _leave_lane(self) -> None:
        if self._fd >= 0:
            lane, fd, self._fd = self._context.lone.lane, self._fd, -1
            assert lane is not None
            lane.remove(fd)

    def _keep(self, buffer: bytearray, at: int, end: int) -> None:
        """Keep the rest of the buffer, in one large enough for the incomplete command."""
        left = end - at
        if not left:
            self._own = None
            return
        size = max(_FIRST_OWN_BYTES, self.decoder.wanted_bytes, left + 1)
        if buffer is self._own and len(buffer) >= size:
            if at:
                buffer[:left] = buffer[at:end]
        else:
            own = bytearray(size)
            own[:left] = memoryview(buffer)[at:end]
            self._own = own
        self._filled = left

    # commands

    def _handle(self, command: v2.Command) -> Outcome:
        return self._commands[type(command)](self, command)

    def subscribed(
        self,
        topic: Topic,
        channel: Channel | PartitionedChannel,
        consumer: ChannelConsumer | Subscriber,
    ) -> None:
        """Become a consumer of a channel."""
        self.topic, self.channel, self.consumer = topic, channel, consumer
        self.decoder.state = v2.ParserState.SUBSCRIBED

    def subscription(self) -> tuple[Channel | PartitionedChannel, Any]:
        """The channel and its consumer, which is a subscriber if there are several queues."""
        assert self.channel is not None
        assert self.consumer is not None
        return self.channel, self.consumer

    def _begin_upgrade(self) -> None:
        """Switch to TLS or compression, once all earlier answers are sent."""
        if self._upgrade is not None and not self.replies and not self.transport.is_closing():
            (upgrade, early), self._upgrade = self._upgrade, None
            self.heartbeat.stop()
            self.transport.resume_reading()
            upgrade.begin(self.transport, early)

    def upgraded(self, transport: asyncio.Transport) -> None:
        """Continue over another transport."""
        self.transport = transport
        self.decoder.needs_tls = self.decoder.needs_tls and self.tls is None
        self.heartbeat.start()

    def refuse(self, error: v2.ProtocolError) -> None:
        """Answer with an error; close if it is fatal."""
        self._context.events.refused(self.remote_address, error)
        self.reply(error.frame())
        if error.fatal:
            self._refused = True
            self.close()

    # bytes out

    def reply(self, data: bytes) -> None:
        """Send an answer, after all that are due before it."""
        if self.replies:
            self.replies.append((None, "", data))
        else:
            self._send(data)

    def promise(self, receipt: Receipt, verb: str, reply: int | DeferredReply) -> None:
        """Answer a publish when the flush mode's promise holds for its receipt.

        Args:
            receipt: of the messages.
            verb: for the error.
            reply: the number of OKs to answer, or another answer.
        """
        self.replies.append((receipt, verb, reply))
        self._context.commits.stage(self)

    def promise_flushed(self, position: int) -> None:
        """Answer a PUB that is stored once the log is durable up to a position."""
        receipt = Receipt()
        receipt.position = position
        self.promise(receipt, "PUB", 1)

    def settle_change(self, verb: str, handler: Handler, command: v2.Command) -> Outcome:
        """Handle a command that may change topics or channels. Its answers, and the next commands,
        wait until the flush mode's promise holds for all such changes.

        Args:
            verb: for the error.
            handler: handles it.
            command: the command.
        """
        if self.replies:
            return WAIT  # A message must not overtake an answer that waits behind earlier ones.
        context, receipt = self._context, Receipt()
        self.replies.append((receipt, verb, b""))
        try:
            outcome = handler(self, command)
        except BaseException:
            self.replies.clear()
            raise
        if outcome is not None:
            self.replies.clear()
            return outcome
        receipt.position = context.broker.changed_position
        self._settles = not context.commits.covers(receipt.position)
        if self._settles:
            context.commits.stage(self)
            return ANSWER
        self.settle(context.commits.durable_position)
        return None

    def fail(self, error: WritesRefused) -> None:
        """Refuse all publishes that are not durable, since they never will be."""
        self.replies.fail(error)

    def settle(self, durable_position: int | None) -> bool:
        """Answer committed publishes that are durable up to a position, or all written ones for
        None. Returns whether any answer is still due.
        """
        replies = self.replies
        try:
            data, refused = replies.take(durable_position)
            if refused:
                self._closing = self._refused = True
            if data:
                self._send(data)
            if not replies:
                self._settles = False
            if self._closing and not replies:
                self._end()
            elif self._upgrade is not None:
                self._begin_upgrade()
            elif self._waits and not replies:
                if self._own is None:
                    self._waits = False  # The client has sent nothing more.
                    self._read_on()
                else:
                    self._go_on_soon()
        except Exception as error:  # The other connections must get their answers all the same.
            self.break_off(error)
            return False
        return bool(replies)

    def beat(self) -> None:
        """Send a heartbeat."""
        self.transport.write(v2.HEARTBEAT_FRAME)

    def _send(self, data: bytes) -> None:
        self.transport.write(data)
        if self._output.full:
            # A client that asks and never reads must not accumulate answers without limit.
            self.transport.pause_reading()

    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        """Send messages to the consumer."""
        if self._corked is not None:
            self._corked += frames
            self._corked_bytes += sum(map(len, frames))
            if self._corked_bytes > _MAX_CORKED_BYTES:
                self.uncork()
                self.cork()
        elif len(frames) == 1:
            self.transport.write(frames[0])
        else:
            self.transport.writelines(frames)

    def cork(self) -> None:
        """Collect messages until `uncork`: each queue of a topic delivers by itself, and a write
        for each costs more than the rest.
        """
        assert self._corked is None
        self._corked, self._corked_bytes = [], 0

    def uncork(self) -> None:
        """Send what was collected."""
        corked, self._corked = self._corked, None
        assert corked is not None
        if corked:
            self.transport.writelines(corked)

    # as a caller

    is_gone = False
    """Always False: calls are cancelled when the client is gone."""

    @property
    def connection(self) -> ClientConnection:
        """Itself."""
        return self

    @property
    def is_operator(self) -> bool:
        """Whether the client is an operator: never one that an auth server decides about."""
        if self.guard is not None:
            return False
        tls_version = "" if self.tls is None else self.tls.version
        if self._is_vouched_for:
            return tls_version not in OLD_TLS  # The client speaks TLS with this replica.
        return self._context.operators.include(
            is_local=not self._is_spliced and is_local(self.transport),
            has_certificate=self.tls is not None and self.tls.has_certificate,
            tls_version=tls_version,
        )

    def may_publish(self, topic: str) -> None:
        """Check that the client may publish to a topic. Raises CallError."""
        if self.guard is not None:
            _require(partial(self.guard.may_publish, "PUB", topic))

    def may_read(self, topic: str) -> None:
        """Check that the client may read a topic. Raises CallError."""
        if self.guard is not None:
            _require(partial(self.guard.may_read, topic))

    def may_consume(self, topic: str, channel: str) -> None:
        """Check that the client may subscribe to a channel. Raises CallError."""
        if self.guard is not None:
            _require(partial(self.guard.may_consume, topic, channel))

    async def drained(self) -> None:
        """Wait until the client has read most of the output."""
        await self._output.drained()

    def send_answer(self, frame: bytes) -> None:
        """Answer a call, ahead of other due answers."""
        if not self._closing:
            self._send(frame)
            self._output.check()

    def channel_closed(self) -> None:
        """Close after the channel was deleted."""
        self.transport.close()

    def channel_grown(self, channel: PartitionedChannel, consumer: Subscriber) -> None:
        """Consume all queues of a channel that now has several."""
        self.channel, self.consumer = channel, consumer

    def failures_counted(self, max_attempts: int) -> None:
        """Notify the client whether the channel now counts failures."""
        self.reply(v2.channel_frame(max_attempts=max_attempts))

    def recalled(self, queue: int) -> None:
        """Notify the client that all messages of a queue sent until now are redelivered."""
        self.send_messages((v2.channel_frame(recalled=queue),))

    def pause_writing(self) -> None:
        """Hold up a client that reads more slowly than the broker sends."""
        self.brief = False
        interval_ns = self.identity.heartbeat_interval_ns
        max_ns = self._context.options.client_timeout_ns
        self._output.filled(min(interval_ns or max_ns, max_ns))
        if self.consumer is not None and self.channel is not None:
            self.channel.set_blocked(cast(Any, self.consumer), True)
        else:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume: the client has read."""
        self.brief = self.may_be_brief and self.greeted and self.guard is None
        self._output.emptied()
        try:
            if self.consumer is not None and self.channel is not None:
                self.channel.set_blocked(cast(Any, self.consumer), False)
        except Exception as error:  # The loop would log it, and leave the client held up.
            self.break_off(error)
            return
        if self._waits:
            self._go_on_soon()
        self._read_on()


def _require(permission: Callable[[], bool]) -> None:
    """Check a permission of an auth server. Raises CallError."""
    try:
        is_known = permission()
    except v2.ProtocolError as error:
        raise CallError("FORBIDDEN", str(error)) from None
    if not is_known:
        raise CallError("TRY_AGAIN", "the auth server is being asked again")
