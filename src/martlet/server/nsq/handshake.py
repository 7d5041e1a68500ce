"""The session: what a client says of itself, and what it wants to have.

IDENTIFY, AUTH, SUB, RDY and CLS; each is answered, or refused by an error that ends the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.errors import Conflict, TooMany, WritesRefused
from martlet.broker.queue.topology import nearness
from martlet.protocol.nsq import v2
from martlet.protocol.nsq.negotiation import negotiate
from martlet.server.nsq.authorizer import Waits
from martlet.server.nsq.upgrade import Agreed

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection


def identify(connection: ClientConnection, command: v2.IdentifyCommand) -> None:
    """IDENTIFY. Raises Agreed where the connection goes on in another form."""
    server = connection.server
    offered = (server.options, v2.NSQD_VERSION, server.tls is not None)
    agreement = negotiate(command.fields, connection.identity, *offered)
    server.events.identified(connection.remote_address, command.fields)
    if agreement.upgrades and (connection.tls or connection.snappy or connection.deflate):
        raise v2.ProtocolError("E_IDENTIFY_FAILED", "IDENTIFY failed: upgraded already")
    connection.heartbeat.start()
    connection.decoder.extended = connection.identity.extended
    connection.reply(v2.frame(v2.FrameType.RESPONSE, agreement.answer))
    if agreement.upgrades:
        raise Agreed(agreement)


def authenticate(connection: ClientConnection, command: v2.Auth) -> None:
    """AUTH. Raises Waits until the auth server has answered."""
    if connection.guard is None:
        raise v2.ProtocolError("E_AUTH_DISABLED", "AUTH disabled")
    told = connection.guard.authenticate(command.secret)
    connection.reply(v2.frame(v2.FrameType.RESPONSE, told))


def subscribe(connection: ClientConnection, command: v2.Subscribe) -> None:
    """SUB. Raises Waits until all is answered that stands before it."""
    if not connection.identity.heartbeat_interval_ns:
        raise v2.ProtocolError("E_INVALID", "cannot SUB with heartbeats disabled")
    if connection.guard is not None:
        connection.guard.check("SUB", command.topic, command.channel)
    server = connection.server
    if connection.owed:
        # Or a message could come before the answer to SUB, which is owed behind them.
        raise Waits
    try:
        connection.topic = connection.broker.topic(command.topic)
        connection.channel = connection.topic.channel(command.channel).whole
        connection.consumer = connection.channel.add_consumer(
            connection,
            connection.identity.msg_timeout_ns,
            connection.identity.sample_rate,
            with_properties=connection.identity.extended,
            nearness=nearness(
                (server.options.topology_zone, server.options.topology_region),
                (connection.identity.topology_zone, connection.identity.topology_region),
            ),
            says_started=connection.identity.says_started,
        )
    except Conflict as error:
        # Another attempt would get no other answer, which is what this code tells clients.
        raise v2.ProtocolError("E_BAD_CHANNEL", f"SUB {error}") from error
    except (TooMany, WritesRefused) as error:
        raise v2.ProtocolError("E_SUB_FAILED", f"SUB failed {error}") from error
    connection.decoder.state = v2.ParserState.SUBSCRIBED
    connection.reply(v2.OK)
    if connection.channel.max_attempts and connection.identity.says_started:
        connection.failures_counted(connection.channel.max_attempts)


def ready(connection: ClientConnection, command: v2.Ready) -> None:
    """RDY."""
    if connection.state == v2.ParserState.SUBSCRIBED:
        channel, consumer = connection.subscription()
        channel.set_ready(consumer, command.count)


def stop_receiving(connection: ClientConnection, command: v2.Close) -> None:
    """CLS."""
    channel, consumer = connection.subscription()
    connection.decoder.state = v2.ParserState.CLOSING
    consumer.progress.takes_no_more = True
    channel.set_ready(consumer, 0)
    connection.reply(v2.CLOSE_WAIT)
