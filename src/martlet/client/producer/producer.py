"""The producer: publish messages, and send them again until a broker has acknowledged them."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Unpack, cast

from martlet.client.errors import (
    Closed,
    ConnectFailed,
    ConnectRefused,
    ProducerFull,
)
from martlet.client.hooks import Publishing
from martlet.client.keywords import apply_options
from martlet.client.names import check_name
from martlet.client.producer.accumulator import Accumulator
from martlet.client.producer.broker_pool import BrokerPool
from martlet.client.producer.expiry import Expiry
from martlet.client.producer.message import (
    Sendable,
    are_bare,
    bodies_bytes,
    check_all,
    check_body,
    check_message,
    checked,
    cut,
    prepare,
)
from martlet.client.producer.options import (
    NO_HEADERS,
    SendKeywords,
    SendOptions,
    options_of,
    plain_fields,
)
from martlet.client.producer.pending import Extras, PendingPublish
from martlet.client.producer.result import SendResult, SendResults
from martlet.client.producer.routing import order_key_of
from martlet.client.producer.settings import ProducerOptions, PublishSettings
from martlet.client.producer.stats import ProducerStats
from martlet.client.requests.producer_methods import ProducerRequests
from martlet.client.requests.requester import Requester
from martlet.client.settings import Addresses, ConnectionSettings, parse_addresses
from martlet.client.transactions.producer_methods import ProducerTransactions
from martlet.http_requests import load_aiohttp
from martlet.protocol.nsq.commands import MPUB_EXTRA_BYTES


class _Mode(NamedTuple):
    """A mode of publishing."""

    is_send: bool
    """Whether the caller wants a result, which only a SEND has."""
    timeout_s: float
    retries: int | None
    """The number of retries; None for no limit."""


class Producer(ProducerTransactions, ProducerRequests):
    """Publish messages to a broker, or to several, each message to one of them.

    ::

        async with Producer("127.0.0.1:4150") as producer:
            await producer.publish("orders", b"one")

    Many tasks may publish at the same time; messages published in one turn of the event loop go in
    one command. With several brokers, each command goes to the one with the least in flight. While
    no broker can be reached, publishing waits, and unanswered messages are sent again, to another
    broker if there is one: so a message can be stored twice, but one whose ``publish`` returned is
    stored.

    One broker stores the messages of a topic in the order of publishing. With several, messages
    with the same ``order_key`` (or topic, with ``ordered=True``) stay in order: they go to one
    broker while it is there, and then all to another.

    ``publish`` and ``send`` take the same messages and options (see `SendOptions`). ``send``
    returns where a message is stored, and stores it exactly once even if it is sent again, unless
    the producer has ``idempotent=False`` or the message was sent to another broker too; so it needs
    a Martlet broker. ``publish`` needs one for options that NSQ's commands cannot carry; such
    messages are stored in the same way as by ``send``. ``timeout_s`` and ``retries`` limit the
    retries of ``publish``, ``send_timeout_s`` and ``send_retries`` those of ``send``.
    """

    def __init__(
        self,
        addresses: Addresses | None = None,
        *,
        connection: ConnectionSettings | None = None,
        publishing: PublishSettings | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Take the settings; ``async with`` connects.

        Args:
            addresses: of the brokers, as ``"host:port"``; messages go to all of them. Without these
                and lookup daemons: 127.0.0.1:4150.
            connection: how to find and connect to brokers.
            publishing: the timeouts, retries and limits of publishing.
            options: any field of these settings by name, overriding its value there, such as
                ``ordered=True``, ``timeout_s=10``, ``lookup="host:4161"``, ``hooks=...``.

        Raises:
            TypeError: there is no such option.
            ValueError: a setting is out of its limits; the text says which.
        """
        publishing = publishing or PublishSettings()
        if "send_retries" in options:  # None is a valid value: no limit.
            publishing = replace(publishing, send_retries=options.pop("send_retries"))
        settings = apply_options(
            type(self), options, connection or ConnectionSettings(), publishing
        )
        connection, publishing = settings
        if addresses is None and connection.lookup is None:
            addresses = "127.0.0.1:4150"
        self._limits = publishing.limits
        self._max_bytes = self._limits.max_message_bytes
        self._timeout_s = publishing.timeout_s
        self._publishing = _Mode(False, publishing.timeout_s, publishing.retries)
        self._sending = _Mode(True, publishing.send_timeout_s, publishing.send_retries)
        self._plain_send = Extras(
            publishing.send_timeout_s, fields=plain_fields(publishing.send_retries)
        )
        self._ordered = publishing.ordered
        hooks = connection.hooks.guarded()
        self._hooks = hooks if hooks.has_publishing else None
        self._accumulator = Accumulator(
            self._limits,
            retries=publishing.retries,
            is_idempotent=publishing.idempotent,
            tries_others=publishing.retry_another_broker,
        )
        self._pool = BrokerPool(
            self._accumulator,
            parse_addresses(addresses) if addresses is not None else [],
            connection,
            publishing.answer_timeout_s,
            hooks,
        )
        self._requester: Requester | None = None
        self._join_group(publishing.group, publishing.check)
        self._expiry = Expiry(self._accumulator, self._pool, self._timeout_s)
        self._pool.on_refused = self._on_refused
        self._loop: asyncio.AbstractEventLoop
        self._is_open = False
        self._was_opened = False

    async def __aenter__(self) -> Producer:
        """Connect, and return once one broker is connected.

        Raises:
            ConnectFailed: no broker answered within the timeout. ConnectRefused: brokers answered,
            and none accepts this client; see there. Closed: it was connected or closed before; make
            a new Producer.
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
        if not self._pool.is_fixed:
            await load_aiohttp()  # Before the limit, which is for the lookup daemons and brokers.
            if self._pool.is_closed:
                return
        self._pool.open()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._pool.attempted.wait()
        except TimeoutError:
            why = f"no broker within {self._timeout_s:g} s: {self._pool.errors}"
            raise ConnectFailed(why) from None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def publish(self, topic: str, message: Sendable, **options: Unpack[SendKeywords]) -> None:
        """Publish a message, and return once the broker has stored it.

        Args:
            topic: the topic's name; the broker creates it if missing.
            message: the body; or an `Outgoing`, or anything else with a body and properties, such
                as a received message.
            options: those of `SendOptions`.

        Raises:
            NotSupported: it needs a Martlet broker, and there is none. InvalidName, BadBody: the
            topic's name or the body is invalid. BadProperties: the properties are invalid.
            PublishRefused: the broker answered an error; the message is not stored. If the error is
            one of that broker, such as a full disk, all others were tried too. PublishTimeout: no
                answer within the timeout; it may be stored. ConnectRefused: no broker accepts this
                client any longer; it may be stored. PublishLost: it was sent once and ``retries``
                times again, without an answer; it may be stored. PublishUnclear: the answer was
                neither OK nor an error;
            it may be stored. Closed: the producer was closed.
        """
        await self._publish(topic, message, options)

    def submit(
        self, topic: str, message: Sendable, **options: Unpack[SendKeywords]
    ) -> asyncio.Future[None]:
        """Publish a message without waiting, and return the future of the broker's OK.

        The arguments are those of ``publish``, and so are the future's errors. Cancelling the
        future withdraws the message if it was not sent yet.

        Raises:
            ProducerFull: too many messages are unanswered (``Limits.max_pending_messages`` and
            ``max_pending_bytes``); wait for some of them, and submit again. InvalidName, BadBody,
            BadProperties, Closed: as ``publish``.
        """
        self._check_room(message)
        return self._publish(topic, message, options)

    async def publish_many(
        self, topic: str, messages: Iterable[Sendable], **options: Unpack[SendKeywords]
    ) -> int:
        """Publish messages in order, and return how many once the broker has stored all of them.

        They are sent in pieces within the broker's limits, each of which is stored as a unit; no
        more are taken from ``messages`` than may be in flight. Options apply to each message
        without such properties of its own.

        Raises:
            NotSupported, InvalidName, BadProperties, ConnectRefused, Closed: as ``publish``.
            BadBody: a body is empty or too big.  Of a list or tuple nothing is published then; of
                another iterable, those before it may be.
            PublishRefused: the broker answered an error to a piece; others may be stored.
            PublishTimeout, PublishLost: no answer to a piece; it and others may be stored.
            PublishUnclear: a piece was answered neither with OK nor with an error; likewise.
        """
        chosen = options_of("publish_many", options)
        return len(await self._many(topic, messages, chosen, self._publishing))

    async def send(
        self, topic: str, message: Sendable, **options: Unpack[SendKeywords]
    ) -> SendResult:
        """Send a message to a Martlet broker, and return where it is stored.

        The arguments and errors are those of ``publish``.
        """
        return await self._send(topic, message, options)

    def send_async(
        self,
        topic: str,
        message: Sendable,
        *,
        on_result: Callable[[SendResult], object] | None = None,
        on_error: Callable[[BaseException], object] | None = None,
        **options: Unpack[SendKeywords],
    ) -> asyncio.Future[SendResult]:
        """Send a message without waiting, and return the future of ``send``'s result.

        Args:
            topic, message, options: as of ``send``.
            on_result: called in the event loop with the result.
            on_error: called in the event loop with the error.

        Raises:
            ProducerFull: too many messages are unanswered, as for ``submit``. InvalidName, BadBody,
            BadProperties, Closed: as ``send``.
        """
        self._check_room(message)
        future = self._send(topic, message, options)
        if on_result is not None or on_error is not None:
            future.add_done_callback(partial(call_back, on_result, on_error))
        return future

    async def send_many(
        self, topic: str, messages: Iterable[Sendable], **options: Unpack[SendKeywords]
    ) -> Sequence[SendResult]:
        """Send messages in order, and return where each is stored.

        They go in pieces as by ``publish_many``, and each piece in one queue.

        Raises:
            As ``publish_many``; some of them may be stored then.
        """
        return await self._many(topic, messages, options_of("send_many", options), self._sending)

    def send_oneway(self, topic: str, message: Sendable, **options: Unpack[SendKeywords]) -> None:
        """Send a message once, without an answer: it may be lost.

        An error of the broker appears only in the broker's log.

        Raises:
            ConnectionLost: no broker is connected; nothing was sent. ProducerFull: the broker reads
            too slowly; nothing was sent. NotSupported, InvalidName, BadBody, BadProperties, Closed:
            as ``send``.
        """
        chosen = options_of("send_oneway", options)
        if self._hooks is None:
            self._pool.send_oneway(self._pending(topic, (message,), chosen, self._sending))
            return
        with self._hooks.observed(Publishing(topic, message)) as call:
            pending = self._pending(topic, (message,), chosen, self._sending, call.headers)
            self._pool.send_oneway(pending)

    def _send(
        self, topic: str, message: Sendable, options: SendKeywords
    ) -> asyncio.Future[SendResult]:
        if type(message) is not bytes or options or self._hooks is not None:
            return self._one(topic, message, options_of("send", options), self._sending)
        self._check_one(topic, message)
        return self._add(
            PendingPublish(
                topic,
                (message,),
                len(message) + MPUB_EXTRA_BYTES,
                self._loop.create_future(),
                self._loop.time() + self._sending.timeout_s,
                order_key_of(topic, None) if self._ordered else None,
                self._plain_send,
            )
        )

    def _send_until(
        self, topic: str, message: Sendable, options: SendOptions, timeout_s: float
    ) -> asyncio.Future[SendResult]:
        return self._one(topic, message, options, _Mode(True, timeout_s, None))

    def _publish(
        self, topic: str, message: Sendable, options: SendKeywords
    ) -> asyncio.Future[None]:
        key = options.get("order_key")
        has_more = len(options) > (key is not None) or self._hooks is not None
        if type(message) is not bytes or has_more:
            return self._one(topic, message, options_of("publish", options), self._publishing)
        self._check_one(topic, message)
        return self._add(self._bare(topic, (message,), len(message) + MPUB_EXTRA_BYTES, key))

    def _check_one(self, topic: str, body: bytes) -> None:
        """Check a body without properties, and that it may be published now."""
        if not self._is_open or self._pool.refusal is not None:
            self._check_open()
        check_name(topic, "topic")
        if not 0 < len(body) <= self._max_bytes:
            check_body(body, self._max_bytes)

    def _bare(
        self, topic: str, bodies: Sequence[bytes], size_bytes: int, key: str | bytes | None
    ) -> PendingPublish:
        """Make the messages of a PUB or MPUB."""
        loop = self._loop
        return PendingPublish(
            topic,
            bodies,
            size_bytes,
            loop.create_future(),
            loop.time() + self._timeout_s,
            None if key is None and not self._ordered else order_key_of(topic, key),
        )

    def _one(
        self, topic: str, message: Sendable, options: SendOptions, mode: _Mode
    ) -> asyncio.Future[Any]:
        """Publish a message, and have hooks called."""
        hooks = self._hooks
        if hooks is None:
            return self._add(self._pending(topic, (message,), options, mode))
        call = hooks.begin(Publishing(topic, message))
        try:
            pending = self._pending(topic, (message,), options, mode, call.headers)
        except BaseException as error:
            hooks.end(call, error)
            raise
        pending.future.add_done_callback(partial(hooks.ended, call))
        return self._add(pending)

    def _pending(
        self,
        topic: str,
        messages: Sequence[Sendable],
        options: SendOptions,
        mode: _Mode,
        more_headers: Mapping[str, str] = NO_HEADERS,
    ) -> PendingPublish:
        """Check messages of one command, and choose the command.

        Args:
            topic, messages, options, mode: of the publish.
            more_headers: to be added where brokers store headers.
        """
        check_name(topic, "topic")
        self._check_open()
        if not mode.is_send:
            messages = checked(messages, self._max_bytes)
        fields = None
        if not (mode.is_send or self._accumulator.takes_sends):
            more_headers = NO_HEADERS
        if mode.is_send or options.needs_send or more_headers or not are_bare(messages):
            fields = options.fields(mode.retries)
            bodies, entries, size_bytes = prepare(messages, options, self._max_bytes, more_headers)
            has_key = bool(options.order_key)
        else:
            bodies, entries = cast("Sequence[bytes]", messages), ()
            size_bytes = bodies_bytes(bodies)
            has_key = options.order_key is not None
        timeout_s = options.timeout_s or mode.timeout_s
        extras = None
        if fields is not None or options.defer_ms is not None or options.timeout_s:
            extras = Extras(timeout_s, options.defer_ms, fields, entries)
        loop = self._loop
        return PendingPublish(
            topic,
            bodies,
            size_bytes,
            loop.create_future(),
            loop.time() + timeout_s,
            order_key_of(topic, options.order_key) if has_key or self._ordered else None,
            extras,
        )

    def _add(self, pending: PendingPublish) -> asyncio.Future[Any]:
        """Publish these messages."""
        self._accumulator.add(pending)
        if pending.deadline_s < self._expiry.next_s:
            self._expiry.set_timer(self._loop, pending.deadline_s)
        self._pool.flush_soon()
        return pending.future

    async def _many(
        self, topic: str, messages: Iterable[Sendable], options: SendOptions, mode: _Mode
    ) -> SendResults:
        """Publish messages in pieces, and have hooks called."""
        if self._hooks is None:
            return await self._in_pieces(topic, messages, options, mode, None)
        with self._hooks.observed(Publishing(topic)) as call:
            return await self._in_pieces(topic, messages, options, mode, call)

    async def _in_pieces(
        self,
        topic: str,
        messages: Iterable[Sendable],
        options: SendOptions,
        mode: _Mode,
        call: Publishing | None,
    ) -> SendResults:
        """Publish messages in pieces, as fast as brokers answer.

        Args:
            topic, messages, options, mode: of the publish.
            call: counts the messages; None for no hooks.
        """
        check_name(topic, "topic")
        self._check_open()
        more_headers = NO_HEADERS if call is None else call.headers
        is_send = mode.is_send or options.needs_send or options.defer_ms is not None
        is_send = is_send or (bool(more_headers) and self._accumulator.takes_sends)
        is_checked = isinstance(messages, (list, tuple))
        if isinstance(messages, (list, tuple)):
            messages = await check_all(messages, self._max_bytes)
            is_send = is_send or not are_bare(messages)
        results = SendResults()
        size_bytes = 0
        sent: deque[PendingPublish] = deque()

        async def wait_for_first() -> int:
            results.add(len(sent[0].bodies), await sent[0].future)
            return sent.popleft().size_bytes

        try:
            for piece in cut(messages, self._limits):
                bodies: Any = piece if is_checked else checked(piece, self._max_bytes)
                if not (is_send or is_checked or are_bare(bodies)):
                    # From here on all pieces use SEND, after those that did not.
                    is_send = True
                    while sent:
                        size_bytes -= await wait_for_first()
                if is_send or options.timeout_s:
                    kind = mode._replace(is_send=is_send)
                    pending = self._pending(topic, bodies, options, kind, more_headers)
                else:
                    self._check_open()
                    pending = self._bare(topic, bodies, bodies_bytes(bodies), options.order_key)
                self._add(pending)
                sent.append(pending)
                size_bytes += pending.size_bytes
                if call is not None:
                    call.count(*piece)
                await asyncio.sleep(0)  # This piece is sent while the next is cut.
                while size_bytes > self._limits.max_in_flight_bytes and len(sent) > 1:
                    size_bytes -= await wait_for_first()
            while sent:
                await wait_for_first()
        except BaseException:
            # Nothing waits for the other pieces: withdraw those not sent yet.
            for pending in sent:
                if not pending.future.cancel() and not pending.future.cancelled():
                    pending.future.exception()
            raise
        return results

    def _check_room(self, message: Sendable, posted_count: int = 0) -> None:
        """Check that another message may be published without waiting. Raises ProducerFull."""
        body = message if type(message) is bytes else check_message(message, self._max_bytes)[0]
        size_bytes = len(body) + MPUB_EXTRA_BYTES
        accumulator, limits = self._accumulator, self._limits
        pending_messages, pending_bytes = accumulator.pending_messages, accumulator.pending_bytes
        if pending_messages and (
            pending_messages + posted_count + 1 > limits.max_pending_messages
            or pending_bytes + size_bytes > limits.max_pending_bytes
        ):
            raise ProducerFull(
                f"{pending_messages} messages of {pending_bytes} bytes are published"
                f" and not answered, the limit being {self._limits}: await some of the futures that"
                " submit has returned, then submit this again"
            )

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed(
                "the producer has been closed"
                if self._was_opened
                else "use 'async with Producer(...)'"
            )
        if self._pool.refusal is not None:
            raise self._pool.refusal

    @property
    def stats(self) -> ProducerStats:
        """Return the statistics of this producer and its brokers."""
        accumulator = self._accumulator
        return ProducerStats(
            pending_messages=accumulator.pending_messages,
            pending_bytes=accumulator.pending_bytes,
            stored=accumulator.stored_count,
            retried=accumulator.retried_count,
            timed_out=self._expiry.count,
            waiting_requests=self._requester.waiting_count if self._requester else 0,
            late_replies=self._requester.late_count if self._requester else 0,
            brokers=self._pool.stats(),
        )

    async def close(self) -> None:
        """Wait until all messages are answered or timed out, and close the connections."""
        self._is_open = False
        try:
            unanswered = [pending.future for pending in self._accumulator.unanswered()]
            if unanswered:
                await asyncio.wait(unanswered)
        finally:
            await self._stop()

    def _on_refused(self, refusal: ConnectRefused) -> None:
        """Fail all messages: no broker accepts this client."""
        for pending in self._accumulator.unanswered():
            pending.fail(refusal)
        self._accumulator.forget_settled()

    async def _stop(self) -> None:
        self._is_open = False
        for pending in self._accumulator.unanswered():
            pending.fail(Closed("the producer was closed before the broker answered"))
        if self._requester is not None:
            self._requester.fail(Closed("the producer was closed before the reply came"))
        self._expiry.close()
        if self._checking is not None:
            self._checking.close()
        await self._pool.close()


def call_back(
    on_result: Callable[[SendResult], object] | None,
    on_error: Callable[[BaseException], object] | None,
    future: asyncio.Future[SendResult] | concurrent.futures.Future[SendResult],
) -> None:
    """Call the function for the future's outcome."""
    error = asyncio.CancelledError() if future.cancelled() else future.exception()
    if error is None and on_result is not None:
        on_result(future.result())
    elif error is not None and on_error is not None:
        on_error(error)
