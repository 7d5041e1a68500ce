"""The calls of a consumer about its messages in flight, beyond NSQ's FIN and REQ.

=====================  =============================================================================
``message.later``      redeliver the message: after ``delay_ms``, or after one of RocketMQ's levels
                       (``level``, 1 to 18), or, with neither, after the delay of the channel's
                       policy, or without one after ``otherwise_ms``; ``error`` is the reason
``message.dead``       move the message to the channel's dead-letter topic; ``reason`` is
                       ``rejected`` or ``given_up``, ``error`` the last error
``message.give_back``  redeliver the messages ``ids`` to others at once, not counted as failed; if
                       not ``started``, this delivery does not count as an attempt either
``message.started``    the client begins to handle the message ``id``, and has begun all delivered
                       before it: the command STARTED, with an answer
=====================  =============================================================================

``message.dead`` is answered when the journal has it: from then on the message is on its way to the
dead-letter topic, and stays in the channel until it is there.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from martlet.broker.errors import NotInFlight
from martlet.broker.retry import (
    DELAY_LEVELS_MS,
    MAX_ERROR_LENGTH,
    MILLISECOND_NS,
    DeadLetterReason,
    level_ms,
)
from martlet.names import ID_RULE
from martlet.server.rpc.registry import CallError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.server.rpc.registry import Answer, CallArguments, Caller, Methods

_MAX_IDS = 10_000
_REASONS = (DeadLetterReason.REJECTED, DeadLetterReason.GIVEN_UP)
_MAX_ERROR = 100 * MAX_ERROR_LENGTH
"""The maximum length of a text; `MAX_ERROR_LENGTH` characters are kept."""


class MessageCalls:
    """The calls about messages in flight."""

    def __init__(self, broker: BrokerCore, max_requeue_ns: int) -> None:
        self._broker = broker
        self._max_delay_ms = max(max_requeue_ns // MILLISECOND_NS, DELAY_LEVELS_MS[-1])

    def methods(self) -> Methods:
        """The method of each name."""
        return {
            "message.later": self.later,
            "message.dead": self.dead,
            "message.give_back": self.give_back,
            "message.started": self.started,
        }

    def later(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Requeue a message, by the policy's delay, a level or a delay of its own."""
        arguments.only("id", "delay_ms", "otherwise_ms", "level", "error")
        channel, consumer = _subscription(caller)
        error = arguments.remark("error", max_value=_MAX_ERROR)
        if "level" in arguments:
            if "delay_ms" in arguments:
                raise CallError("BAD_ARGUMENT", "give 'delay_ms' or 'level', not both")
            level = arguments.number("level", min_value=-1)
            if level < 0:
                # As in RocketMQ.
                self._reject(channel, consumer, arguments, DeadLetterReason.REJECTED, error)
                return None
            delay_ms = level_ms(level) if level else 0
        else:
            delay_ms = min(arguments.number("delay_ms", 0), self._max_delay_ms)
            if not delay_ms and not channel.retries:
                delay_ms = min(arguments.number("otherwise_ms", 0), self._max_delay_ms)
        delay_ns = delay_ms * MILLISECOND_NS
        with _as_call_errors(arguments):
            offset = _offset(channel, arguments.text("id"))
            channel.requeue(consumer, offset, delay_ns, error)
        self._broker.note_moved(channel)
        return None

    def dead(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Move a message to the dead-letter topic."""
        arguments.only("id", "reason", "error")
        channel, consumer = _subscription(caller)
        error = arguments.remark("error", max_value=_MAX_ERROR)
        reason = DeadLetterReason(arguments.choice("reason", _REASONS, DeadLetterReason.REJECTED))
        self._reject(channel, consumer, arguments, reason, error)
        return None

    def _reject(
        self,
        channel: Channel | PartitionedChannel,
        consumer: Any,
        arguments: CallArguments,
        reason: DeadLetterReason,
        error: str,
    ) -> None:
        with _as_call_errors(arguments):
            offset = _offset(channel, arguments.text("id"))
            channel.reject(consumer, offset, reason, error)
        self._broker.note_moved(channel)

    def give_back(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Give messages back to other consumers. Answers how many were in flight."""
        arguments.only("ids", "started")
        channel, consumer = _subscription(caller)
        offsets = [
            _offset(channel, message_id)
            for message_id in arguments.sequence("ids", max_value=_MAX_IDS)
        ]
        is_started = arguments.flag("started")
        count = channel.give_back(consumer, offsets, is_started=is_started)
        self._broker.note_moved(channel)
        return {"count": count}

    def started(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Record that the client begins to handle a message."""
        arguments.only("id")
        channel, consumer = _subscription(caller)
        with _as_call_errors(arguments):
            channel.started(consumer, _offset(channel, arguments.text("id")))
        return None


def _subscription(caller: Caller) -> tuple[Channel | PartitionedChannel, Any]:
    connection = caller.connection
    if connection is None or connection.channel is None:
        raise CallError("NOT_SUBSCRIBED", "only a consumer has messages in flight: SUB first")
    return connection.subscription()


@contextmanager
def _as_call_errors(arguments: CallArguments) -> Iterator[None]:
    try:
        yield
    except NotInFlight as error:
        raise CallError("NOT_IN_FLIGHT", f"{arguments.text('id')}: {error}") from None


def _offset(channel: Channel | PartitionedChannel, message_id: object) -> int:
    try:
        if isinstance(message_id, str) and len(message_id) == 16:
            return channel.queue.offset_of(message_id.encode())
    except ValueError:
        pass
    raise CallError("BAD_ARGUMENT", f"{str(message_id)[:40]!r} is no message id: {ID_RULE}")
