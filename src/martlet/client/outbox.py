"""What is published and not answered yet: waiting to be sent, or sent and in flight.

::

    publish -> waiting -> pack -> in flight -> OK: done
                  ^                   |
                  +---- put_back -----+   the connection was lost: sent again, in the same order

Whatever waits for a topic when there is room to send goes as one command: what was published in one
turn of the event loop, or while the broker was slow or away.  So a single publish is not delayed,
and many at once cost what one costs.  Nothing here touches a socket or a clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from martlet.client.errors import ConnectionLost, PublishRefused, Refused
from martlet.protocol import commands

MAY_BE_ANOTHERS_FAULT = frozenset({"E_BAD_MESSAGE", "E_BAD_BODY"})
"""Errors of one message for which the broker refuses all that came in the same command."""
MAY_PASS = "E_AUTH_FAILED"
"""The auth server cannot be asked just now: nothing is wrong with what was published."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much is sent at once, and how much may be in flight.

    Attributes:
        max_message_bytes: the broker's ``--max-msg-size``.
        max_body_bytes: the broker's ``--max-body-size``, which limits an MPUB.
        max_in_flight_messages: messages sent and not answered.
        max_in_flight_bytes: their bytes.
    """

    max_message_bytes: int = 1024 * 1024
    max_body_bytes: int = 5 * 1024 * 1024
    max_in_flight_messages: int = 100_000
    max_in_flight_bytes: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: 1 is the least")

    @property
    def command_bytes(self) -> int:
        """The most that one command carries: smaller pieces than the broker takes, so that it
        stores one while the next is on the way.
        """
        return min(self.max_body_bytes - commands.MPUB_EXTRA_BYTES, 512 * 1024)


class Publication:
    """Bodies that are published together, and the future of their OK.

    Attributes:
        size_bytes: what the bodies take in an MPUB.
        deadline_s: when to give up, by the event loop's clock.
        alone: whether it has to be sent in a command of its own.
    """

    __slots__ = ("alone", "bodies", "deadline_s", "defer_ms", "future", "size_bytes", "topic")

    def __init__(
        self,
        topic: str,
        bodies: Sequence[bytes],
        size_bytes: int,
        future: asyncio.Future[None],
        *,
        deadline_s: float,
        defer_ms: int | None = None,
    ) -> None:
        self.topic = topic
        self.bodies = bodies
        self.size_bytes = size_bytes
        self.future = future
        self.deadline_s = deadline_s
        self.defer_ms = defer_ms
        self.alone = defer_ms is not None

    def fail(self, error: Exception) -> None:
        """Tell whoever waits for the OK, if somebody still does."""
        if not self.future.done():
            self.future.set_exception(error)


class Shipment:
    """Publications that go to the broker as one command, and get its one answer."""

    __slots__ = ("_outbox", "message_count", "publications", "size_bytes")

    def __init__(self, outbox: Outbox, publication: Publication) -> None:
        self._outbox = outbox
        self.publications = [publication]
        self.message_count = len(publication.bodies)
        self.size_bytes = publication.size_bytes

    def add(self, publication: Publication) -> None:
        """Let this one come along."""
        self.publications.append(publication)
        self.message_count += len(publication.bodies)
        self.size_bytes += publication.size_bytes

    def command(self) -> bytes:
        """The command's bytes."""
        publications = self.publications
        first = publications[0]
        if len(publications) == 1:
            if first.defer_ms is not None:
                return commands.publish_deferred(first.topic, first.bodies[0], first.defer_ms)
            if len(first.bodies) == 1:
                return commands.publish(first.topic, first.bodies[0])
            return commands.publish_many(first.topic, first.bodies)
        bodies = list(chain.from_iterable([each.bodies for each in publications]))
        return commands.publish_many(first.topic, bodies)

    def answered(self, data: bytes) -> None:
        """The broker has stored it."""
        for publication in self.publications:
            if not publication.future.done():
                publication.future.set_result(None)
        self._outbox.done(self)

    def refused(self, error: Refused) -> None:
        """The broker has not stored it, and hangs up."""
        if error.code == MAY_PASS:
            return  # They are put back too.
        if len(self.publications) > 1 and error.code in MAY_BE_ANOTHERS_FAULT:
            # They stay in flight, and are put back when the connection is gone.
            for publication in self.publications:
                publication.alone = True
            return
        for publication in self.publications:
            publication.fail(PublishRefused(error.code, error.text))
        self._outbox.done(self)

    def lost(self, error: ConnectionLost) -> None:
        """Nobody knows whether the broker has stored it: it is put back and sent again."""


class Outbox:
    """The publications that wait, and those in flight.

    Attributes:
        on_done: called when the broker has answered.
    """

    def __init__(self, limits: Limits) -> None:
        self.on_done: Callable[[], None] = lambda: None
        self._limits = limits
        self._waiting: deque[Publication] = deque()
        self._in_flight: deque[Shipment] = deque()
        self._in_flight_messages = 0
        self._in_flight_bytes = 0
        self._cautious = False

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self._waiting)

    def add(self, publication: Publication) -> None:
        """Publish this."""
        self._waiting.append(publication)

    def unanswered(self) -> Iterator[Publication]:
        """All that have no answer yet, oldest first."""
        for shipment in self._in_flight:
            yield from (each for each in shipment.publications if not each.future.done())
        yield from (each for each in self._waiting if not each.future.done())

    def forget_settled(self) -> None:
        """Let go of what waits and whose time ran out, or that was cancelled."""
        self._waiting = deque(each for each in self._waiting if not each.future.done())

    def pack(self) -> list[Shipment]:
        """Take what may be sent now; the caller sends it in this order."""
        limits = self._limits
        waiting = self._waiting
        packed: list[Shipment] = []
        growing: dict[str, Shipment] = {}
        most = limits.command_bytes
        while waiting:
            if self._cautious and (packed or self._in_flight):
                break
            publication = waiting[0]
            if publication.future.done():
                waiting.popleft()  # Cancelled, or too late.
                continue
            if self._is_full(publication):
                break
            waiting.popleft()
            self._in_flight_messages += len(publication.bodies)
            self._in_flight_bytes += publication.size_bytes
            shipment = growing.get(publication.topic)
            if (
                shipment is not None
                and not publication.alone
                and shipment.size_bytes + publication.size_bytes <= most
            ):
                shipment.add(publication)
                continue
            shipment = Shipment(self, publication)
            packed.append(shipment)
            if publication.alone:
                growing.pop(publication.topic, None)
            else:
                growing[publication.topic] = shipment
        self._in_flight.extend(packed)
        return packed

    def _is_full(self, publication: Publication) -> bool:
        """Whether this has to wait for an answer first; with nothing in flight, nothing has."""
        limits = self._limits
        return self._in_flight_bytes > 0 and (
            self._in_flight_bytes + publication.size_bytes > limits.max_in_flight_bytes
            or self._in_flight_messages + len(publication.bodies) > limits.max_in_flight_messages
        )

    def done(self, shipment: Shipment) -> None:
        """The broker has answered the oldest shipment."""
        oldest = self._in_flight.popleft()
        assert oldest is shipment
        self._in_flight_messages -= shipment.message_count
        self._in_flight_bytes -= shipment.size_bytes
        self._cautious = False
        self.on_done()

    def put_back(self) -> int:
        """The connection is gone: what was in flight waits again, before everything else.

        Returns how many messages that are.  The first of it is sent by itself: if the broker hung
        up because of it, the answer that says so is not lost among others.
        """
        count = self._in_flight_messages
        publications = [each for shipment in self._in_flight for each in shipment.publications]
        self._waiting.extendleft(reversed(publications))
        self._cautious = bool(publications)
        self._in_flight.clear()
        self._in_flight_messages = 0
        self._in_flight_bytes = 0
        return count
