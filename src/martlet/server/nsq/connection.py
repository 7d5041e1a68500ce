"""A connection: one client of the V2 door.

Bytes come in through a buffer that all connections share; only what is left of a command that is
not all there is kept, in a buffer of the connection's own.  Publishes are staged and answered when
the turn is committed, or flushed; whatever else is to be answered waits behind them, so that
answers have the order of the commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from martlet.broker.errors import WritesRefused
from martlet.names import is_valid_name
from martlet.protocol.nsq import v2
from martlet.protocol.nsq.decoder import Decoder
from martlet.protocol.nsq.negotiation import default_identity
from martlet.server.listening_socket import shown_peer
from martlet.server.nsq import acks as answer
from martlet.server.nsq import handshake
from martlet.server.nsq.authorizer import Waits
from martlet.server.nsq.heartbeat import Heartbeat
from martlet.server.nsq.lingering_close import take_leave
from martlet.server.nsq.output_queue import OutputQueue
from martlet.server.nsq.publish import publish, publish_lone
from martlet.server.nsq.reply_queue import PendingReplies
from martlet.server.nsq.send import send
from martlet.server.nsq.unread_input import handle_unread
from martlet.server.nsq.upgrade import Agreed, Upgrade
from martlet.server.rpc.arguments import CallError
from martlet.server.rpc.registry import call
from martlet.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.broker.channel.subscriber import Subscriber
    from martlet.broker.queue.consumer import ChannelConsumer
    from martlet.broker.topic.topic import Topic
    from martlet.layer.tls import TlsLayer
    from martlet.server.server import Server

_FIRST_OWN_BYTES = 1 << 16
_UNTIMED = 4
"""So many commands are handled between two looks at the time."""


class ClientConnection(asyncio.BufferedProtocol):
    """One client. Made by the server for each connection that it accepts."""

    may_be_brief = True
    """Whether it takes the short cut for a PUB that comes by itself, as a rule."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.broker = server.broker
        self.turns = server.turns
        self.decoder = Decoder(server.limits, is_valid_name)
        self.decoder.needs_tls = bool(server.options.tls_demanded)
        self._own: bytearray | None = None
        self._filled = 0
        self.greeted = False
        self.brief = False
        """Whether a PUB that comes by itself may be answered at once."""
        self._waits = False
        """Whether the next command waits, for an answer from elsewhere or for its turn."""
        self._going_on: asyncio.Handle | None = None
        self.owed = PendingReplies()
        self._closing = False
        self._refused = False
        """Whether the last thing that it is told is why it is let go."""
        self.heard = True
        """Whether a command has come since the last heartbeat."""
        self.heartbeat = Heartbeat(server.loop, self)
        self._upgrade: Upgrade | None = None
        self.message_counters: dict[str, int] = {}
        """How many messages it has published, by topic."""
        self.calls: set[asyncio.Task[None]] = set()
        """Those that wait for their answers."""
        self.when_gone: dict[object, Callable[[], None]] = {}
        """What is done when the client has gone, by what for."""

    # what it looks like

    @property
    def state(self) -> v2.ParserState:
        """Where it is in its life."""
        return self.decoder.state

    @property
    def held_up(self) -> bool:
        """Whether its commands are not read, for one reason or another."""
        return self._waits or self._output.full

    tls: TlsLayer | None = None
    snappy = False
    deflate = False

    @property
    def trace_name(self) -> str:
        """How a trace calls the client."""
        return f"{self.identity.client_id} {self.remote_address}"

    # the life of a connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is there."""
        self.transport = cast(asyncio.Transport, transport)
        self.remote_address = shown_peer(transport)
        self.connected_at_ns = self.broker.clock()
        self.identity = default_identity(self.server.options, self.remote_address)
        self.consumer: ChannelConsumer | Subscriber | None = None
        self.channel: Channel | PartitionedChannel | None = None
        self.topic: Topic | None = None
        self._output = OutputQueue(
            self.server.loop, self.transport, partial(self.drop, "reads nothing")
        )
        self.guard = guard = self.server.guard(self)
        if guard is not None:
            self.decoder.admit = lambda verb, topic: guard.check(verb, topic, "")
        self.server.opened(self)
        self.heartbeat.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        if isinstance(exc, OSError) and not self._closing:
            handle_unread(self)
        self._closing = True
        self.owed.clear()
        self._let_go()
        self.server.closed(self, exc)

    def _let_go(self) -> None:
        """Expect no more of the client; what it held goes to others."""
        self.heartbeat.stop()
        for waiting in self.calls:
            waiting.cancel()
        for leave in list(self.when_gone.values()):
            leave()
        self.when_gone.clear()
        if self.guard is not None:
            self.guard.close()
        self._output.close()
        if self.consumer is not None and self.channel is not None and self.topic is not None:
            consumer, self.consumer = self.consumer, None
            self.channel.remove_consumer(cast(Any, consumer))
            self.server.left(self.topic, self.channel)

    def close(self) -> None:
        """Send what is owed, then close."""
        self._closing = True
        if not self.owed:
            self._end()

    def _end(self) -> None:
        if self._refused:
            self._let_go()
            take_leave(self.transport)
        else:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self.transport.abort()

    def drop(self, reason: str) -> None:
        """Close at once on a client that has gone, or as good as."""
        self.server.log.warning("[%s] the client %s: closing", self.remote_address, reason)
        self.abort()

    # bytes in

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._own is None:
            return self.server.receive_view
        return memoryview(self._own)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        self.turns.heard()
        if self._own is None:
            if self.brief and publish_lone(self, nbytes):
                return
            buffer, end = self.server.receive_buffer, nbytes
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
                self._handle(command)
                untimed -= 1
                if not untimed:
                    untimed = _UNTIMED
                    if pace is None:
                        pace = TimeSlice()
                    elif pace.over:
                        self._wait_for_turn()
                        break
        except Waits:
            at = start
            self._waits = True
            self.transport.pause_reading()
        except Agreed as agreed:
            self._upgrade = Upgrade(self, agreed.agreement, bytes(buffer[at:end]))
            self._own = None
            self.transport.pause_reading()
            self._begin_upgrade()
            return
        except v2.ProtocolError as error:
            self.refuse(error)
        except v2.LineTooLong as error:
            self.server.events.unreadable(self.remote_address, error)
            self.close()
        except WritesRefused as error:
            self.refuse(v2.ProtocolError("E_INVALID", str(error)))
        if not self._closing:
            self._keep(buffer, at, end)

    def _wait_for_turn(self) -> None:
        """Others have theirs, before the rest of what has come."""
        if not self._closing:
            self._waits = True
            self.transport.pause_reading()
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        if self._going_on is None:
            self._going_on = self.server.loop.call_soon(self.go_on)

    def go_on(self) -> None:
        """What a command waited for has come."""
        if self._going_on is not None:
            self._going_on.cancel()
            self._going_on = None
        if self._waits and not self._closing:
            self._waits = False
            self._read_on()
            self.buffer_updated(0)

    @property
    def has_turn_ahead(self) -> bool:
        """Whether commands that have come wait for nothing but their turn."""
        return self._going_on is not None

    def _read_on(self) -> None:
        """Read the client's commands, unless there is still a reason not to."""
        if not (self.held_up or self._upgrade or self.transport.is_closing()):
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        """The client sends nothing more: what it is owed is sent, then the connection closes."""
        if self._own is not None and not self._closing and self.greeted:
            error = self.decoder.cut_off(self._own, self._filled)
            if error is not None:
                self.refuse(error)
        elif not self.greeted and not self._closing:
            self.server.events.said_nothing()
        self.close()
        return True

    def _greet(self, buffer: bytearray, end: int) -> int:
        magic = bytes(buffer[: min(end, len(v2.MAGIC))])
        if not v2.MAGIC.startswith(magic):
            self.server.events.greeted(self.remote_address, magic, v2.MAGIC)
            self.transport.write(v2.frame(v2.FrameType.ERROR, b"E_BAD_PROTOCOL"))
            self._refused = True
            self.close()
            return end
        if len(magic) < len(v2.MAGIC):
            return 0
        self.server.events.greeted(self.remote_address, magic, v2.MAGIC)
        self.greeted = True
        self.brief = self.may_be_brief and self.guard is None
        return len(magic)

    def _keep(self, buffer: bytearray, at: int, end: int) -> None:
        """Keep what is left of the buffer, with room for the command that it begins."""
        left = end - at
        if not left:
            self._own = None
            return
        room = max(_FIRST_OWN_BYTES, self.decoder.wanted_bytes, left + 1)
        if buffer is self._own and len(buffer) >= room:
            if at:
                buffer[:left] = buffer[at:end]
        else:
            own = bytearray(room)
            own[:left] = memoryview(buffer)[at:end]
            self._own = own
        self._filled = left

    # commands

    def _handle(self, command: v2.Command) -> None:
        _HANDLERS[type(command)](self, command)

    def subscription(self) -> tuple[Channel | PartitionedChannel, Any]:
        """What it consumes, and as whom: a consumer, or of several queues a subscriber."""
        assert self.channel is not None
        assert self.consumer is not None
        return self.channel, self.consumer

    def _begin_upgrade(self) -> None:
        """Go on in another form, once all is sent that is owed in the present one."""
        if self._upgrade is not None and not self.owed:
            upgrade, self._upgrade = self._upgrade, None
            self.heartbeat.stop()
            self.transport.resume_reading()
            upgrade.begin(self.server, self.transport)

    def upgraded(self, transport: asyncio.Transport) -> None:
        """The connection goes on in another form."""
        self.transport = transport
        self.decoder.needs_tls = self.decoder.needs_tls and self.tls is None
        self.heartbeat.start()

    def refuse(self, error: v2.ProtocolError) -> None:
        """Answer with an error, and close after a fatal one."""
        self.server.events.refused(self.remote_address, error)
        self.reply(error.frame())
        if error.fatal:
            self._refused = True
            self.close()

    # bytes out

    def reply(self, data: bytes) -> None:
        """Answer, behind all that is owed."""
        if self.owed:
            self.owed.append((None, "", data))
        else:
            self._send(data)

    def fail(self, error: WritesRefused) -> None:
        """What is owed and was not made durable never will be."""
        self.owed.fail(error)

    def settle(self, durable_position: int | None) -> bool:
        """Answer what has been committed, and is durable up to a position, None for whatever was
        written. Returns whether anything is still owed.
        """
        owed = self.owed
        data, refused = owed.take(durable_position)
        if refused:
            self._closing = self._refused = True
        if data:
            self._send(data)
        if self._closing and not owed:
            self._end()
        elif self._upgrade is not None:
            self._begin_upgrade()
        elif self._waits and not owed:
            self._go_on_soon()
        return bool(owed)

    def beat(self) -> None:
        """Send a heartbeat."""
        self.transport.write(v2.HEARTBEAT_FRAME)

    def _send(self, data: bytes) -> None:
        self.transport.write(data)
        if self._output.full:
            # Or a client that asks and never reads would have ever more answers wait for it.
            self.transport.pause_reading()

    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        """Send messages to the consumer."""
        if len(frames) == 1:
            self.transport.write(frames[0])
        else:
            self.transport.writelines(frames)

    # as a caller

    is_gone = False
    """Its calls are cancelled when it goes."""

    @property
    def connection(self) -> ClientConnection:
        """Itself."""
        return self

    def may(self, topic: str, channel: str = "") -> None:
        """Whether the client may publish to a topic, or consume a channel. Raises CallError."""
        if self.guard is not None:
            try:
                self.guard.check("SUB" if channel else "PUB", topic, channel)
            except v2.ProtocolError as error:
                raise CallError("FORBIDDEN", str(error)) from None
            except Waits:
                raise CallError("TRY_AGAIN", "the auth server is being asked again") from None

    async def drained(self) -> None:
        """Return when the client has read most of what it was sent."""
        await self._output.drained()

    def send_answer(self, frame: bytes) -> None:
        """Answer a call, whatever else is owed."""
        if not self._closing:
            self._send(frame)
            self._output.check()

    def channel_closed(self) -> None:
        """The channel was deleted."""
        self.transport.close()

    def channel_grown(self, channel: PartitionedChannel, consumer: Subscriber) -> None:
        """The channel has several queues from now on."""
        self.channel, self.consumer = channel, consumer

    def failures_counted(self, max_attempts: int) -> None:
        """The channel counts failures from now on, or no longer does."""
        told = b'{"max_attempts":%d}' % max_attempts
        self.reply(v2.frame(v2.FrameType.CHANNEL, told))

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent to: its output queue is full."""
        self.brief = False
        interval_ns = self.identity.heartbeat_interval_ns
        max_ns = self.server.options.client_timeout_ns
        self._output.filled(min(interval_ns or max_ns, max_ns))
        if self.consumer is not None and self.channel is not None:
            self.channel.set_blocked(cast(Any, self.consumer), True)
        else:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """The client has read."""
        self.brief = self.may_be_brief and self.greeted and self.guard is None
        self._output.emptied()
        if self.consumer is not None and self.channel is not None:
            self.channel.set_blocked(cast(Any, self.consumer), False)
        if self._waits:
            self._go_on_soon()
        self._read_on()


_HANDLERS: dict[type, Callable[[ClientConnection, Any], None]] = {
    v2.IdentifyCommand: handshake.identify,
    v2.Auth: handshake.authenticate,
    v2.Subscribe: handshake.subscribe,
    v2.Ready: handshake.ready,
    v2.FinishRun: answer.finish_run,
    v2.Finish: answer.finish,
    v2.RequeueCommand: answer.requeue,
    v2.Touch: answer.touch,
    v2.StartedCommand: answer.started,
    v2.PublishCommand: publish,
    v2.SendCommand: send,
    v2.Call: call,
    v2.Close: handshake.stop_receiving,
    v2.Nop: lambda connection, command: None,
}
