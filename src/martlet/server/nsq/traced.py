"""The traced connection, which logs each command and message, as nsqd does at debug level.

::

    PROTOCOL(V2): [127.0.0.1:41966] [FIN 18a34d8b6a269000]
    PROTOCOL(V2): writing msg(18a34d8b6a269000) to client(127.0.0.1:41966) - body
    [127.0.0.1:41966] state rdy:    1 inflt:    1

The choice is made when a client connects, so that other connections need no check. A malformed
command is logged by its error alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from martlet.log.record import FRAME_HEADER_BYTES
from martlet.properties.block import FRAME_TYPE as PROPERTIES_FRAME
from martlet.protocol.nsq import v2
from martlet.server.nsq.client_io import Outcome
from martlet.server.nsq.connection import ClientConnection
from martlet.server.nsq.subscription import ClientSubscription

_OF_CONSUMERS = (v2.Ready, v2.Finish, v2.FinishRun, v2.RequeueCommand)
"""The commands that change a consumer's RDY or its messages in flight."""
_ID = slice(FRAME_HEADER_BYTES - 16, FRAME_HEADER_BYTES)


class TracedSubscription(ClientSubscription):
    """A subscription that logs every message."""

    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        """Send messages to the client."""
        connection = self.connection
        assert isinstance(connection, TracedConnection)
        for frame in _message_frames(frames):
            connection.log.debug(
                "PROTOCOL(V2): writing msg(%s) to client(%s) - %s",
                frame[_ID].decode("ascii"),
                connection.remote_address,
                frame[FRAME_HEADER_BYTES:].decode("utf-8", "backslashreplace"),
            )
        super().send_messages(frames)
        _log_state(connection)


class TracedConnection(ClientConnection):
    """A connection that logs every command and message."""

    may_be_brief = False  # so that each publish is handled as a command
    subscription_type = TracedSubscription

    @property
    def log(self) -> logging.Logger:
        """The broker's log."""
        return self._context.log

    def _handle(self, command: v2.Command) -> Outcome:
        for line in describe(command):
            self.log.debug("PROTOCOL(V2): [%s] [%s]", self.remote_address, line)
        outcome = super()._handle(command)
        if isinstance(command, _OF_CONSUMERS):
            _log_state(self)
        return outcome


def _log_state(connection: TracedConnection) -> None:
    subscription = connection.subscription
    if subscription is not None:
        connection.log.debug(
            "[%s] state rdy: %4d inflt: %4d",
            connection.remote_address,
            subscription.consumer.ready_count,
            subscription.consumer.in_flight_count,
        )


def _message_frames(frames: Sequence[memoryview | bytes | bytearray]) -> Iterator[bytes]:
    """Yield the frames of messages; those between them have properties of the next ones."""
    for frame in frames:
        data = bytes(frame)
        at = 0
        while at < len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4])
            if int.from_bytes(data[at + 4 : at + 8]) != PROPERTIES_FRAME:
                yield data[at:end]
            at = end


def describe(command: v2.Command) -> list[str]:
    """Return the command lines of a command, or of a run of them."""
    match command:
        case v2.IdentifyCommand():
            lines = ["IDENTIFY"]
        case v2.Auth():
            lines = ["AUTH"]
        case v2.Subscribe():
            lines = [f"SUB {command.topic} {command.channel}"]
        case v2.Ready():
            lines = [f"RDY {command.count}"]
        case v2.FinishRun():
            lines = [f"FIN {number:016x}" for number in command.ids.tolist()]
        case v2.Finish():
            lines = [f"FIN {_text(command.id)}"]
        case v2.RequeueCommand():
            lines = [f"REQ {_text(command.id)} {command.delay_ms}"]
        case v2.Touch():
            lines = [f"TOUCH {_text(command.id)}"]
        case v2.PublishCommand():
            delay = "" if command.delay_ms is None else f" {command.delay_ms}"
            lines = [f"{command.verb} {command.topic}{delay}"] * command.commands
        case v2.Close():
            lines = ["CLS"]
        case _:
            lines = ["NOP"]
    return lines


def _text(message_id: bytes) -> str:
    return message_id.decode("utf-8", "backslashreplace")
