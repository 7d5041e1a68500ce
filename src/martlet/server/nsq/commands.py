"""The handlers of the commands; here are those of a session: IDENTIFY, AUTH, SUB, RDY, CLS and NOP.

A refusal of a session's command ends the connection. A command that may change topics or channels
is answered once the flush mode's promise holds for that, unless it is one of `AT_ONCE`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from martlet.broker.errors import Conflict, TooMany, WritesRefused
from martlet.broker.queue.consumer import nearness
from martlet.broker.queue.queue_log import ID_MASK
from martlet.protocol.nsq import v2
from martlet.protocol.nsq.negotiation import BrokerRun, negotiate
from martlet.server.nsq.client_io import WAIT, Outcome
from martlet.server.nsq.upgrade import Upgrade

if TYPE_CHECKING:
    from collections.abc import Mapping

    from martlet.broker.broker import BrokerCore
    from martlet.options import BrokerOptions
    from martlet.server.data_folder import DataFolder
    from martlet.server.nsq.calls import CallCommand
    from martlet.server.nsq.connection import ClientConnection, Handler
    from martlet.server.nsq.publish import PublishCommands
    from martlet.server.nsq.subscription import AckCommands
    from martlet.server.nsq.upgrade import UpgradeContext
    from martlet.server.observability.event_log import EventLog

AT_ONCE = frozenset(
    {
        # They change only what goes with the connection, or, as acknowledgements, have no answer.
        *(v2.IdentifyCommand, v2.Auth, v2.Ready, v2.Close, v2.Nop),
        *(v2.FinishRun, v2.Finish, v2.RequeueCommand, v2.Touch, v2.StartedCommand),
        # Their answers wait for the messages' receipts, and for what `rpc.registry` says.
        *(v2.PublishCommand, v2.SendCommand, v2.Call),
    }
)
_VERBS: Mapping[type, str] = {v2.Subscribe: "SUB"}


def command_handlers(
    session: SessionCommands, publish: PublishCommands, acks: AckCommands, call: CallCommand
) -> Mapping[type, Handler]:
    """Return the handler of each command by the command's class."""
    handlers: dict[type, Handler] = {
        v2.IdentifyCommand: session.identify,
        v2.Auth: session.authenticate,
        v2.Subscribe: session.subscribe,
        v2.Ready: session.ready,
        v2.Close: session.close,
        v2.Nop: session.do_nothing,
        v2.PublishCommand: publish.publish,
        v2.SendCommand: publish.send,
        v2.FinishRun: acks.finish_run,
        v2.Finish: acks.finish,
        v2.RequeueCommand: acks.requeue,
        v2.Touch: acks.touch,
        v2.StartedCommand: acks.started,
        v2.Call: call.call,
    }
    return {
        kind: handler if kind in AT_ONCE else settled(kind, handler)
        for kind, handler in handlers.items()
    }


def settled(kind: type, handler: Handler) -> Handler:
    """Return a handler whose answers wait until the flush mode's promise holds."""
    verb = _VERBS.get(kind, kind.__name__.upper())

    def handle(connection: ClientConnection, command: Any) -> Outcome:
        return connection.replies.settle_change(verb, partial(handler, connection, command))

    return handle


class SessionCommands:
    """IDENTIFY, AUTH, SUB, RDY, CLS and NOP."""

    def __init__(
        self,
        broker: BrokerCore,
        options: BrokerOptions,
        upgrades: UpgradeContext,
        events: EventLog,
        folder: DataFolder,
    ) -> None:
        self._broker = broker
        self._options = options
        self._upgrades = upgrades
        self._events = events
        self._folder = folder
        self._place = options.topology_zone, options.topology_region

    def identify(self, connection: ClientConnection, command: v2.IdentifyCommand) -> Outcome:
        """IDENTIFY."""
        has_tls = self._upgrades.tls is not None
        has_replicas = bool(self._options.replica_name)
        folder, epoch = self._folder, self._broker.log.epoch
        run = BrokerRun(folder.broker_id, epoch, has_replicas, folder.run)
        offered = (self._options, v2.NSQD_VERSION, has_tls, run)
        agreement = negotiate(command.fields, connection.identity, *offered)
        self._events.identified(connection.remote_address, command.fields)
        if agreement.upgrades and (connection.tls or connection.snappy or connection.deflate):
            raise v2.ProtocolError("E_IDENTIFY_FAILED", "IDENTIFY failed: upgraded already")
        connection.heartbeat.start()
        connection.decoder.extended = connection.identity.extended
        connection.replies.reply(v2.frame(v2.FrameType.RESPONSE, agreement.answer))
        if agreement.upgrades:
            return Upgrade(connection, agreement, self._upgrades)
        return None

    def authenticate(self, connection: ClientConnection, command: v2.Auth) -> Outcome:
        """AUTH."""
        if connection.guard is None:
            raise v2.ProtocolError("E_AUTH_DISABLED", "AUTH disabled")
        answer = connection.guard.authenticate(command.secret)
        if answer is None:
            return WAIT
        connection.replies.reply(v2.frame(v2.FrameType.RESPONSE, answer))
        return None

    def subscribe(self, connection: ClientConnection, command: v2.Subscribe) -> Outcome:
        """SUB."""
        identity, guard = connection.identity, connection.guard
        if not identity.heartbeat_interval_ns:
            raise v2.ProtocolError("E_INVALID", "cannot SUB with heartbeats disabled")
        if guard is not None and not guard.may_consume(command.topic, command.channel):
            return WAIT
        try:
            topic = self._broker.topic(command.topic)
            channel = topic.opened_channel(command.channel)
            subscription = connection.subscription_type(connection, topic, channel)
            subscription.consumer = consumer = channel.add_consumer(
                subscription,
                identity.msg_timeout_ns,
                identity.sample_rate,
                with_properties=identity.extended,
                nearness=nearness(self._place, (identity.topology_zone, identity.topology_region)),
                says_started=identity.says_started,
            )
        except Conflict as error:
            # On E_BAD_CHANNEL clients do not try again.
            raise v2.ProtocolError("E_BAD_CHANNEL", f"SUB {error}") from error
        except (TooMany, WritesRefused) as error:
            raise v2.ProtocolError("E_SUB_FAILED", f"SUB failed {error}") from error
        consumer.progress.in_order = identity.in_order
        connection.subscription = subscription
        connection.decoder.state = v2.ParserState.SUBSCRIBED
        connection.replies.reply(v2.OK)
        if identity.in_order:
            connection.replies.reply(v2.channel_frame(id_base=channel.queue.id_base & ID_MASK))
        if channel.max_attempts and identity.says_started:
            subscription.failures_counted(channel.max_attempts)
        return None

    def ready(self, connection: ClientConnection, command: v2.Ready) -> None:
        """RDY."""
        if connection.state == v2.ParserState.SUBSCRIBED:
            channel, consumer = connection.subscribed()
            channel.set_ready(consumer, command.count)

    def close(self, connection: ClientConnection, command: v2.Close) -> None:
        """CLS: stop delivering."""
        channel, consumer = connection.subscribed()
        connection.decoder.state = v2.ParserState.CLOSING
        consumer.progress.takes_no_more = True
        channel.set_ready(consumer, 0)
        connection.replies.reply(v2.CLOSE_WAIT)

    def do_nothing(self, connection: ClientConnection, command: v2.Nop) -> None:
        """NOP."""
