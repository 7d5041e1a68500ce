"""A consumer's subscription at one broker, remade whenever the connection is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from martlet.addresses import Address
from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.brokers import BrokerSession
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
from martlet.client.hooks import Hooks, replying, settling
from martlet.client.requests.outgoing import ReplyHooks
from martlet.client.transport.connection import Connection
from martlet.client.transport.dialer import Dialer
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.message_run import FRAME_HEADER_BYTES, MessageRun

logger = logging.getLogger("martlet.client")

HOPELESS = frozenset({"E_INVALID", "E_BAD_TOPIC", "E_BAD_CHANNEL", "E_UNAUTHORIZED"})
"""Errors of SUB that are permanent."""
PASSING = frozenset({"REFUSED", "TRY_AGAIN"})
"""Errors of calls that may be temporary."""
TOUCH_FRACTION = 1 / 3
"""A message with less time left is touched before its handling begins."""


class Subscription(BrokerSession):
    """Keep one connection subscribed to a channel.

    Args:
        policy: the required policy of the channel; empty for any.
    """

    def __init__(
        self,
        address: Address,
        topic: str,
        channel: str,
        dialer: Dialer,
        timeout_s: float,
        policy: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(address, dialer)
        self.auto_touch = False
        """Whether messages with little time left are touched."""
        self.backs_off_always = False
        """Whether failures pause the consumer though the channel's policy delays their messages."""
        self.reply_hooks: ReplyHooks | None = None
        self.on_delivery: Callable[[BufferedRun], None] = lambda _received: None
        self.on_ready: Callable[[Subscription], None] = lambda _subscription: None
        """Called when messages can be requested."""
        self.on_lost: Callable[[Subscription, AckBatcher], None] = lambda *_: None
        """Called when they no longer can."""
        self.on_late: Callable[[Refused], None] = lambda _error: None
        """Called when an answer to a message was too late."""
        self.on_answer: Callable[[BackoffEvent], None] = lambda _event: None
        """Called before an answer to a message is written, and `on_settled` after it."""
        self.on_settled: Callable[[], None] = lambda: None
        self._topic = topic
        self._channel = channel
        self._timeout_s = timeout_s
        self._policy = policy
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

    def instrument(self, hooks: Hooks) -> None:
        """Have the hooks called too with received and answered messages, and with replies."""
        address = str(self.address)
        if hooks.has_publishing:
            self.reply_hooks = partial(replying, hooks)
        if (on_received := hooks.on_received) is not None:
            on_delivery = self.on_delivery

            def received(buffered: BufferedRun) -> None:
                run = buffered.run
                on_received(address, run.count, len(run.raw) - FRAME_HEADER_BYTES * run.count)
                on_delivery(buffered)

            self.on_delivery = received
        if hooks.has_settling:
            on_settled = self.on_settled
            report = settling(hooks, address, lambda: (self.finished, self.requeued))

            def settled() -> None:
                on_settled()
                report()

            self.on_settled = settled

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
                if self._policy:
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
        answers.touch_before_s = timeout_s * TOUCH_FRACTION if self.auto_touch else 0.0
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
        if self._policy.get("order") == "queue":
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
                policy=dict(self._policy),
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
                    setting if isinstance(setting, str) else ",".join(setting)
                    for setting in (value, self._policy[field])
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
