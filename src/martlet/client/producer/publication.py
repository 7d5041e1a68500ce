"""What is published: bodies with the future of their OK, and the shipments that carry them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from martlet.client.errors import ConnectionLost, PublishUnclear, Refused
from martlet.protocol.nsq import commands

if TYPE_CHECKING:
    from martlet.client.producer.accumulator import Accumulator
    from martlet.client.producer.in_flight import InFlightQueue

_OK = b"OK"
OrderKey = tuple[str, str | bytes]
"""A topic and what else the messages have in common that are to stay in order."""


class PublishTrouble:
    """What has gone wrong with a publication so far.

    Attributes:
        failures: how often it was sent in vain.
        refusals: how many brokers could not store it.
        refusal: what the last of these said.
        is_suspect: whether a broker may have hung up because of it: it is sent alone, and nothing
            behind it until it is answered, so that the answer that says so is not lost.
    """

    __slots__ = ("failures", "is_suspect", "refusal", "refusals")

    def __init__(self) -> None:
        self.failures = 0
        self.refusals = 0
        self.refusal: Refused | None = None
        self.is_suspect = False


class PendingPublish:
    """Bodies that are published together, and the future of their OK.

    Attributes:
        size_bytes: what the bodies take in an MPUB.
        deadline_s: when to give up, by the event loop's clock.
        order_key: messages of one key go to one broker and never overtake each other.
        alone: whether it has to be sent in a command of its own.
        trouble: what has gone wrong with it; None while nothing has.
    """

    __slots__ = (
        "alone",
        "bodies",
        "deadline_s",
        "defer_ms",
        "future",
        "order_key",
        "size_bytes",
        "topic",
        "trouble",
    )

    def __init__(
        self,
        topic: str,
        bodies: Sequence[bytes],
        size_bytes: int,
        future: asyncio.Future[None],
        *,
        deadline_s: float,
        defer_ms: int | None = None,
        order_key: OrderKey | None = None,
    ) -> None:
        self.topic = topic
        self.bodies = bodies
        self.size_bytes = size_bytes
        self.future = future
        self.deadline_s = deadline_s
        self.defer_ms = defer_ms
        self.order_key = order_key
        self.alone = defer_ms is not None
        self.trouble: PublishTrouble | None = None

    @property
    def is_suspect(self) -> bool:
        """Whether a broker may have hung up because of it."""
        return self.trouble is not None and self.trouble.is_suspect

    def failed(self, refusal: Refused | None = None) -> PublishTrouble:
        """It was sent in vain; a broker refused it, or was lost before it answered."""
        trouble = self.trouble = self.trouble or PublishTrouble()
        trouble.failures += 1
        if refusal is not None:
            trouble.refusals += 1
            trouble.refusal = refusal
        return trouble

    def fail(self, error: Exception) -> None:
        """Tell whoever waits for the OK, if somebody still does."""
        if not self.future.done():
            self.future.set_exception(error)


class PublishBatch:
    """Publications that go to a broker as one command, and get its one answer.

    Attributes:
        lane: the broker's.
        is_refused: whether the broker has said that it did not store it.
    """

    __slots__ = ("_outbox", "is_refused", "lane", "message_count", "publications", "size_bytes")

    def __init__(
        self, outbox: Accumulator, lane: InFlightQueue, publication: PendingPublish
    ) -> None:
        self._outbox = outbox
        self.lane = lane
        self.publications = [publication]
        self.message_count = len(publication.bodies)
        self.size_bytes = publication.size_bytes
        self.is_refused = False

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
        """The broker has stored it.

        Raises:
            PublishUnclear: it says something other than OK; whoever waits is told, and nothing that
                it says from now on can be relied upon.
        """
        if data != _OK:
            name = self.lane.name
            error = PublishUnclear(f"{name} answered a publish with {data[:80]!r} instead of OK")
            self._outbox.lost_track(self, error)
            raise error
        for publication in self.publications:
            if not publication.future.done():
                publication.future.set_result(None)
        self._outbox.settle(self, True)

    def refused(self, error: Refused) -> None:
        """The broker has not stored it, and hangs up."""
        self._outbox.refused(self, error)

    def lost(self, error: ConnectionLost) -> None:
        """Nobody knows whether the broker has stored it: it is put back and sent again."""
