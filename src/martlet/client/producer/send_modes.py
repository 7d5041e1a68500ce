"""Send modes: the result, a future or a callback, or no answer at all; at Martlet brokers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial

from martlet.client.hooks import Hooks, Publishing
from martlet.client.names import check_name
from martlet.client.producer.limits import Limits
from martlet.client.producer.message import (
    Sendable,
    SendOptions,
    SharedProperties,
    cut,
    deliver_at_ms,
    prepared,
    taken_apart,
)
from martlet.client.producer.result import SendResult, SendResults
from martlet.client.producer.send_batch import PendingSend
from martlet.client.producer.sender import Sender
from martlet.protocol.nsq.commands import MPUB_EXTRA_BYTES

_AHEAD = 8
"""How many pieces of many messages may be on their way while the next is taken."""


class SendModes(ABC):
    """What a producer can do at Martlet brokers."""

    _sender: Sender
    _limits: Limits
    _hooks: Hooks | None
    _loop: asyncio.AbstractEventLoop
    _send_timeout_s: float
    _send_retries: int | None

    @abstractmethod
    def _check_open(self) -> None:
        """Raise if nothing can be published."""

    @abstractmethod
    def _check_room(self, message_count: int, size_bytes: int) -> None:
        """Raise ``ProducerFull`` if so much more may not be published now."""

    async def send(
        self,
        topic: str,
        message: Sendable,
        *,
        tag: str = "",
        keys: Iterable[str] | str = (),
        headers: Mapping[str, str] | None = None,
        order_key: str = "",
        queue: int | None = None,
        deliver_at: datetime | float | None = None,
        wait_store_ok: bool = True,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send a message to a Martlet broker, and return where it is stored.

        What has no answer is sent again, ``send_retries`` times and within ``send_timeout_s``, and
        is stored exactly once all the same, unless the producer has ``idempotent=False`` or the
        message was tried at another broker.

        Args:
            topic: the topic's name; the broker creates it if there is none. message: the body; or
            an `Outgoing`, or whatever has a body and properties, such as a
                message that was received.
            tag: one word, by which consumers choose what they want.
            keys: by which people look for the message.
            headers: the application's own.
            order_key: messages of the topic with this key go to one queue, in order.
            queue: the number of the queue it is to go to.
            deliver_at: when it may be delivered, with a time zone, or in seconds since 1970.
            wait_store_ok: False for an answer once the broker has written it, though its flush
                mode would have others wait for the disk.
            timeout_s: how long all that may take, in the place of the producer's.

        Raises:
            NotSupported: the broker is no Martlet broker.
            InvalidName, BadBody: no topic may be called that, no message be that.
            BadProperties: nor have such properties.
            PublishRefused: the broker has not stored it, and says why.
            PublishTimeout, PublishLost: no answer in time, or as often as it was tried; it may be
                stored.
            PublishUnclear: nobody knows whether it is.
            Closed: the producer has been closed.
        """
        return await self._start(
            topic,
            (message,),
            SharedProperties.of(tag, keys, headers, order_key),
            SendOptions(
                deliver_at_ms(deliver_at), wait_store_ok, order_key, queue, self._send_retries
            ),
            timeout_s or self._send_timeout_s,
        )

    def send_async(
        self,
        topic: str,
        message: Sendable,
        *,
        tag: str = "",
        keys: Iterable[str] | str = (),
        headers: Mapping[str, str] | None = None,
        order_key: str = "",
        queue: int | None = None,
        deliver_at: datetime | float | None = None,
        wait_store_ok: bool = True,
        timeout_s: float | None = None,
        on_result: Callable[[SendResult], object] | None = None,
        on_error: Callable[[BaseException], object] | None = None,
    ) -> asyncio.Future[SendResult]:
        """Send a message without waiting, and return the future of what `send` returns or raises.

        The arguments are those of `send`, and two functions, of which one is called in the event
        loop: with the result, or with what went wrong.

        Raises:
            ProducerFull: too much is sent and not answered, as for ``submit``.
            InvalidName, BadBody, BadProperties, Closed: as `send`.
        """
        body, _ = taken_apart(message, self._limits.max_message_bytes)
        self._check_room(1, len(body) + MPUB_EXTRA_BYTES)
        future = self._start(
            topic,
            (message,),
            SharedProperties.of(tag, keys, headers, order_key),
            SendOptions(
                deliver_at_ms(deliver_at), wait_store_ok, order_key, queue, self._send_retries
            ),
            timeout_s or self._send_timeout_s,
        )
        if on_result is not None or on_error is not None:
            future.add_done_callback(partial(_call_back, on_result, on_error))
        return future

    async def send_many(
        self,
        topic: str,
        messages: Iterable[Sendable],
        *,
        tag: str = "",
        keys: Iterable[str] | str = (),
        headers: Mapping[str, str] | None = None,
        order_key: str = "",
        queue: int | None = None,
        deliver_at: datetime | float | None = None,
        wait_store_ok: bool = True,
        timeout_s: float | None = None,
    ) -> Sequence[SendResult]:
        """Send messages in order, and return where each is stored.

        They go in pieces that the broker takes, of which each is stored wholly or not at all, and
        each in one queue.  What is given beside them is for each that has none of its own.

        Raises:
            As `send`; some of them may be stored then.
        """
        options = SendOptions(
            deliver_at_ms(deliver_at), wait_store_ok, order_key, queue, self._send_retries
        )
        also = SharedProperties.of(tag, keys, headers, order_key)
        results = SendResults()
        sent: deque[tuple[int, asyncio.Future[SendResult]]] = deque()
        try:
            for piece in cut(messages, self._limits.command_bytes):
                future = self._start(topic, piece, also, options, timeout_s or self._send_timeout_s)
                sent.append((len(piece), future))
                await asyncio.sleep(0)
                while len(sent) > _AHEAD:
                    results.add(sent[0][0], await sent[0][1])
                    sent.popleft()
            while sent:
                results.add(sent[0][0], await sent[0][1])
                sent.popleft()
        except BaseException:
            for _, future in sent:
                if not future.cancel() and not future.cancelled():
                    future.exception()
            raise
        return results

    def send_oneway(
        self,
        topic: str,
        message: Sendable,
        *,
        tag: str = "",
        keys: Iterable[str] | str = (),
        headers: Mapping[str, str] | None = None,
        order_key: str = "",
        queue: int | None = None,
        deliver_at: datetime | float | None = None,
    ) -> None:
        """Send a message once, and hear no more of it: it may be lost.

        What the broker does not like about it stands in the broker's log alone.

        Raises:
            ConnectionLost: no broker is connected; nothing was sent.
            ProducerFull: the broker does not read as fast as messages are sent to it; nothing was
                sent.
            NotSupported, InvalidName, BadBody, BadProperties, Closed: as `send`.
        """
        sending = self._sending(
            topic,
            (message,),
            SharedProperties.of(tag, keys, headers, order_key),
            SendOptions(deliver_at_ms(deliver_at), False, order_key, queue, 0),
            0.0,
        )
        self._sender.send_oneway(sending)

    def _start(
        self,
        topic: str,
        messages: Sequence[Sendable],
        also: SharedProperties,
        options: SendOptions,
        timeout_s: float,
    ) -> asyncio.Future[SendResult]:
        sending = self._sending(topic, messages, also, options, timeout_s)
        hooks = self._hooks
        if hooks is not None:
            bodies = sending.bodies
            call = hooks.begin(Publishing(topic, len(bodies), sum(map(len, bodies))))
            sending.future.add_done_callback(partial(hooks.ended, call))
        self._sender.add(sending)
        return sending.future

    def _sending(
        self,
        topic: str,
        messages: Sequence[Sendable],
        also: SharedProperties,
        options: SendOptions,
        timeout_s: float,
    ) -> PendingSend:
        check_name(topic, "topic")
        self._check_open()
        if timeout_s < 0:
            raise ValueError(f"timeout_s={timeout_s} must be above 0")
        bodies, entries, size_bytes = prepared(messages, also, self._limits.max_message_bytes)
        loop = self._loop
        future: asyncio.Future[SendResult] = loop.create_future()
        deadline_s = loop.time() + timeout_s
        return PendingSend(topic, bodies, entries, options, size_bytes, future, deadline_s)


def _call_back(
    on_result: Callable[[SendResult], object] | None,
    on_error: Callable[[BaseException], object] | None,
    future: asyncio.Future[SendResult],
) -> None:
    error = asyncio.CancelledError() if future.cancelled() else future.exception()
    if error is None and on_result is not None:
        on_result(future.result())
    elif error is not None and on_error is not None:
        on_error(error)
