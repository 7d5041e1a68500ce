"""The commands of a session: IDENTIFY, AUTH, SUB, RDY, CLS and NOP.

A refusal of any of them ends the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.errors import Conflict, TooMany, WritesRefused
from martlet.broker.queue.consumer import nearness
from martlet.broker.queue.queue_log import ID_MASK
from martlet.protocol.nsq import v2
from martlet.protocol.nsq.negotiation import BrokerRun, negotiate
from martlet.server.nsq.client_io import WAIT, Outcome
from martlet.server.nsq.upgrade import Upgrade

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.options import BrokerOptions
    from martlet.server.data_folder import DataFolder
    from martlet.server.nsq.connection import ClientConnection
    from martlet.server.nsq.upgrade import UpgradeContext
    from martlet.server.observability.event_log import EventLog


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
