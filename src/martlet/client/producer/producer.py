"""Publishing: what was answered OK is stored; what was not answered is sent again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any

from martlet.client.addresses import Addresses, parse_addresses
from martlet.client.errors import (
    Closed,
    ConnectFailed,
    ConnectRefused,
    ProducerFull,
)
from martlet.client.hooks import NO_HOOKS, Hooks, Publishing
from martlet.client.names import check_name
from martlet.client.producer.accumulator import Accumulator
from martlet.client.producer.body import Body, check_body
from martlet.client.producer.broker_pool import BrokerPool
from martlet.client.producer.bulk import publish_bodies
from martlet.client.producer.expiry import Expiry
from martlet.client.producer.limits import Limits
from martlet.client.producer.message import SendOptions, SharedProperties
from martlet.client.producer.publication import OrderKey, PendingPublish
from martlet.client.producer.send_modes import SendModes
from martlet.client.producer.sender import Sender
from martlet.client.producer.stats import ProducerStats
from martlet.client.transactions.check_back import Check
from martlet.client.transactions.producer_methods import ProducerTransactions
from martlet.client.transport.backoff import Backoff
from martlet.client.transport.identity import Compression, Identity, TlsChoice
from martlet.protocol.nsq.commands import MPUB_EXTRA_BYTES


class Producer(SendModes, ProducerTransactions):
    """Publishes messages to a broker, or to several, each message to one of them.

    ::

        async with Producer("127.0.0.1:4150") as producer:
            await producer.publish("orders", b"one")

    Many tasks may publish at the same time; what they publish in one turn of the event loop goes in
    one command.  Where there are several brokers, each command goes to the one that has the least
    to answer.  While no broker can be reached publishing waits, and what was sent and not answered
    is sent again, to another broker if there is one: so a message can be stored twice, but one
    whose ``publish`` returned is stored.

    At one broker, messages of a topic are stored in the order in which they were published.  Over
    several, those are that have one ``order_key`` (or one topic, with ``ordered=True``): they go to
    one broker as long as it is there, and to another all together.
    """

    def __init__(
        self,
        addresses: Addresses | None = None,
        *,
        lookup: str | Iterable[str] | None = None,
        lookup_poll_s: float = 60.0,
        ordered: bool = False,
        timeout_s: float = 30.0,
        retries: int | None = None,
        send_timeout_s: float = 3.0,
        send_retries: int | None = 2,
        retry_another_broker: bool = False,
        idempotent: bool = True,
        answer_timeout_s: float = 10.0,
        limits: Limits | None = None,
        backoff: Backoff | None = None,
        connect_timeout_s: float = 5.0,
        identity: Identity | None = None,
        tls: TlsChoice | None = None,
        compression: Compression | None = None,
        auth_secret: str | bytes | None = None,
        group: str = "",
        check: Check | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Take the settings; nothing is connected before ``async with``.

        Args:
            addresses: where brokers listen, as ``"host:port"``.  A broker at 127.0.0.1:4150 where
                neither these nor lookup daemons are given.
            lookup: where lookup daemons serve HTTP, as ``"host:4161"`` or URLs; messages go to the
                brokers that they know, now or later.
            lookup_poll_s: how many seconds may pass until they are asked again; when a connection
                is lost, they are asked at once.
            ordered: whether all messages of a topic are to stay in order.
            timeout_s: how long a publish may take with everything, all attempts included.
            retries: how often a publish that was sent in vain is sent again; as often as there is
                time for if None.
            send_timeout_s, send_retries: the same for ``send`` and its like.
            retry_another_broker: whether what a broker could not store, or not as safely as was
                wanted, is sent to another; it may be stored twice then.
            idempotent: whether a send that is tried again at the same broker is recognised there,
                and so stored exactly once.
            answer_timeout_s: how long a broker may take to answer while there is another; then
                what it was sent goes to the other.
            limits: how much is sent at once and how much may be in flight.
            backoff: how long to wait before connecting again, or asking a broker again that could
                not store.
            connect_timeout_s: how long one attempt to connect may take.
            identity: what to tell the brokers of this client.
            tls, compression, auth_secret: in the place of the identity's; see `Identity`.
            group: the name that producers have in common which know the same transactions.
            check: asked what has become of a transaction of the group whose producer is silent.
            hooks: what to call for logs, metrics and traces.
        """
        for name, value in (
            ("timeout_s", timeout_s),
            ("send_timeout_s", send_timeout_s),
            ("answer_timeout_s", answer_timeout_s),
        ):
            if value <= 0:
                raise ValueError(f"{name}={value} must be above 0")
        for name, count in (("retries", retries), ("send_retries", send_retries)):
            if count is not None and count < 0:
                raise ValueError(f"{name}={count}: 0 is the least, None for any number")
        if addresses is None and lookup is None:
            addresses = "127.0.0.1:4150"
        if lookup is not None:
            lookup = [lookup] if isinstance(lookup, str) else list(lookup)
        self._limits = limits or Limits()
        self._timeout_s = timeout_s
        self._ordered = ordered
        hooks = hooks.guarded() if hooks is not None else NO_HOOKS
        self._hooks = hooks if hooks.has_publishing else None
        self._outbox = Accumulator(self._limits, retries=retries)
        self._pool = BrokerPool(
            self._outbox,
            parse_addresses(addresses) if addresses is not None else [],
            (identity or Identity()).secured(tls, compression, auth_secret),
            lookup=lookup,
            lookup_poll_s=lookup_poll_s,
            backoff=backoff or Backoff(),
            connect_timeout_s=connect_timeout_s,
            answer_timeout_s=answer_timeout_s,
            hooks=hooks,
        )
        self._retries = retries
        self._send_timeout_s = send_timeout_s
        self._send_retries = send_retries
        self._sender = Sender(
            self._pool,
            self._limits,
            is_idempotent=idempotent,
            tries_others=retry_another_broker,
        )
        self._pool.on_flush = self._sender.flush
        self._be_of(group, check)
        self._expiry = Expiry(self._outbox, self._pool, timeout_s)
        self._pool.on_refused = self._on_refused
        self._loop: asyncio.AbstractEventLoop
        self._is_open = False
        self._was_opened = False

    async def __aenter__(self) -> Producer:
        """Connect, and return once one broker is.

        Raises:
            ConnectFailed: no broker answered within the timeout.
            ConnectRefused: brokers did, and none will have this client; see there.
            Closed: it has been connected or closed before; make a new Producer.
        """
        if self._was_opened or self._pool.is_closed:
            raise Closed("a producer is used once: make a new one")
        self._was_opened = True
        self._loop = asyncio.get_running_loop()
        try:
            await self._first_attempt()
            if self._pool.is_closed:
                raise Closed("the producer was closed while it was connecting")
            if self._pool.refusal is not None:
                raise self._pool.refusal
        except BaseException:
            await self._stop()
            raise
        self._is_open = True
        return self

    async def _first_attempt(self) -> None:
        """Wait until a broker is connected, or all refuse this client. Raises ConnectFailed."""
        self._pool.open()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._pool.attempted.wait()
        except TimeoutError:
            why = f"no broker within {self._timeout_s:g} s: {self._pool.errors}"
            # Where it was waiting is of no use to anybody.
            raise ConnectFailed(why) from None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def publish(
        self,
        topic: str,
        body: Body,
        *,
        defer_ms: int | None = None,
        order_key: str | bytes | None = None,
        tag: str = "",
        keys: Iterable[str] | str = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish a message, and return once the broker has stored it.

        Args:
            topic: the topic's name; the broker creates it if there is none.
            body: the message; not empty.
            defer_ms: deliver it so many milliseconds later.
            order_key: messages of the topic with this key are stored in the order in which they
                were published, at one broker.
            tag, keys, headers: as of ``send``; these need a Martlet broker.

        Raises:
            NotSupported: it has properties, and the broker is no Martlet broker.
            InvalidName: no topic may be called that.
            BadBody: the body is empty or too big.
            PublishRefused: the broker answered an error; the message is not stored.  If the error
                is one of that broker, such as a full disk, all others have been asked too.
            PublishTimeout: no answer within the timeout; it may be stored.
            ConnectRefused: no broker has this client any longer; it may be stored.
            PublishLost: it was sent once and ``retries`` times again in vain; it may be stored.
            PublishUnclear: the answer was neither OK nor an error; it may be stored.
            Closed: the producer has been closed.
        """
        if tag or keys or headers:
            key = order_key.decode() if isinstance(order_key, bytes) else order_key or ""
            defer_until = 0 if defer_ms is None else round(time.time() * 1000) + defer_ms
            options = SendOptions(defer_until, True, key, None, self._retries)
            await self._start(
                topic,
                (body,),
                SharedProperties.of(tag, keys, headers, key),
                options,
                self._timeout_s,
            )
            return
        await self._publish(topic, body, defer_ms, order_key)

    def submit(
        self,
        topic: str,
        body: Body,
        *,
        defer_ms: int | None = None,
        order_key: str | bytes | None = None,
    ) -> asyncio.Future[None]:
        """Publish a message without waiting, and return the future of the broker's OK.

        The arguments are those of ``publish``, and so is what the future raises.  Cancelling it
        has the message not sent, if it has not been.

        Raises:
            ProducerFull: too much is published and not answered (``Limits.max_pending_messages``
                and ``max_pending_bytes``); wait for some of it, and submit again.
            InvalidName, BadBody, Closed: as ``publish``.
        """
        if not isinstance(body, bytes):
            body = check_body(body, self._limits.max_message_bytes)
        self._check_room(1, len(body) + MPUB_EXTRA_BYTES)
        return self._publish(topic, body, defer_ms, order_key)

    def _publish(
        self, topic: str, body: Body, defer_ms: int | None, order_key: str | bytes | None
    ) -> asyncio.Future[None]:
        check_name(topic, "topic")
        if defer_ms is not None and defer_ms < 0:
            raise ValueError(f"defer_ms={defer_ms}: nothing can be delivered in the past")
        body = check_body(body, self._limits.max_message_bytes)
        key = None if order_key is None and not self._ordered else (topic, order_key or "")
        size_bytes = len(body) + MPUB_EXTRA_BYTES
        hooks = self._hooks
        if hooks is None:
            return self._add(topic, (body,), size_bytes, defer_ms, key).future
        call = hooks.begin(Publishing(topic, 1, len(body)))
        try:
            future = self._add(topic, (body,), size_bytes, defer_ms, key).future
        except BaseException as error:
            hooks.end(call, error)
            raise
        future.add_done_callback(partial(hooks.ended, call))
        return future

    def _check_room(self, message_count: int, size_bytes: int) -> None:
        """Raise ``ProducerFull`` if so much more may not be published now."""
        outbox, sender, limits = self._outbox, self._sender, self._limits
        pending_messages = outbox.pending_messages + sender.pending_messages
        pending_bytes = outbox.pending_bytes + sender.pending_bytes
        if pending_messages and (
            pending_messages + message_count > limits.max_pending_messages
            or pending_bytes + size_bytes > limits.max_pending_bytes
        ):
            raise ProducerFull(
                f"{pending_messages} messages of {pending_bytes} bytes are published"
                f" and not answered, the limit being {self._limits}: await some of the futures that"
                " submit has returned, then submit this again"
            )

    async def publish_many(
        self, topic: str, bodies: Iterable[Body], *, order_key: str | bytes | None = None
    ) -> int:
        """Publish messages in order, and return how many once the broker has stored all of them.

        They are sent in pieces that the broker takes, of which each is stored wholly or not at all;
        no more of them are taken from ``bodies`` than may be in flight.

        Raises:
            InvalidName: no topic may be called that.
            BadBody: a body is empty or too big.  Of a list or tuple nothing is published then; of
                another iterable, those before it may be.
            PublishRefused: the broker answered an error to a piece; others may be stored.
            PublishTimeout, PublishLost: no answer to a piece; it and others may be stored.
            PublishUnclear: a piece was answered neither with OK nor with an error; likewise.
            ConnectRefused: no broker has this client any longer; some may be stored.
            Closed: the producer has been closed.
        """
        call = Publishing(topic, 0, 0)
        hooks = self._hooks
        if hooks is None:
            return await self._publish_many(call, bodies, order_key)
        hooks.begin(call)
        try:
            count = await self._publish_many(call, bodies, order_key)
        except BaseException as error:
            hooks.end(call, error)
            raise
        hooks.end(call, None)
        return count

    async def _publish_many(
        self, call: Publishing, bodies: Iterable[Body], order_key: str | bytes | None
    ) -> int:
        """The same, counting in the call what is published."""
        topic = check_name(call.topic, "topic")
        key = None if order_key is None and not self._ordered else (topic, order_key or "")

        def add(piece: list[bytes], size_bytes: int) -> PendingPublish:
            return self._add(topic, piece, size_bytes, None, key)

        await publish_bodies(bodies, self._limits, add, call)
        return call.message_count

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed(
                "the producer has been closed"
                if self._was_opened
                else "use 'async with Producer(...)'"
            )
        if self._pool.refusal is not None:
            raise self._pool.refusal

    def _add(
        self,
        topic: str,
        bodies: tuple[bytes] | list[bytes],
        size_bytes: int,
        defer_ms: int | None,
        order_key: OrderKey | None,
    ) -> PendingPublish:
        self._check_open()
        loop = self._loop
        deadline_s = loop.time() + self._timeout_s
        publication = PendingPublish(
            topic,
            bodies,
            size_bytes,
            loop.create_future(),
            deadline_s=deadline_s,
            defer_ms=defer_ms,
            order_key=order_key,
        )
        self._outbox.add(publication)
        if self._expiry.timer is None:
            self._expiry.begin(loop, deadline_s)
        self._pool.flush_soon()
        return publication

    @property
    def stats(self) -> ProducerStats:
        """What has been done so far, and how the brokers do."""
        outbox, sender = self._outbox, self._sender
        return ProducerStats(
            pending_messages=outbox.pending_messages + sender.pending_messages,
            pending_bytes=outbox.pending_bytes + sender.pending_bytes,
            stored=outbox.stored_count + sender.stored_count,
            retried=outbox.retried_count + sender.retried_count,
            timed_out=self._expiry.count + sender.timed_out_count,
            brokers=tuple(link.stats() for link in self._pool.links),
        )

    async def close(self) -> None:
        """Wait until all that is published has been answered, or its timeout, and hang up."""
        self._is_open = False
        try:
            unanswered: list[asyncio.Future[Any]] = [
                publication.future for publication in self._outbox.unanswered()
            ]
            unanswered += [sending.future for sending in self._sender.unanswered()]
            if unanswered:
                await asyncio.wait(unanswered)
        finally:
            await self._stop()

    def _on_refused(self, refusal: ConnectRefused) -> None:
        """No broker has this client."""
        for publication in self._outbox.unanswered():
            publication.fail(refusal)
        self._outbox.forget_settled()
        self._sender.fail_all(refusal)

    async def _stop(self) -> None:
        self._is_open = False
        for publication in self._outbox.unanswered():
            publication.fail(Closed("the producer was closed before the broker answered"))
        self._expiry.close()
        self._sender.close()
        if self._checking is not None:
            self._checking.close()
        await self._pool.close()
