"""Consuming: messages one by one, through a handler, or in whole batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from martlet.addresses import Address
from martlet.client.addresses import Addresses, parse_addresses
from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.base import ConsumerBase
from martlet.client.consumer.brokers import ConsumerBrokers
from martlet.client.consumer.flow import Flow
from martlet.client.consumer.handling.backoff import FailureBackoff
from martlet.client.consumer.handling.failure_policy import RETRY, Delay, FailurePolicy, OnGivingUp
from martlet.client.consumer.handling.give_back import UnstartedReturner
from martlet.client.consumer.instrumented import instrument
from martlet.client.consumer.rdy import Rotation
from martlet.client.consumer.stats import ConsumerStats, Counts, Losses
from martlet.client.consumer.subscription import Subscription
from martlet.client.consumer.watchdog import Sight, Watchdog
from martlet.client.errors import ClientError, Closed
from martlet.client.hooks import NO_HOOKS, Hooks
from martlet.client.names import check_name, check_tags
from martlet.client.transport.backoff import Backoff
from martlet.client.transport.dialer import Dialer
from martlet.client.transport.discovery import Discovery
from martlet.client.transport.identity import Compression, Identity, TlsChoice

if TYPE_CHECKING:
    pass

logger = logging.getLogger("martlet.client")

GOODBYE_S = 1.0
"""How long the end of the connections may take, when handlers took all the time there was."""


class Consumer(ConsumerBase):
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
        tags: str | Iterable[str] = (),
        order: Literal["key", "queue"] | None = None,
        max_in_flight: int = 200,
        rotation: Rotation | None = None,
        failure_backoff: FailureBackoff | None = None,
        retry: Delay = RETRY,
        max_attempts: int = 0,
        on_giving_up: OnGivingUp | None = None,
        auto_touch: bool = True,
        stall_after_s: float = 120.0,
        on_stall: Callable[[str], object] | None = None,
        backoff: Backoff | None = None,
        connect_timeout_s: float = 5.0,
        close_timeout_s: float = 10.0,
        identity: Identity | None = None,
        tls: TlsChoice | None = None,
        compression: Compression | None = None,
        auth_secret: str | bytes | None = None,
        hooks: Hooks | None = None,
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
            tags: take messages with one of these tags alone, as ``["red", "blue"]`` or
                ``"red || blue"``.  The broker keeps that for the channel, and lets go of the
                others; all consumers of a channel must want the same.  It must be a Martlet broker.
            order: deal with the messages of each order key, or of each queue, one after the other;
                one that fails comes again before any later one.  It too is the channel's.
            max_in_flight: how many messages may be here and not be answered, from all brokers
                together.
            rotation: how brokers take turns where there are more of them than ``max_in_flight``.
            failure_backoff: for how long no messages are asked for when handlers fail; two minutes
                at most where it is not given, ``FailureBackoff(max_s=0)`` for never.
            retry: how long a message waits when its handler has failed, by its attempts; go-nsq's
                way is ``LinearDelay()``.  Where it is not given and the channel has a retry policy,
                that counts.
            max_attempts: a message that comes for more than so many times is not given to the
                handler of ``run`` any more, but given up: logged, handed to ``on_giving_up``, and
                finished; without that, a Martlet broker puts it into the channel's dead-letter
                topic.  0 never gives up, which is the default: a Martlet broker can be told to do
                that by itself, and with one of NSQ giving up loses messages.
            on_giving_up: gets each such message, to keep it elsewhere; a function or a coroutine
                function.  When it raises, the message is not finished, and comes again.
            auto_touch: ask for more time, up to the broker's ``--max-msg-timeout``, for messages
                whose handlers are at work, and for messages of ``async for`` and batches that you
                hold and have not answered.
            stall_after_s: when nothing gets on for so long (messages wait and none is handed out or
                answered, or nothing is asked for), that is logged as an error; 0 never looks.
            on_stall: told the cause, once for each stall.
            backoff: how long to wait before connecting again.
            connect_timeout_s: how long one attempt to connect may take, and then to subscribe.
            close_timeout_s: how long it may take to close: handlers at work are cancelled shortly
                before, and what is not answered then is given back.
            identity: what to tell the brokers of this client, the message timeout among it.
            tls, compression, auth_secret: in the place of the identity's; see `Identity`.
            hooks: what to call for logs, metrics and traces.
        """
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight={max_in_flight}: 1 is the least; pause() lets none in")
        super().__init__(
            max_in_flight, FailurePolicy(retry, max_attempts, on_giving_up), auto_touch
        )
        self._topic = check_name(topic, "topic")
        self._channel = check_name(channel, "channel")
        self._wanted: dict[str, Any] = {}
        if found := check_tags(tags):
            self._wanted["tags"] = list(found)
        if order is not None:
            if order not in ("key", "queue"):
                raise ValueError(f"order={order!r} must be 'key' or 'queue', or None for no order")
            self._wanted["order"] = order
        self._hooks = hooks.guarded() if hooks is not None else NO_HOOKS
        if self._hooks.has_handling:
            self._crew.wrap = partial(self._hooks.handler, topic, channel)
        if addresses is None and lookup is None:
            addresses = "127.0.0.1:4150"
        given = parse_addresses(addresses) if addresses is not None else []
        daemons = [lookup] if isinstance(lookup, str) else list(lookup or ())
        self._given = given
        self._backoff = backoff or Backoff()
        self._connect_timeout_s = connect_timeout_s
        self._close_timeout_s = close_timeout_s
        self._identity = (identity or Identity()).secured(tls, compression, auth_secret)
        self._losses = Losses()
        self._inbox.on_expired = self._losses.on_expired
        self._returner = UnstartedReturner(self._inbox)
        self._returner.hold, self._returner.go_on = self._hold, self._go_on
        self._flow = Flow(
            max_in_flight,
            rotation or Rotation(),
            failure_backoff or FailureBackoff(),
            f"channel {channel} of topic {topic}",
        )
        self._brokers = ConsumerBrokers(given, self._subscribe, self._on_dead)
        if lookup is not None:
            discovery = Discovery(self._topic, daemons, lookup_poll_s, self._brokers.found)
            self._brokers.discover(discovery, on_trouble=self._bark)
        self._watchdog = Watchdog(stall_after_s, self._sight, on_stall)

    async def __aenter__(self) -> Consumer:
        """Connect and subscribe; a broker that cannot be reached is tried again in the background.

        Raises:
            SubscribeRefused: a broker will not have it.
            ConnectRefused: a broker that was named, or all that were found, will not even have the
                connection; see there.
            Closed: it has been connected or closed before; make a new Consumer.
        """
        if self._entered or self._brokers.is_closed:
            raise Closed("a consumer is used once: make a new one")
        self._entered = True
        try:
            await self._brokers.open()
            self._inbox.check()
            self._watchdog.begin()
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
            are_found=address not in self._given,
        )
        subscription = Subscription(
            address, self._topic, self._channel, dialer, self._connect_timeout_s, self._wanted
        )
        subscription.on_delivery = self._inbox.put
        subscription.on_ready = self._on_ready
        subscription.auto_touch = self._toucher.is_on
        subscription.on_lost = self._on_lost
        subscription.on_late = self._losses.on_late
        subscription.on_answer = self._flow.feed
        subscription.on_settled = self._flow.settle
        dialer.on_connected, dialer.on_lost = self._hooks.on_connected, self._hooks.on_lost
        instrument(self._hooks, subscription)
        return subscription

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
            expired=self._losses.expired,
            late=self._losses.late,
        )

    @property
    def stats(self) -> ConsumerStats:
        """How the consumer stands, and what it has done so far."""
        flow = self._flow
        ready = flow.counts()
        return ConsumerStats(
            counts=self.counts,
            given_up=self._failures.given_up,
            waiting=self._inbox.count(),
            workers=self._crew.size,
            max_in_flight=flow.max_in_flight,
            is_paused=flow.is_paused,
            backoff=flow.state.value,
            backoff_level=flow.level,
            connections=tuple(
                each.stats(ready.get(each, 0)) for each in self._brokers.subscriptions
            ),
            stall=self._watchdog.stall,
        )

    @property
    def is_starved(self) -> bool:
        """Whether more could come from a broker if what came were answered faster."""
        return self.stats.is_starved

    def _sight(self) -> Sight:
        """What the watchdog looks at."""
        flow = self._flow
        counts = self.counts
        inbox = self._inbox
        return Sight(
            connected=self.connected_count,
            ready=sum(flow.counts().values()),
            is_held_back=flow.is_paused or not flow.max_in_flight,
            backoff=flow.state,
            trial_at_s=flow.trial_at_s,
            waiting=inbox.count() + self._returner.returned_count,
            progress=(
                counts.finished,
                counts.requeued,
                counts.expired,
                inbox.taken,
                len(inbox.ready),
            ),
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
        self._expect(max_in_flight)
        self._flow.change(max_in_flight)

    def pause(self) -> None:
        """Ask for no more messages until ``resume``; what is here already is handed out."""
        self._flow.pause()

    def resume(self) -> None:
        """Ask for messages again."""
        self._flow.resume()

    # What happens.

    def _on_dead(self, error: Exception) -> None:
        """A broker is not tried any more, so the consumer ends."""
        if not isinstance(error, ClientError):
            self._bark(f"keeping a connection broke: {error!r}")
        self._inbox.close(error)

    def _bark(self, cause: str) -> None:
        self._watchdog.bark(cause)

    def _on_ready(self, subscription: Subscription) -> None:
        self._toucher.connected(subscription.message_timeout_s)
        self._returner.connected(subscription.message_timeout_s)
        self._flow.add(subscription)

    def _hold(self, answers: AckBatcher) -> None:
        for subscription in self._brokers.subscriptions:
            if subscription.is_answered_by(answers):
                subscription.hold()

    def _go_on(self) -> None:
        for subscription in self._brokers.subscriptions:
            subscription.go_on()

    def _on_lost(self, subscription: Subscription, answers: AckBatcher) -> None:
        self._inbox.forget(answers)
        self._flow.remove(subscription)
        self._brokers.look_again()

    # The end.

    def stop(self) -> None:
        """Take no more messages: iterators end, and ``run`` returns once its handlers have."""
        self._flow.stop()
        self._inbox.close()

    async def close(self) -> None:
        """Stop, wait for handlers at work, give back what is not answered, and hang up.

        It takes no longer than ``close_timeout_s``.  What is not answered by then is given back to
        the brokers, which deliver it to others at once: what was not handed out, what handlers are
        still at work on, and what you took by iterating or in batches.
        """
        await self._close()

    async def _close(self, besides: Iterable[asyncio.Task[object]] = ()) -> None:
        """Close, and do not wait for those workers: their handlers wait for this."""
        self.stop()
        ends_at_s = time.monotonic() + self._close_timeout_s
        goodbye_s = min(GOODBYE_S, self._close_timeout_s / 4)
        try:
            await self._take_back(self._close_timeout_s - 2 * goodbye_s, besides)
            left_s = ends_at_s - goodbye_s - time.monotonic()
            await self._brokers.leave(max(goodbye_s, left_s))
            self._give_back()  # What came while the broker had not read that we leave.
        finally:
            await self._hang_up(goodbye_s)

    async def _hang_up(self, timeout_s: float = GOODBYE_S) -> None:
        self._flow.stop()
        self._toucher.close()
        self._returner.close()
        self._watchdog.end()
        await self._brokers.close(timeout_s)
