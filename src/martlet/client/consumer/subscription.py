"""A consumer's subscription at one broker, remade whenever the connection is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from martlet.addresses import Address
from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.broker_session import BrokerSession
from martlet.client.consumer.buffer import BufferedRun
from martlet.client.consumer.handling.backoff import BackoffEvent
from martlet.client.consumer.in_order import InOrderAcks
from martlet.client.errors import (
    CallRefused,
    ConnectionLost,
    NotSupported,
    Refused,
    SubscribeRefused,
)
from martlet.client.requests.outgoing import ReplyHooks
from martlet.client.transport.connection import Connection
from martlet.client.transport.dialer import Dialer
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.message_run import MessageRun

logger = logging.getLogger("martlet.client")

HOPELESS = frozenset({"E_INVALID", "E_BAD_TOPIC", "E_BAD_CHANNEL", "E_UNAUTHORIZED"})
"""Errors of SUB that are permanent."""
PASSING = frozenset({"REFUSED", "TRY_AGAIN"})
"""Errors of calls that may be temporary."""
TOUCH_PART = 1 / 3
"""A message with less time left is touched before its handling begins."""


class Subscription(BrokerSession):
    """Keep one connection subscribed to a channel.

    Args:
        address: the broker's.
        topic, channel: to subscribe to.
        dialer: connects.
        timeout_s: the time limit of SUB.
        wanted: the required policy of the channel; empty for any.

    Attributes:
        on_delivery, on_ready, on_lost: called with received messages, when messages can be
            requested, and when they no longer can.
        on_late: called when an answer to a message was too late.
        on_answer, on_settled: called before and after an answer to a message is written.
        reply_hooks: calls the hooks of a reply's publish; None for none.
        auto_touch: whether messages with little time left are touched.
        backs_off_always: whether failures pause the consumer though the channel's policy delays
            their messages.
    """

    def __init__(
        self,
        address: Address,
        topic: str,
        channel: str,
        dialer: Dialer,
        timeout_s: float,
        wanted: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(address, dialer)
        self.auto_touch = False
        self.backs_off_always = False
        self.reply_hooks: ReplyHooks | None = None
        self.on_delivery: Callable[[BufferedRun], None] = lambda _delivery: None
        self.on_ready: Callable[[Subscription], None] = lambda _subscription: None
        self.on_lost: Callable[[Subscription, AckBatcher], None] = lambda _subscription, _answers: (
            None
        )
        self.on_late: Callable[[Refused], None] = lambda _error: None
        self.on_answer: Callable[[BackoffEvent], None] = lambda _event: None
        self.on_settled: Callable[[], None] = lambda: None
        self._topic = topic
        self._channel = channel
        self._timeout_s = timeout_s
        self._wanted = wanted
        self._answers: AckBatcher | None = None
        self._received = 0
        self._finished = 0
        self._requeued = 0
        self._ready_count = 0
        self._is_held = False

    @property
    def max_ready_count(self) -> int:
        """The highest ready count that the broker takes."""
        return self.connection.features.max_ready_count if self.connection else 0

    @property
    def message_timeout_s(self) -> float:
        """The broker's message timeout."""
        return self._answers.message_timeout_s if self._answers else 0.0

    @property
    def in_flight(self) -> int:
        """The number of messages received on this connection and not answered."""
        return self._answers.in_flight if self._answers else 0

    @property
    def received(self) -> int:
        """The number of messages received from this broker."""
        return self._received + (self._answers.received if self._answers else 0)

    @property
    def finished(self) -> int:
        """The number of messages finished at this broker."""
        return self._finished + (self._answers.finished if self._answers else 0)

    @property
    def requeued(self) -> int:
        """The number of messages requeued at this broker."""
        return self._requeued + (self._answers.requeued if self._answers else 0)

    async def keep(self) -> None:
        """Connect and subscribe, reconnecting until closed; see `BrokerSession.keep`."""
        while not self._closing.is_set():
            connection = await self._dialer.dial()
            try:
                await self._subscribe(connection)
                error = await connection.wait_lost()
            except ConnectionLost as lost:
                error = lost
            except SubscribeRefused:
                raise
            except Refused as refused:
                if refused.code in HOPELESS:
                    raise SubscribeRefused(refused.code, refused.text) from refused
                logger.warning("cannot subscribe at %s: %s", connection.address, refused)
                self._dialer.failed(refused)
                await connection.wait_lost()
                continue
            finally:
                self._leave(connection)
            if not self._closing.is_set():
                self._dialer.lost(error)
            self.mark_attempted()

    async def _subscribe(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._wanted:
                    await self._want(connection)
                await connection.ask(commands.subscribe(self._topic, self._channel))
        except TimeoutError as error:
            raise ConnectionLost(
                f"{connection.address}: no answer to SUB within {self._timeout_s:g} s"
            ) from error
        answers, hand_on = self._answers_of(connection)
        answers.on_answer = self.on_answer
        answers.on_settled = self.on_settled
        answers.backs_off_always = self.backs_off_always
        answers.reply_hooks = self.reply_hooks
        timeout_s = answers.message_timeout_s
        answers.touch_before_s = timeout_s * TOUCH_PART if self.auto_touch else 0.0
        succeeded = self._dialer.succeeded

        def on_run(run: MessageRun) -> None:
            succeeded()
            self.last_message_s = time.monotonic()
            answers.received += run.count
            hand_on(run)

        connection.on_run = on_run
        connection.on_refusal = self.on_late
        self.connection = connection
        self._is_held = False
        self._answers = answers
        self.on_ready(self)
        self.mark_attempted()

    def _answers_of(
        self, connection: Connection
    ) -> tuple[AckBatcher, Callable[[MessageRun], None]]:
        """Return the answers to a connection's messages, and the function that takes those."""
        on_delivery = self.on_delivery
        if self._wanted.get("order") == "queue":
            in_order = InOrderAcks(connection, on_delivery)
            return in_order, in_order.arrived
        answers = AckBatcher(connection)
        timeout_s = answers.message_timeout_s

        def hand_on(run: MessageRun) -> None:
            on_delivery(BufferedRun(answers, run, self.last_message_s + timeout_s))

        return answers, hand_on

    async def _want(self, connection: Connection) -> None:
        """Set the channel's policy as wanted."""
        try:
            answer = await connection.call(
                "channel.want",
                topic=self._topic,
                channel=self._channel,
                policy=dict(self._wanted),
            )
        except NotSupported as error:
            raise SubscribeRefused("NOT_SUPPORTED", str(error)) from error
        except CallRefused as error:
            if error.code in PASSING:
                raise ConnectionLost(f"{connection.address}: {error}") from error
            raise SubscribeRefused(error.code, error.text) from error
        for field, value in answer.fields.get("replaced", {}).items():
            logger.warning(
                "%s: the %s of channel %s of topic %s changed from %s to %s, because no other"
                " consumer is connected",
                *(connection.address, field, self._channel, self._topic),
                *(
                    each if isinstance(each, str) else ",".join(each)
                    for each in (value, self._wanted[field])
                ),
            )

    def _leave(self, connection: Connection) -> None:
        answers, self._answers = self._answers, None
        self.connection = None
        if answers is not None:
            self._received += answers.received
            self._finished += answers.finished
            self._requeued += answers.requeued
            self.on_lost(self, answers)
        connection.abort()

    def ready(self, count: int) -> None:
        """Send RDY: the maximum number of messages in flight to this consumer."""
        self._ready_count = count
        if self.connection is not None and not self._is_held:
            self.connection.write(commands.ready(count))

    def hold(self) -> None:
        """Stop the broker's delivery for now, whatever the ready count."""
        if self.connection is not None and not self._is_held:
            self._is_held = True
            self.connection.write(commands.ready(0))

    def go_on(self) -> None:
        """Resume the broker's delivery."""
        if self._is_held:
            self._is_held = False
            self.ready(self._ready_count)

    def is_answered_by(self, answers: AckBatcher) -> bool:
        """Return whether these answers belong to the current connection."""
        return self._answers is answers

    async def leave(self, timeout_s: float) -> None:
        """Ask the broker to stop sending, and wait until it has all answers."""
        if self.connection is None or self._answers is None:
            return
        self._answers.flush()
        try:
            async with asyncio.timeout(timeout_s):
                await self.connection.ask(commands.CLS)
        except (TimeoutError, ConnectionLost, Refused) as error:
            reason = str(error) or f"no answer within {timeout_s:.3g} s"
            logger.warning("%s did not confirm the end: %s", self.address, reason)
