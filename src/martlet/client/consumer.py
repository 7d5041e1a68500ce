"""Consuming: messages one by one, through a handler, or in whole batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from types import TracebackType

from martlet.client.address import Address, Addresses, parse_addresses
from martlet.client.answers import Answers
from martlet.client.backoff import Backoff
from martlet.client.batch import Batch
from martlet.client.brokers import Brokers
from martlet.client.dialer import Dialer
from martlet.client.discovery import Discovery
from martlet.client.errors import Closed, Refused
from martlet.client.failure_backoff import FailureBackoff
from martlet.client.flow import Flow
from martlet.client.identity import Compression, Identity, TlsChoice
from martlet.client.inbox import Inbox
from martlet.client.message import Message
from martlet.client.name import check_name
from martlet.client.readiness import Rotation
from martlet.client.subscription import Subscription
from martlet.client.worker import Handler, work

logger = logging.getLogger("martlet.client")

RETRY = Backoff(first_s=1.0, max_s=600.0, jitter=0.25)
"""How long a message that failed waits, by its attempts."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a consumer has done so far.

    Attributes:
        received: messages that came.
        finished: messages finished.
        requeued: messages requeued.
        expired: messages dropped because they had waited here for longer than the broker's message
            timeout.
        late: finishes, requeues and touches that the broker refused because they came too late.
    """

    received: int
    finished: int
    requeued: int
    expired: int
    late: int


class Consumer:
    """Receives the messages of a channel from one or several brokers.

    ::

        async with Consumer("orders", "billing") as consumer:
            async for message in consumer:
                ...
                message.finish()

    or ``await consumer.run(handler, concurrency=10)``, or ``async for batch in
    consumer.batches()``.  Connections that are lost are made again, for ever.  A message comes
    again if it was not finished; so a message can come twice, and none is missed.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        addresses: Addresses | None = None,
        *,
        lookup: str | Iterable[str] | None = None,
        lookup_poll_s: float = 60.0,
        max_in_flight: int = 200,
        rotation: Rotation | None = None,
        failure_backoff: FailureBackoff | None = None,
        retry: Backoff = RETRY,
        backoff: Backoff | None = None,
        connect_timeout_s: float = 5.0,
        close_timeout_s: float = 10.0,
        identity: Identity | None = None,
        tls: TlsChoice | None = None,
        compression: Compression | None = None,
        auth_secret: str | bytes | None = None,
    ) -> None:
        """Take the settings; nothing is connected before ``async with``.

        Args:
            topic: the topic's name.
            channel: the channel's name; the broker creates what there is not.
            addresses: where brokers listen, as ``"host:port"``; messages come from all of them.
                A broker at 127.0.0.1:4150 where neither these nor lookup daemons are given.
            lookup: where lookup daemons serve HTTP, as ``"host:4161"`` or URLs; messages come from
                every broker that they know to have the topic, now or later.
            lookup_poll_s: how many seconds may pass until they are asked again; when a connection
                is lost, they are asked at once.
            max_in_flight: how many messages may be here and not be answered, from all brokers
                together.
            rotation: how brokers take turns where there are more of them than ``max_in_flight``.
            failure_backoff: for how long no messages are asked for when handlers fail; two minutes
                at most where it is not given, ``FailureBackoff(max_s=0)`` for never.
            retry: how long a message waits when its handler has failed, by its attempts.
            backoff: how long to wait before connecting again.
            connect_timeout_s: how long one attempt to connect may take.
            close_timeout_s: how long handlers at work may take when the consumer is closed.
            identity: what to tell the brokers of this client, the message timeout among it.
            tls, compression, auth_secret: in the place of the identity's; see `Identity`.
        """
        self._topic = check_name(topic, "topic")
        self._channel = check_name(channel, "channel")
        if addresses is None and lookup is None:
            addresses = "127.0.0.1:4150"
        given = parse_addresses(addresses) if addresses is not None else []
        self._discovery: Discovery | None = None
        if lookup is not None:
            daemons = [lookup] if isinstance(lookup, str) else list(lookup)
            self._discovery = Discovery(self._topic, daemons, lookup_poll_s, self._on_found)
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight={max_in_flight}: 1 is the least; pause() lets none in")
        self._flow = Flow(
            max_in_flight, rotation or Rotation(), failure_backoff or FailureBackoff()
        )
        self._retry = retry
        self._backoff = backoff or Backoff()
        self._connect_timeout_s = connect_timeout_s
        self._close_timeout_s = close_timeout_s
        self._identity = (identity or Identity()).secured(tls, compression, auth_secret)
        self._inbox = Inbox()
        self._inbox.on_expired = self._on_expired
        self._brokers = Brokers(given, self._subscribe, self._inbox.close)
        self._watch: asyncio.Task[None] | None = None
        self._entered = False
        self._workers: set[asyncio.Task[None]] = set()
        self._expired = 0
        self._late = 0
        self._quiet_until_s = 0.0

    async def __aenter__(self) -> Consumer:
        """Connect and subscribe; a broker that cannot be reached is tried again in the background.

        Raises:
            SubscribeRefused: a broker will not have it.
            ConnectRefused: a broker that was named, or all that were found, will not even have the
                connection; see there.
            Closed: it has been connected before; make a new Consumer.
        """
        if self._entered:
            raise Closed("a consumer is used once: make a new one")
        self._entered = True
        try:
            self._brokers.begin()
            if self._discovery is not None:
                await self._discovery.look()
                self._watch = asyncio.create_task(self._discovery.watch(), name="martlet lookup")
            await self._brokers.attempted()
            self._inbox.check()
        except BaseException:
            await self._hang_up()
            raise
        return self

    def _subscribe(self, address: Address) -> Subscription:
        """The subscription at one broker."""
        dialer = Dialer(
            [address],
            self._identity,
            backoff=self._backoff,
            connect_timeout_s=self._connect_timeout_s,
        )
        subscription = Subscription(address, self._topic, self._channel, dialer)
        subscription.on_delivery = self._inbox.put
        subscription.on_ready = self._flow.add
        subscription.on_lost = self._on_lost
        subscription.on_late = self._on_late
        subscription.on_answer = self._flow.feed
        subscription.on_settled = self._flow.settle
        return subscription

    def _on_found(self, addresses: list[Address], is_all: bool) -> None:
        """Lookup daemons have told where the topic is."""
        if not self._inbox.is_closed:
            self._brokers.found(addresses, is_all)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def counts(self) -> Counts:
        """What the consumer has done so far."""
        brokers = self._brokers
        each = brokers.subscriptions
        return Counts(
            received=brokers.received + sum(one.received for one in each),
            finished=brokers.finished + sum(one.finished for one in each),
            requeued=brokers.requeued + sum(one.requeued for one in each),
            expired=self._expired,
            late=self._late,
        )

    @property
    def connected_count(self) -> int:
        """How many brokers the consumer is subscribed at now."""
        return self._brokers.connected_count

    # How much comes.

    @property
    def max_in_flight(self) -> int:
        """How many messages may be here and not be answered."""
        return self._flow.max_in_flight

    def change_max_in_flight(self, max_in_flight: int) -> None:
        """Let so many be here from now on; 0 lets none come.

        Raises:
            ValueError: it is negative.
        """
        if max_in_flight < 0:
            raise ValueError(f"max_in_flight={max_in_flight}: 0, for none, is the least")
        self._flow.change(max_in_flight)

    def pause(self) -> None:
        """Ask for no more messages until ``resume``; what is here already is handed out."""
        self._flow.pause()

    def resume(self) -> None:
        """Ask for messages again."""
        self._flow.resume()

    # Three ways to get the messages.

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """The next message; you finish it or requeue it.  Ends when the consumer is stopped."""
        self._check_entered()
        inbox = self._inbox
        while not inbox.is_closed:
            now_s = time.monotonic()
            if now_s > inbox.turn_ends_at_s:
                await inbox.rest()
            elif not inbox.refill():
                await inbox.arrival()
            elif now_s > inbox.expires_at_s:
                inbox.drop_ready()
            else:
                return inbox.ready.popleft()
        inbox.check()
        raise StopAsyncIteration

    async def batches(
        self, *, max_messages: int = 10_000, max_wait_ms: float = 0
    ) -> AsyncIterator[Batch]:
        """The messages in batches, each of one broker; you finish or requeue them.

        Args:
            max_messages: no more than this in a batch.  A batch is never larger than the broker's
                part of ``max_in_flight`` either, so choose that for the batches that you want.
            max_wait_ms: how long to wait for a batch to fill after its first message came.
        """
        self._check_entered()
        if max_messages < 1:
            raise ValueError(f"max_messages={max_messages}: 1 is the least")
        inbox = self._inbox
        while not inbox.is_closed:
            if max_wait_ms > 0:
                await inbox.fill(min(max_messages, self.max_in_flight), max_wait_ms / 1000)
            batch = inbox.next_batch(max_messages)
            if batch is None:
                await inbox.arrival()
            else:
                yield batch
        inbox.check()

    async def run(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Hand each message to the handler until the consumer is stopped or closed.

        The handler is a coroutine function, or a function that returns soon; for one that blocks
        use ``asyncio.to_thread`` in it.  When it returns the message is finished, unless it
        answered the message itself; when it raises, that is logged and the message requeued, for
        longer with each attempt.

        Args:
            handler: called with each message.
            concurrency: how many handlers may be at work at once.

        Raises:
            SubscribeRefused, ConnectRefused: a broker would no longer have it when connecting
                again.
        """
        self._check_entered()
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: 1 is the least")
        async with asyncio.TaskGroup() as group:
            for number in range(concurrency):
                worker = group.create_task(
                    work(self._inbox, handler, self._on_failure), name=f"martlet worker {number}"
                )
                self._workers.add(worker)
                worker.add_done_callback(self._workers.discard)
        self._inbox.check()

    def _check_entered(self) -> None:
        if not self._entered:
            raise Closed("use 'async with Consumer(...)'")

    def _on_failure(self, message: Message, error: Exception) -> None:
        delay_ms = round(1000 * self._retry.delay_s(message.attempts))
        logger.error(
            "handler failed for message %s, attempt %d; %s",
            message.id.decode("ascii", "replace"),
            message.attempts,
            "it had answered it" if message.is_answered else f"again in {delay_ms} ms",
            exc_info=error,
        )
        if not message.is_answered:
            message.requeue(delay_ms)

    # What the subscriptions tell.

    def _on_lost(self, subscription: Subscription, answers: Answers) -> None:
        self._inbox.forget(answers)
        self._flow.remove(subscription)
        if self._discovery is not None:
            self._discovery.look_again()

    def _on_late(self, error: Refused) -> None:
        self._late += 1
        now_s = time.monotonic()
        level = logging.WARNING if now_s >= self._quiet_until_s else logging.DEBUG
        if level == logging.WARNING:
            self._quiet_until_s = now_s + 1.0  # They come by the thousand.
        logger.log(
            level, "too late (%d so far), the message is delivered again: %s", self._late, error
        )

    def _on_expired(self, count: int) -> None:
        self._expired += count
        logger.warning(
            "%d messages waited here for longer than the broker's message timeout and are delivered"
            " again: lower max_in_flight, raise concurrency, or ask for a longer message timeout",
            count,
        )

    # The end.

    def stop(self) -> None:
        """Take no more messages: iterators end, and ``run`` returns once its handlers have."""
        self._flow.stop()
        self._inbox.close()

    async def close(self) -> None:
        """Stop, wait for handlers at work, give back what was not handed out, and hang up.

        What was handed out and is not answered comes again after the broker's message timeout.
        """
        self.stop()
        try:
            workers = self._workers - {asyncio.current_task()}
            if workers:
                _, late = await asyncio.wait(workers, timeout=self._close_timeout_s)
                for worker in late:
                    worker.cancel()
            self._give_back()
            await self._brokers.leave()
            self._give_back()  # What came while the broker had not read that we leave.
        finally:
            await self._hang_up()

    def _give_back(self) -> None:
        for answers, ids in self._inbox.drain():
            answers.give_back(ids)

    async def _hang_up(self) -> None:
        self._flow.stop()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self._brokers.close()
