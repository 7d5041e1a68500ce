"""The connection of one client over TCP, by NSQ's protocol.

The connection reads commands, hands each to its handler (see `martlet.server.nsq.commands`), and
ends. What else there is of a client has an object of its own::

    CommandInput        what is received and not handled, and whether more is read
    OutputQueue         the way to the client, and its limit
    ReplyQueue          the answers that are due, in the order of the commands
    ClientSubscription  the channel that it consumes, and the way of messages to it
    ConnectedCaller     its rights and its unanswered calls
    Heartbeat           whether it is still there
    Authorizer          its permissions, where there are auth servers
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from martlet.addresses import shown_peer
from martlet.broker.errors import WritesRefused
from martlet.names import is_valid_name
from martlet.protocol.nsq import v2
from martlet.protocol.nsq.decoder import Decoder
from martlet.protocol.nsq.negotiation import default_identity
from martlet.server.clock import TimeSlice
from martlet.server.nsq.authorizer import Authorizer
from martlet.server.nsq.calls import ConnectedCaller
from martlet.server.nsq.client_io import (
    WAIT,
    CommandInput,
    ConnectionUpgrade,
    Outcome,
    OutputQueue,
    ReplyQueue,
)
from martlet.server.nsq.heartbeat import Heartbeat
from martlet.server.nsq.lingering_close import take_leave
from martlet.server.nsq.subscription import ClientSubscription
from martlet.server.nsq.unread_input import handle_unread

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.layer.tls import TlsLayer
    from martlet.options import BrokerOptions
    from martlet.server.group_commit import GroupCommit
    from martlet.server.http.access import Operators
    from martlet.server.nsq.authorizer import AuthServers
    from martlet.server.nsq.clients import Clients
    from martlet.server.nsq.publish import LonePublish
    from martlet.server.observability.event_log import EventLog

RECEIVE_BYTES = 1 << 18
GREETING_S = 20.0
"""How long a client may take until it has said which protocol it speaks."""
_UNTIMED = 4
"""The number of commands between two checks of the time."""
_P = ord("P")


Handler = Callable[["ClientConnection", Any], Outcome]


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The parts of a broker that its connections share."""

    broker: BrokerCore
    options: BrokerOptions
    limits: v2.ProtocolLimits
    commits: GroupCommit
    clients: Clients
    events: EventLog
    auth_servers: AuthServers | None
    """None if every client may do everything."""
    operators: Operators
    """Decides who may make operators' calls, where there are no auth servers."""
    commands: Mapping[type, Handler]
    lone: LonePublish
    receive_buffer: bytearray
    receive_view: memoryview
    """The shared receive buffer."""
    log: logging.Logger


class ClientConnection(asyncio.BufferedProtocol):
    """The connection of one client.

    Args:
        remote_address: of a client that another replica has accepted.
        is_vouched_for: whether that replica says that the client is an operator.
    """

    may_be_brief = True
    """Whether connections of this class use the fast path for a lone PUB."""
    subscription_type = ClientSubscription

    def __init__(
        self,
        context: ConnectionContext,
        remote_address: str = "",
        *,
        is_vouched_for: bool = False,
    ) -> None:
        self._context = context
        self.remote_address = remote_address
        self.is_spliced = bool(remote_address)
        """Whether another replica has accepted the client."""
        self._commands = context.commands
        self._publish_lone = context.lone.publish
        self._ticks = context.commits.ticks
        self.decoder = Decoder(context.limits, is_valid_name)
        self.decoder.needs_tls = bool(context.options.tls_demanded)
        self._error: Exception | None = None
        """The error that has ended the connection, unless the loop met it."""
        self.greeted = False
        self.brief = False
        """Whether a lone PUB may be answered at once."""
        self.closing = False
        self._refused = False
        """Whether the last answer is the error that ends the connection."""
        self.has_received = True
        """Whether a command has come since the last heartbeat."""
        self.heartbeat = Heartbeat(self)
        self.message_counters: dict[str, int] = {}
        """The number of messages that the client has published, by topic."""
        self.subscription: ClientSubscription | None = None
        self.tls: TlsLayer | None = None
        self.snappy = False
        self.deflate = False
        self.caller = ConnectedCaller(self, context.operators, is_vouched_for=is_vouched_for)

    @property
    def state(self) -> v2.ParserState:
        """The state of the protocol."""
        return self.decoder.state

    # opening and closing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client's first bytes."""
        context = self._context
        self.remote_address = self.remote_address or shown_peer(transport)
        self.connected_at_ns = context.broker.wall()
        self.identity = default_identity(context.options, self.remote_address)
        self.output = OutputQueue(
            cast(asyncio.Transport, transport), partial(self.drop, "reads nothing")
        )
        self.replies = ReplyQueue(self.output, context.commits, self._answered, self.break_off)
        self.input = CommandInput(self.output, self.go_on)
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
        self.input.hold()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the client's unread input, then requeue its messages in flight."""
        self._context.lone.leave(self)
        exc = exc or self._error
        with ExitStack() as stack:  # Calls the last first, and all, though one of them raises.
            stack.callback(self._context.clients.closed, self, exc)
            stack.callback(self.replies.close)
            stack.callback(self._detach)
            try:
                # In the middle of an upgrade all input is a handshake, and no commands.
                reads_commands = self.output.transport.get_protocol() is self
                if isinstance(exc, OSError) and not self.closing and reads_commands:
                    if self.subscription is not None:
                        # FINs in the unread input must not cause new deliveries.
                        channel, consumer = self.subscribed()
                        channel.set_ready(consumer, 0)
                    handle_unread(self)
            finally:
                self.closing = True

    def _detach(self) -> None:
        """Requeue the client's messages in flight, and stop all its timers and calls."""
        self.heartbeat.stop()
        self._greeting.cancel()
        subscription, self.subscription = self.subscription, None
        with ExitStack() as stack:  # As in `connection_lost`.
            if subscription is not None:
                stack.callback(subscription.end, self._context.broker)
            stack.callback(self.output.close)
            if self.guard is not None:
                stack.callback(self.guard.close)
            stack.callback(self.caller.leave)

    def close(self) -> None:
        """Send due answers, then close."""
        self._begin_close()
        if not self.replies.due:
            self._end()

    def _begin_close(self) -> None:
        """Handle no more commands."""
        self.closing, self.brief = True, False

    def _end(self) -> None:
        if self._refused:
            self._detach()
            take_leave(self.output.transport)
        else:
            self.output.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._begin_close()
        self.output.transport.abort()

    def lose(self, error: Exception) -> None:
        """Close at once: an error has ended the connection, and the loop has not met it."""
        self._error = error
        self.output.transport.abort()

    def break_off(self, error: Exception) -> None:
        """Close at once after an unforeseen error, or the client would wait for ever."""
        self._begin_close()
        asyncio.get_running_loop().call_exception_handler(
            {
                "message": f"an error in the connection of {self.remote_address}",
                "exception": error,
                "protocol": self,
            }
        )
        self.lose(error)

    def drop(self, reason: str) -> None:
        """Close at once, as the client has disconnected or does not read."""
        self._context.log.warning("[%s] the client %s: closing", self.remote_address, reason)
        self.abort()

    # bytes in

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        kept = self.input
        if kept.own is None:
            return self._context.receive_view
        return memoryview(kept.own)[kept.filled_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the commands completed by new bytes."""
        self._ticks.note_input()
        received = self.input
        if received.own is None:
            buffer, end = self._context.receive_buffer, nbytes
            if self.brief and buffer[0] == _P and self._publish_lone(self, nbytes):
                return
        else:
            buffer, end = received.own, received.filled_bytes + nbytes
        at = start = 0
        untimed, pace = _UNTIMED, None
        try:
            if not self.greeted:
                at = self._greet(buffer, end)
            while at < end and not self.closing:
                start = at
                decoded = self.decoder.decode(buffer, at, end)
                if decoded is None:
                    break
                command, at = decoded
                self.has_received = True
                outcome = self._handle(command)
                if outcome is not None:
                    if isinstance(outcome, ConnectionUpgrade):
                        self._begin_upgrade(outcome, bytes(buffer[at:end]))
                        return
                    at = start if outcome is WAIT else at
                    received.hold()
                    break
                untimed -= 1
                if not untimed:
                    untimed = _UNTIMED
                    if pace is None:
                        pace = TimeSlice()
                    elif pace.over:
                        if not self.closing:
                            received.hold()
                            received.go_on_soon()
                        break
        except Exception as error:
            self._stop_input(error)
        if (at < end or received.own is not None) and not self.closing:
            received.keep(buffer, at, end, self.decoder.wanted_bytes)

    def _handle(self, command: v2.Command) -> Outcome:
        return self._commands[type(command)](self, command)

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

    def go_on(self) -> None:
        """Handle the waiting command."""
        waiting = self.input
        waiting.take_turn()
        if waiting.waits and not self.closing and not self.replies.settles:
            waiting.waits = False
            waiting.resume()
            self.buffer_updated(0)

    def eof_received(self) -> bool:
        """Send due answers, then close: the client sends nothing more."""
        own = self.input.own
        if own is not None and not self.closing and self.greeted:
            error = self.decoder.cut_off(own, self.input.filled_bytes)
            if error is not None:
                self.refuse(error)
        elif not self.greeted and not self.closing:
            self._context.events.said_nothing(self.remote_address, is_spliced=self.is_spliced)
        self.close()
        return True

    def _greet(self, buffer: bytearray, end: int) -> int:
        magic = bytes(buffer[: min(end, len(v2.MAGIC))])
        if not v2.MAGIC.startswith(magic):
            self._context.events.greeted(self.remote_address, magic, v2.MAGIC)
            self.output.transport.write(v2.frame(v2.FrameType.ERROR, b"E_BAD_PROTOCOL"))
            self._refused = True
            self.close()
            return end
        if len(magic) < len(v2.MAGIC):
            return 0
        self._context.events.greeted(self.remote_address, magic, v2.MAGIC)
        self.greeted = True
        self._greeting.cancel()
        self.brief = self.may_be_brief and self.guard is None
        if self.brief:
            self._context.lone.serve(self)
        return len(magic)

    # commands

    def subscribed(self) -> tuple[Channel | PartitionedChannel, Any]:
        """The channel and its consumer, which is a subscriber if there are several queues."""
        assert self.subscription is not None
        return self.subscription.channel, self.subscription.consumer

    def _begin_upgrade(self, upgrade: ConnectionUpgrade, early: bytes) -> None:
        """Switch to TLS or compression, once all earlier answers are sent."""
        self._context.lone.leave(self)
        self.input.own = None
        self.input.upgrade = upgrade, early
        self.output.transport.pause_reading()
        if not self.replies.due:
            self._answered(False)

    def upgraded(self, transport: asyncio.Transport) -> None:
        """Continue over another transport."""
        self.output.transport = transport
        self.decoder.needs_tls = self.decoder.needs_tls and self.tls is None
        self.heartbeat.start()

    def refuse(self, error: v2.ProtocolError) -> None:
        """Answer with an error; close if it is fatal."""
        self._context.events.refused(self.remote_address, error)
        self.replies.reply(error.frame())
        if error.fatal:
            self._refused = True
            self.close()

    # bytes out

    def _answered(self, is_refused: bool) -> None:
        """Go on with what has waited until no answer is due."""
        if is_refused:
            self._refused = True
            self._begin_close()
        if self.closing:
            self._end()
        elif self.input.upgrade is not None:
            if not self.output.transport.is_closing():
                (upgrade, early), self.input.upgrade = self.input.upgrade, None
                self.heartbeat.stop()
                self.output.transport.resume_reading()
                upgrade.begin(self.output.transport, early)
        elif self.input.waits:
            self.input.answered()

    def beat(self) -> None:
        """Send a heartbeat."""
        self.output.transport.write(v2.HEARTBEAT_FRAME)

    def pause_writing(self) -> None:
        """Hold up a client that reads more slowly than the broker sends."""
        self.brief = False
        interval_ns = self.identity.heartbeat_interval_ns
        max_ns = self._context.options.client_timeout_ns
        self.output.filled(min(interval_ns or max_ns, max_ns))
        if self.subscription is not None:
            channel, consumer = self.subscribed()
            channel.set_blocked(consumer, True)
        else:
            self.output.transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume: the client has read."""
        self.brief = self.may_be_brief and self.greeted and self.guard is None and not self.closing
        self.output.emptied()
        try:
            if self.subscription is not None:
                channel, consumer = self.subscribed()
                channel.set_blocked(consumer, False)
        except Exception as error:  # The loop would log it, and leave the client held up.
            self.break_off(error)
            return
        if self.input.waits:
            self.input.go_on_soon()
        self.input.resume()
