"""The producer without ``await``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextvars import Context, copy_context
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar, Unpack

from martlet.client.names import check_name
from martlet.client.producer import producer as asynchronous
from martlet.client.producer.message import PIECE_MESSAGES, Sendable, check_message, size_of
from martlet.client.producer.options import MessageKeywords, SendKeywords
from martlet.client.producer.result import SendResult, SendResults
from martlet.client.producer.settings import PublishSettings
from martlet.client.producer.stats import ProducerStats
from martlet.client.requests.requester import Reply
from martlet.client.sync.base import Blocking, SyncProxy, awaited, like
from martlet.client.sync.loop_thread import LoopThread
from martlet.client.transactions import transaction as transactions
from martlet.client.transactions.transaction import Contribution

T = TypeVar("T")
_Job = tuple[Callable[[], asyncio.Future[Any]], Future[Any], Context | None]

AHEAD = 2
"""The maximum number of pieces of an iterable in flight while the next is taken."""


class Producer(SyncProxy[asynchronous.Producer]):
    """Publish messages to a broker, or to several, from any number of threads.

    ::

        with Producer("127.0.0.1:4150") as producer:
            producer.publish("orders", b"one")
            producer.publish_many("orders", [b"two", b"three"])

    It has the guarantees of `martlet.client.Producer`, and the arguments and errors of its methods.
    Messages that threads publish at the same time go in one command.
    """

    @like(asynchronous.Producer.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        publishing = settings.pop("publishing", None) or PublishSettings()
        check: Any = settings.pop("check", None) or publishing.check
        if check is not None:
            settings["check"] = partial(asyncio.to_thread, check)
        super().__init__(asynchronous.Producer(*arguments, publishing=publishing, **settings))
        self._posted: deque[_Job] = deque()
        """Submitted messages that are not in the event loop yet."""

    def __enter__(self) -> Producer:
        """Connect.

        Raises:
            ConnectFailed: no broker answered within the timeout. ConnectRefused: brokers answered,
            and none accepts this client. Closed: it was connected before; make a new Producer.
        """
        self._enter(self._model.__aenter__())
        return self

    def publish(self, topic: str, message: Sendable, **options: Unpack[SendKeywords]) -> None:
        """Publish a message, and return once a broker has stored it."""
        thread = self._entered()
        thread.result(self._post(thread, self._model._publish, topic, message, options))

    def submit(
        self, topic: str, message: Sendable, **options: Unpack[SendKeywords]
    ) -> Future[None]:
        """Publish a message without waiting, and return the future of the broker's OK."""
        thread = self._entered()
        self._model._check_room(message, len(self._posted))
        return self._post(thread, self._model._publish, topic, message, options)

    def publish_many(
        self, topic: str, messages: Iterable[Sendable], **options: Unpack[SendKeywords]
    ) -> int:
        """Publish messages in order, and return how many once a broker has stored all of them.

        An iterable other than a list or tuple is read in the caller's thread, and may block.
        """
        publish = self._model.publish_many
        return sum(self._in_pieces(messages, lambda piece: publish(topic, piece, **options)))

    def send(self, topic: str, message: Sendable, **options: Unpack[SendKeywords]) -> SendResult:
        """Send a message, and return where it is stored."""
        thread = self._entered()
        return thread.result(self._post(thread, self._model._send, topic, message, options))

    def send_async(
        self,
        topic: str,
        message: Sendable,
        *,
        on_result: Callable[[SendResult], object] | None = None,
        on_error: Callable[[BaseException], object] | None = None,
        **options: Unpack[SendKeywords],
    ) -> Future[SendResult]:
        """Send a message without waiting; callbacks are called in the client's thread."""
        thread = self._entered()
        self._model._check_room(message, len(self._posted))
        future = self._post(thread, self._model._send, topic, message, options)
        if on_result is not None or on_error is not None:
            future.add_done_callback(partial(asynchronous.call_back, on_result, on_error))
        return future

    def send_many(
        self, topic: str, messages: Iterable[Sendable], **options: Unpack[SendKeywords]
    ) -> Sequence[SendResult]:
        """Send messages in order, and return where each is stored; they are read here."""
        send = self._model.send_many
        results = SendResults()
        for some in self._in_pieces(messages, lambda piece: send(topic, piece, **options)):
            results.extend(some)
        return results

    def send_oneway(self, topic: str, message: Sendable, **options: Unpack[SendKeywords]) -> None:
        """Send a message once, without an answer."""

        async def send() -> None:
            self._model.send_oneway(topic, message, **options)

        self._entered().call(send())

    def request(self, topic: str, message: Sendable, **options: Unpack[SendKeywords]) -> Reply:
        """Send a request, and return the reply of the consumer that handled it."""
        return self._entered().call(self._model.request(topic, message, **options))

    def transaction(
        self, id: str = "", *, check_after_s: float | None = None, broker: str = ""
    ) -> Transaction:
        """Begin a transaction: messages that become visible together at its commit, or never.

        ::

            with producer.transaction() as transaction:
                transaction.publish("orders", b"one")
        """
        thread = self._entered()
        made = self._model.transaction(id, check_after_s=check_after_s, broker=broker)
        return Transaction(thread, made)

    def join_transaction(self, id: str, *, broker: str = "") -> Transaction:
        """Add to a transaction that another process has begun and will commit."""
        thread = self._entered()
        return Transaction(thread, self._model.join_transaction(id, broker=broker))

    @property
    def stats(self) -> ProducerStats:
        """Return the statistics of this producer and its brokers."""
        return self._entered().call(self._stats())

    async def _stats(self) -> ProducerStats:
        return self._model.stats

    def close(self) -> None:
        """Wait until all messages are answered or timed out, and close the connections."""
        thread = self._thread
        if thread is not None and not thread.is_forked:
            thread.call(self._model.close())

    def _in_pieces(
        self,
        messages: Iterable[Sendable],
        start: Callable[[Sequence[Sendable]], Coroutine[Any, Any, T]],
    ) -> list[T]:
        """Publish messages in pieces read in this thread; a list or tuple as it is."""
        thread = self._entered()
        if isinstance(messages, (list, tuple)):
            return [thread.call(start(messages))]
        results: list[T] = []
        sent: deque[Future[T]] = deque()
        try:
            for piece in self._pieces(messages):
                sent.append(thread.start(start(piece)))
                if len(sent) > AHEAD:
                    results.append(thread.result(sent[0]))
                    sent.popleft()
            while sent:
                results.append(thread.result(sent[0]))
                sent.popleft()
        except BaseException:
            for future in sent:
                future.cancel()
            raise
        return results

    def _pieces(self, messages: Iterable[Sendable]) -> Iterator[list[Sendable]]:
        """Cut messages into lists of about the bytes that one broker may have in flight."""
        max_bytes = self._model._limits.max_in_flight_bytes // AHEAD
        iterator = iter(messages)
        while piece := list(islice(iterator, 1)):
            size_bytes = size_of(piece[0])
            for message in islice(iterator, PIECE_MESSAGES - 1):
                piece.append(message)
                size_bytes += size_of(message)
                if size_bytes > max_bytes:
                    break
            yield piece

    def _post(
        self,
        thread: LoopThread,
        start: Callable[[str, Sendable, SendKeywords], asyncio.Future[T]],
        topic: str,
        message: Sendable,
        options: SendKeywords,
    ) -> Future[T]:
        """Start this in the event loop, and return the future of its outcome."""
        # Checked here, so that the traceback has the caller's line.
        check_name(topic, "topic")
        body, properties = check_message(message, self._model._max_bytes)
        if not properties:
            message = body  # The caller may change the original.
        future: Future[T] = Future()
        # Hooks that trace need the caller's span.
        context = copy_context() if self._model._hooks is not None else None
        self._posted.append((partial(start, topic, message, options), future, context))
        thread.post(self._start_next, thread)
        return future

    def _start_next(self, thread: LoopThread) -> None:
        """Start, in the loop, the first posted item, and pass its outcome to its future."""
        start, future, context = self._posted.popleft()
        if future.cancelled():
            return
        try:
            started = start() if context is None else context.run(start)
        except Exception as error:
            _fulfil(future, None, error)
            return

        def answered(_started: asyncio.Future[Any]) -> None:
            if started.cancelled():
                future.cancel()
            elif (error := started.exception()) is not None:
                _fulfil(future, None, error)
            else:
                _fulfil(future, started.result(), None)

        def given_up(_future: Future[Any]) -> None:
            if future.cancelled():
                thread.post(started.cancel)

        started.add_done_callback(answered)
        future.add_done_callback(given_up)


def _fulfil(future: Future[Any], result: object, error: BaseException | None) -> None:
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except InvalidStateError:
        pass  # Its owner has cancelled it.


class Transaction(Blocking[transactions.Transaction]):
    """A transaction of `martlet.client.sync.Producer`.

    ::

        with producer.transaction() as transaction:
            transaction.publish("orders", b"one")
            transaction.publish("mails", b"two")

    It has the guarantees, arguments and errors of `martlet.client.Transaction`. Several threads may
    add to it.
    """

    def __init__(self, thread: LoopThread, transaction: transactions.Transaction) -> None:
        self._thread = thread
        self._model = transaction

    def _entered(self) -> LoopThread:
        return self._thread

    @property
    def id(self) -> str:
        """The transaction's id."""
        return self._model.id

    @property
    def contribution(self) -> Contribution:
        """The contribution of this process, an argument of `commit` in the committing process."""
        return self._model.contribution

    publish = awaited(transactions.Transaction.publish)
    begin = awaited(transactions.Transaction.begin)
    prepare = awaited(transactions.Transaction.prepare)
    commit = awaited(transactions.Transaction.commit)
    rollback = awaited(transactions.Transaction.rollback)

    def publish_many(
        self, topic: str, messages: Iterable[Sendable], **options: Unpack[MessageKeywords]
    ) -> int:
        """Add messages in order, and return how many once the broker has stored all of them.

        An iterable other than a list or tuple is read in the caller's thread.
        """
        adding = self._model.publish_many(topic, _read_here(messages), **options)
        return self._thread.call(adding)

    def add(
        self, topic: str, messages: Iterable[Sendable], **options: Unpack[MessageKeywords]
    ) -> None:
        """Add messages without waiting: they are sent with the next step, which raises their
        errors.
        """
        self._thread.call(self._add(topic, _read_here(messages), options))

    async def _add(
        self, topic: str, messages: Sequence[Sendable], options: MessageKeywords
    ) -> None:
        self._model.add(topic, messages, **options)

    def __enter__(self) -> Transaction:
        """Begin. Raises as `martlet.client.Transaction` does."""
        self._thread.call(self._model.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.call(self._model.__aexit__(kind, error, trace))


def _read_here(messages: Iterable[Sendable]) -> Sequence[Sendable]:
    return messages if isinstance(messages, (list, tuple)) else list(messages)
