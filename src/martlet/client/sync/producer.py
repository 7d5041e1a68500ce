"""Publishing without ``await``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextvars import Context, copy_context
from functools import partial
from itertools import islice
from typing import Any

from martlet.client.names import check_name
from martlet.client.producer import producer as asynchronous
from martlet.client.producer.body import PIECE_MESSAGES, Body, check_body
from martlet.client.producer.result import SendResult
from martlet.client.producer.stats import ProducerStats
from martlet.client.sync.loop_thread import LoopThread
from martlet.client.sync.proxy import SyncProxy
from martlet.client.sync.signatures import like
from martlet.client.sync.transaction import Transaction
from martlet.protocol.nsq.commands import MPUB_EXTRA_BYTES

_Job = tuple[str, bytes, int | None, str | bytes | None, Future[None], Context | None]

AHEAD = 2
"""How many pieces of an iterable may be on their way while the next is taken from it."""


class Producer(SyncProxy):
    """Publishes messages to a broker, or to several, from any number of threads.

    ::

        with Producer("127.0.0.1:4150") as producer:
            producer.publish("orders", b"one")
            producer.publish_many("orders", [b"two", b"three"])

    It is `martlet.client.Producer` and promises what that promises; the arguments are the same.
    What threads publish at the same time goes in one command.
    """

    @like(asynchronous.Producer.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__()
        if settings.get("check") is not None:
            settings["check"] = partial(asyncio.to_thread, settings["check"])
        self._producer = asynchronous.Producer(*arguments, **settings)
        self._max_bytes = self._producer._limits.max_message_bytes
        self._posted: deque[_Job] = deque()
        """Submitted, and not in the event loop yet."""

    def __enter__(self) -> Producer:
        """Connect.

        Raises:
            ConnectFailed: no broker answered within the timeout.
            ConnectRefused: brokers did, and none will have this client.
            Closed: it has been connected before; make a new Producer.
        """
        self._enter(self._producer.__aenter__())
        return self

    def publish(
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
        """Publish a message, and return once a broker has stored it.

        The arguments and errors are those of `martlet.client.Producer.publish`.
        """
        thread = self._entered()
        if tag or keys or headers:
            publish = self._producer.publish
            more: dict[str, Any] = {"tag": tag, "keys": keys, "headers": headers}
            thread.call(publish(topic, body, defer_ms=defer_ms, order_key=order_key, **more))
            return
        thread.result(self._submit(thread, topic, body, defer_ms, order_key))

    def submit(
        self,
        topic: str,
        body: Body,
        *,
        defer_ms: int | None = None,
        order_key: str | bytes | None = None,
    ) -> Future[None]:
        """Publish a message without waiting, and return the future of the broker's OK.

        What it may raise is what `martlet.client.Producer.submit` raises.
        """
        thread = self._entered()
        body = check_body(body, self._max_bytes)
        self._producer._check_room(1 + len(self._posted), len(body) + MPUB_EXTRA_BYTES)
        return self._submit(thread, topic, body, defer_ms, order_key)

    def publish_many(
        self, topic: str, bodies: Iterable[Body], *, order_key: str | bytes | None = None
    ) -> int:
        """Publish messages in order, and return how many once a broker has stored all of them.

        The arguments and errors are those of `martlet.client.Producer.publish_many`.  What is no
        list or tuple is read here, in the caller's thread, and may take its time.
        """
        thread = self._entered()
        publish = self._producer.publish_many
        if isinstance(bodies, (list, tuple)):
            return thread.call(publish(topic, bodies, order_key=order_key))
        count = 0
        sent: deque[Future[int]] = deque()
        try:
            for piece in self._pieces(bodies):
                sent.append(thread.start(publish(topic, piece, order_key=order_key)))
                if len(sent) > AHEAD:
                    count += thread.result(sent[0])
                    sent.popleft()
            while sent:
                count += thread.result(sent[0])
                sent.popleft()
        except BaseException:
            for future in sent:
                future.cancel()
            raise
        return count

    @like(asynchronous.Producer.send)
    def send(self, *arguments: Any, **settings: Any) -> SendResult:
        """Send a message, and return where it is stored."""
        return self._entered().call(self._producer.send(*arguments, **settings))

    @like(asynchronous.Producer.send_many)
    def send_many(self, *arguments: Any, **settings: Any) -> Sequence[SendResult]:
        """Send messages in order, and return where each is stored."""
        return self._entered().call(self._producer.send_many(*arguments, **settings))

    @like(asynchronous.Producer.send_async)
    def send_async(self, *arguments: Any, **settings: Any) -> Future[SendResult]:
        """Send a message without waiting; callbacks are called in the client's thread."""
        return self._entered().start(self._send(arguments, settings))

    async def _send(self, arguments: tuple[Any, ...], settings: dict[str, Any]) -> SendResult:
        return await self._producer.send_async(*arguments, **settings)

    @like(asynchronous.Producer.send_oneway)
    def send_oneway(self, *arguments: Any, **settings: Any) -> None:
        """Send a message once, and hear no more of it."""
        self._entered().call(self._send_oneway(arguments, settings))

    async def _send_oneway(self, arguments: tuple[Any, ...], settings: dict[str, Any]) -> None:
        self._producer.send_oneway(*arguments, **settings)

    def transaction(
        self, id: str = "", *, check_after_s: float | None = None, broker: str = ""
    ) -> Transaction:
        """A transaction: messages that are seen together, when it is committed, or not at all.

        ::

            with producer.transaction() as transaction:
                transaction.publish("orders", b"one")

        The arguments and errors are those of `martlet.client.Producer.transaction`.
        """
        thread = self._entered()
        made = self._producer.transaction(id, check_after_s=check_after_s, broker=broker)
        return Transaction(thread, made)

    def join_transaction(self, id: str, *, broker: str = "") -> Transaction:
        """Add to a transaction that somebody else has begun, and will commit."""
        thread = self._entered()
        return Transaction(thread, self._producer.join_transaction(id, broker=broker))

    @property
    def stats(self) -> ProducerStats:
        """What has been done so far, and how the brokers do."""
        return self._entered().call(self._stats())

    async def _stats(self) -> ProducerStats:
        return self._producer.stats

    def close(self) -> None:
        """Wait until all that is published has been answered, or its timeout, and hang up."""
        thread = self._thread
        if thread is not None and not thread.is_forked:
            thread.call(self._producer.close())

    def _pieces(self, bodies: Iterable[Body]) -> Iterator[list[Body]]:
        """Lists of so many bodies that none is much longer than what one broker may have."""
        max_bytes = self._producer._limits.max_in_flight_bytes // AHEAD
        iterator = iter(bodies)
        while piece := list(islice(iterator, 1)):
            size_bytes = len(piece[0])
            for body in islice(iterator, PIECE_MESSAGES - 1):
                piece.append(body)
                size_bytes += len(body)
                if size_bytes > max_bytes:
                    break
            yield piece

    def _submit(
        self,
        thread: LoopThread,
        topic: str,
        body: Body,
        defer_ms: int | None,
        order_key: str | bytes | None,
    ) -> Future[None]:
        # Checked here, so that the error has the caller's line in its trace.
        check_name(topic, "topic")
        body = check_body(body, self._max_bytes)
        future: Future[None] = Future()
        # Hooks that trace want to know the caller's span.
        context = copy_context() if self._producer._hooks is not None else None
        self._posted.append((topic, body, defer_ms, order_key, future, context))
        thread.post(self._publish_next, thread)
        return future

    def _publish_next(self, thread: LoopThread) -> None:
        """In the loop: publish what was submitted first, and let its future have the outcome."""
        topic, body, defer_ms, order_key, future, context = self._posted.popleft()
        if future.cancelled():
            return
        try:
            publish = self._producer._publish
            if context is None:
                stored = publish(topic, body, defer_ms, order_key)
            else:
                stored = context.run(publish, topic, body, defer_ms, order_key)
        except Exception as error:
            _fulfil(future, error)
            return

        def answered(_stored: asyncio.Future[None]) -> None:
            if stored.cancelled():
                future.cancel()
            else:
                _fulfil(future, stored.exception())

        def given_up(_future: Future[None]) -> None:
            if future.cancelled():
                thread.post(stored.cancel)

        stored.add_done_callback(answered)
        future.add_done_callback(given_up)


def _fulfil(future: Future[None], error: BaseException | None) -> None:
    try:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
    except InvalidStateError:
        pass  # Its owner has cancelled it, and wants to know no more.
