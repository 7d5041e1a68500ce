"""The request method of a producer."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Unpack

from martlet.client.errors import RequestTimeout
from martlet.client.hooks import Hooks, Requesting
from martlet.client.names import check_name
from martlet.client.producer.broker_pool import BrokerPool
from martlet.client.producer.limits import Limits
from martlet.client.producer.message import Sendable
from martlet.client.producer.options import SendKeywords, SendOptions, options_of
from martlet.client.requests.headers import CORRELATION_ID, REPLY_TO, check_headers
from martlet.client.requests.requester import Reply, Requester

REQUEST_TIMEOUT_S = 5.0


class ProducerRequests(ABC):
    """Send requests, and get their replies."""

    _pool: BrokerPool
    _limits: Limits
    _hooks: Hooks | None
    _requester: Requester | None

    @abstractmethod
    def _check_open(self) -> None:
        """Raise if nothing can be published."""

    @abstractmethod
    def _send_until(
        self, topic: str, message: Sendable, options: SendOptions, timeout_s: float
    ) -> asyncio.Future[Any]:
        """Send a message, with retries up to a time limit."""

    async def request(
        self, topic: str, message: Sendable, **options: Unpack[SendKeywords]
    ) -> Reply:
        """Send a request, and return the reply of the consumer that handled it.

        ::

            reply = await producer.request("resize", b"cat.jpg", timeout_s=5)
            print(reply.body)

        Any consumer of the topic replies by ``message.reply(body)``. The request is stored like any
        message: if its consumer dies, another one gets it. It needs a Martlet broker.

        Args:
            topic, message: as of ``send``.
            options: those of `SendOptions`; ``timeout_s``, 5 s by default, limits all of it.

        Raises:
            RequestFailed: the handler raised an error, as the text says. RequestTimeout: no reply
            within the timeout; the request may be handled, or be handled later. ProducerFull: too
            many requests wait (``Limits.max_waiting_requests``). SubscribeRefused: the broker does
            not let this client have replies. ValueError: the headers are those of replies, or the
            message is to be delivered later. NotSupported, InvalidName, BadBody, BadProperties,
            PublishRefused, ConnectRefused, Closed: as ``send``.
        """
        chosen = options_of("request", options)
        if chosen.defer_ms is not None or chosen.deliver_at is not None:
            raise ValueError("a request is delivered at once: leave out defer_ms and deliver_at")
        timeout_s = REQUEST_TIMEOUT_S if chosen.timeout_s is None else chosen.timeout_s
        if not timeout_s > 0:
            raise ValueError(f"timeout_s={timeout_s} must be above 0")
        check_name(topic, "topic")
        self._check_open()
        if chosen.headers is None:
            chosen.headers = getattr(getattr(message, "properties", None), "headers", None)
        check_headers(chosen.headers)
        if self._hooks is None:
            return await self._request(topic, message, chosen, timeout_s)
        with self._hooks.requested(Requesting(topic, message)) as call:
            call.reply = await self._request(topic, message, chosen, timeout_s)
        return call.reply

    async def _request(
        self, topic: str, message: Sendable, options: SendOptions, timeout_s: float
    ) -> Reply:
        requester = self._requester or self._begin_requests()
        correlation_id, reply = requester.begin()
        options.headers = {
            **(options.headers or {}),
            REPLY_TO: requester.topic,
            CORRELATION_ID: correlation_id,
        }
        stored: asyncio.Future[Any] | None = None
        try:
            stored = self._send_until(topic, message, options, timeout_s)

            def on_stored(stored: asyncio.Future[Any]) -> None:
                if not stored.cancelled() and (error := stored.exception()) and not reply.done():
                    reply.set_exception(error)

            stored.add_done_callback(on_stored)
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError as error:
            # Either this ends first, or the send, whose time limit is the same.
            raise RequestTimeout(self._timeout_text(topic, timeout_s, stored)) from error
        finally:
            requester.end(correlation_id)
            if stored is not None:
                stored.cancel()  # What was not sent is withdrawn.

    def _timeout_text(
        self, topic: str, timeout_s: float, stored: asyncio.Future[Any] | None
    ) -> str:
        if stored is None or not stored.done() or stored.exception() is not None:
            return (
                f"the request to topic {topic!r} has no answer of a broker within {timeout_s:g} s:"
                f" {self._pool.trouble}; it may be stored"
            )
        return (
            f"no reply from a consumer of topic {topic!r} within {timeout_s:g} s: the request is"
            f" stored at {stored.result().broker}, and a consumer may handle it yet. Check that one"
            " consumes the topic, and that it replies to each request"
        )

    def _begin_requests(self) -> Requester:
        """Subscribe to the reply topic at all brokers, now and when they are connected."""
        requester = self._requester = Requester(self._limits.max_waiting_requests)
        self._pool.on_connected.append(requester.connected)
        for link in self._pool.links:
            if link.connection is not None:
                requester.connected(link.connection)
        return requester
