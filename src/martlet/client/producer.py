"""Publishing: what was answered OK is stored; what was not answered is sent again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from martlet.client.address import Addresses, parse_addresses
from martlet.client.backoff import Backoff
from martlet.client.connection import Connection
from martlet.client.dialer import Dialer
from martlet.client.errors import BadBody, Closed, ConnectFailed, ConnectRefused, PublishTimeout
from martlet.client.identity import Compression, Identity, TlsChoice
from martlet.client.name import check_name
from martlet.client.outbox import Limits, Outbox, Publication
from martlet.protocol.commands import MPUB_EXTRA_BYTES

logger = logging.getLogger("martlet.client")


PIECE_MESSAGES = 20_000
"""The most messages that ``publish_many`` deals with in one turn of the event loop."""
Body = bytes | bytearray | memoryview


class Producer:
    """Publishes messages to a broker, or to the first of several that answers.

    ::

        async with Producer("127.0.0.1:4150") as producer:
            await producer.publish("orders", b"one")

    Many tasks may publish at the same time; what they publish in one turn of the event loop goes in
    one command.  Messages of a topic are stored in the order in which they were published.  While
    no broker can be reached publishing waits, and what was sent and not answered is sent again: so
    a message can be stored twice, but one whose ``publish`` returned is stored.
    """

    def __init__(
        self,
        addresses: Addresses = "127.0.0.1:4150",
        *,
        timeout_s: float = 30.0,
        limits: Limits | None = None,
        backoff: Backoff | None = None,
        connect_timeout_s: float = 5.0,
        identity: Identity | None = None,
        tls: TlsChoice | None = None,
        compression: Compression | None = None,
        auth_secret: str | bytes | None = None,
    ) -> None:
        """Take the settings; nothing is connected before ``async with``.

        Args:
            addresses: where brokers listen, as ``"host:port"``; the first is used while it answers.
            timeout_s: how long a publish may take with everything, connecting again included.
            limits: how much is sent at once and how much may be in flight.
            backoff: how long to wait before connecting again.
            connect_timeout_s: how long one attempt to connect may take.
            identity: what to tell the broker of this client.
            tls, compression, auth_secret: in the place of the identity's; see `Identity`.
        """
        self._limits = limits or Limits()
        self._timeout_s = timeout_s
        self._dialer = Dialer(
            parse_addresses(addresses),
            (identity or Identity()).secured(tls, compression, auth_secret),
            backoff=backoff or Backoff(),
            connect_timeout_s=connect_timeout_s,
        )
        self._outbox = Outbox(self._limits)
        self._outbox.on_done = self._on_done
        self._loop: asyncio.AbstractEventLoop
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._refusal: ConnectRefused | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self._flushing = False
        self._expiry: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Producer:
        """Connect.

        Raises:
            ConnectFailed: no broker answered within the timeout.
            ConnectRefused: brokers did, and will not have this client; see there.
            Closed: it has been connected before; make a new Producer.
        """
        if self._keeper is not None:
            raise Closed("a producer is used once: make a new one")
        self._loop = asyncio.get_running_loop()
        self._keeper = asyncio.create_task(self._keep_connected(), name="martlet producer")
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._connected.wait()
            if self._refusal is not None:
                raise self._refusal
        except BaseException as error:
            await self._stop()
            if isinstance(error, TimeoutError):
                reason = self._dialer.last_error or "no answer"
                raise ConnectFailed(
                    f"no broker within {self._timeout_s:g} s: {reason}"
                ) from self._dialer.last_error
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def publish(self, topic: str, body: Body, *, defer_ms: int | None = None) -> None:
        """Publish a message, and return once the broker has stored it.

        Args:
            topic: the topic's name; the broker creates it if there is none.
            body: the message; not empty.
            defer_ms: deliver it so many milliseconds later.

        Raises:
            InvalidName: no topic may be called that.
            BadBody: the body is empty or too big.
            PublishRefused: the broker answered an error; the message is not stored.
            PublishTimeout: no answer within the timeout; it may be stored.
            ConnectRefused: the broker no longer has this client; it may be stored.
            Closed: the producer has been closed.
        """
        check_name(topic, "topic")
        if defer_ms is not None and defer_ms < 0:
            raise ValueError(f"defer_ms={defer_ms}: nothing can be delivered in the past")
        body = self._check_body(body)
        await self._add(topic, (body,), len(body) + MPUB_EXTRA_BYTES, defer_ms).future

    async def publish_many(self, topic: str, bodies: Iterable[Body]) -> int:
        """Publish messages in order, and return how many once the broker has stored all of them.

        They are sent in pieces that the broker takes, of which each is stored wholly or not at all;
        no more of them are taken from ``bodies`` than may be in flight.

        Raises:
            InvalidName: no topic may be called that.
            BadBody: a body is empty or too big.  Of a list or tuple nothing is published then; of
                another iterable, those before it may be.
            PublishRefused: the broker answered an error to a piece; others may be stored.
            PublishTimeout: no answer to a piece within the timeout; it and others may be stored.
            ConnectRefused: the broker no longer has this client; some may be stored.
            Closed: the producer has been closed.
        """
        check_name(topic, "topic")
        if isinstance(bodies, (list, tuple)):
            checked: Iterable[bytes] = await self._check_bodies(bodies)
        else:
            checked = map(self._check_body, bodies)
        count = 0
        size_bytes = 0
        sent: deque[Publication] = deque()
        try:
            for piece, piece_bytes in self._pieces(checked):
                sent.append(self._add(topic, piece, piece_bytes))
                count += len(piece)
                size_bytes += piece_bytes
                await asyncio.sleep(0)  # It is sent while the next is cut.
                while size_bytes > self._limits.max_in_flight_bytes and len(sent) > 1:
                    size_bytes -= sent[0].size_bytes
                    await sent[0].future
                    sent.popleft()
            while sent:
                await sent[0].future
                sent.popleft()
        except BaseException:
            # The others' outcome is told by nobody; let none of it be sent that has not been.
            for publication in sent:
                if not publication.future.cancel() and not publication.future.cancelled():
                    publication.future.exception()
            raise
        return count

    def _pieces(self, bodies: Iterable[bytes]) -> Iterator[tuple[list[bytes], int]]:
        """Cut the bodies into what one command takes."""
        piece: list[bytes] = []
        piece_bytes = 0
        most_bytes = self._limits.command_bytes
        most = min(self._limits.max_in_flight_messages, PIECE_MESSAGES)
        for body in bodies:
            size_bytes = len(body) + MPUB_EXTRA_BYTES
            if piece and (piece_bytes + size_bytes > most_bytes or len(piece) >= most):
                yield piece, piece_bytes
                piece, piece_bytes = [], 0
            piece.append(body)
            piece_bytes += size_bytes
        if piece:
            yield piece, piece_bytes

    async def _check_bodies(self, bodies: Sequence[Body]) -> list[bytes]:
        """Check all of them, without holding up the event loop however many there are."""
        most_bytes = self._limits.max_message_bytes
        checked: list[bytes] = []
        for start in range(0, len(bodies), PIECE_MESSAGES):
            part: Any = bodies[start : start + PIECE_MESSAGES]
            are_bytes = set(map(type, part)) == {bytes}
            if not (are_bytes and 0 < min(map(len, part)) <= max(map(len, part)) <= most_bytes):
                part = map(self._check_body, part)
            checked += part
            await asyncio.sleep(0)
        return checked

    def _check_body(self, body: Body) -> bytes:
        if type(body) is not bytes:
            if not isinstance(body, (bytes, bytearray, memoryview)):
                raise TypeError(f"a body is bytes, not {type(body).__name__}: encode it first")
            body = bytes(body)
        if not 0 < len(body) <= self._limits.max_message_bytes:
            if not body:
                raise BadBody("the body is empty, and NSQ has no empty messages")
            raise BadBody(
                f"a body of {len(body)} bytes is above max_message_bytes="
                f"{self._limits.max_message_bytes}; if the broker's --max-msg-size is higher,"
                " say so by limits=Limits(max_message_bytes=...)"
            )
        return body

    def _add(
        self,
        topic: str,
        bodies: tuple[bytes] | list[bytes],
        size_bytes: int,
        defer_ms: int | None = None,
    ) -> Publication:
        if self._closed or self._keeper is None:
            raise Closed(
                "the producer has been closed" if self._closed else "use 'async with Producer(...)'"
            )
        if self._refusal is not None:
            raise self._refusal
        loop = self._loop
        deadline_s = loop.time() + self._timeout_s
        publication = Publication(
            topic,
            bodies,
            size_bytes,
            loop.create_future(),
            deadline_s=deadline_s,
            defer_ms=defer_ms,
        )
        self._outbox.add(publication)
        if self._expiry is None:
            self._expiry = loop.call_at(deadline_s, self._expire)
        self._flush_soon()
        return publication

    async def close(self) -> None:
        """Wait until all that is published has been answered, or its timeout, and hang up."""
        self._closed = True
        try:
            unanswered = [publication.future for publication in self._outbox.unanswered()]
            if unanswered and self._keeper is not None and not self._keeper.done():
                await asyncio.wait(unanswered)
        finally:
            await self._stop()

    async def _stop(self) -> None:
        self._closed = True
        for publication in self._outbox.unanswered():
            publication.fail(Closed("the producer was closed before the broker answered"))
        if self._expiry is not None:
            self._expiry.cancel()
        connection, self._connection = self._connection, None
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if connection is not None:
            connection.close()
            await connection.wait_lost()

    # Sending.

    def _flush_soon(self) -> None:
        """Send what waits at the end of this turn."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        connection = self._connection
        if connection is None or not connection.is_alive or not connection.can_write:
            return  # A new connection, or the next answer, flushes again.
        for shipment in self._outbox.pack():
            connection.send(shipment.command(), shipment)

    def _on_done(self) -> None:
        self._dialer.succeeded()
        if self._outbox.is_waiting:
            self._flush_soon()

    def _expire(self) -> None:
        """Give up what is too late, and look again when the next will be."""
        now_s = self._loop.time()
        next_s: float | None = None
        for publication in list(self._outbox.unanswered()):
            if publication.deadline_s <= now_s:
                connection = self._connection
                reason = (
                    f"{connection.address} did not answer"
                    if connection is not None
                    else f"no connection: {self._dialer.last_error}"
                )
                publication.fail(
                    PublishTimeout(f"not published in {self._timeout_s:g} s: {reason}")
                )
            elif next_s is None or publication.deadline_s < next_s:
                next_s = publication.deadline_s
        self._outbox.forget_settled()
        self._expiry = None if next_s is None else self._loop.call_at(next_s, self._expire)

    async def _keep_connected(self) -> None:
        while True:
            try:
                connection = await self._dialer.dial()
            except ConnectRefused as refusal:
                self._refusal = refusal
                for publication in list(self._outbox.unanswered()):
                    publication.fail(refusal)
                self._connected.set()
                return
            self._connection = connection
            self._connected.set()
            self._flush_soon()
            error = await connection.wait_lost()
            self._connection = None
            self._dialer.lost(error)
            count = self._outbox.put_back()
            if count:
                logger.info("%d messages were not answered and will be sent again", count)
