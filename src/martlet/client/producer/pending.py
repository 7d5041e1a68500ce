"""Messages that a producer was given and that have no answer yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from martlet.client.errors import Refused

OrderKey = tuple[str, str]
"""A topic, and an order key in it."""


class SendFields(NamedTuple):
    """How a SEND stores its messages; those with equal fields may share one.

    Attributes:
        deliver_at_ms: when they may be delivered, in milliseconds since 1970; 0 for at once.
        waits: whether the broker answers when they are as safe as its flush mode promises.
        order_key: messages with this key go to one queue, in order.
        queue: the queue's number; None where the broker may choose.
        retries: how often they are sent again; None for no limit.
    """

    deliver_at_ms: int = 0
    waits: bool = True
    order_key: str = ""
    queue: int | None = None
    retries: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The options of a SEND."""
        fields: dict[str, Any] = {}
        if self.deliver_at_ms:
            fields["deliver_at_ms"] = self.deliver_at_ms
        if not self.waits:
            fields["wait"] = False
        if self.queue is not None:
            fields["queue"] = self.queue
        elif self.order_key:
            fields["order_key"] = self.order_key
        return fields


class Extras(NamedTuple):
    """Everything that messages have beside their bodies.

    Attributes:
        timeout_s: how long publishing may take.
        defer_ms: the delay of a DPUB.
        fields: the options of a SEND; None where PUB, MPUB or DPUB carry the messages.
        entries: the packed properties of those that have any, by their numbers.
    """

    timeout_s: float
    defer_ms: int | None = None
    fields: SendFields | None = None
    entries: Sequence[tuple[int, bytes]] = ()


class Trouble:
    """The failures of messages so far.

    Attributes:
        failures: how often they were sent in vain.
        refusals: how many brokers could not store them.
        refusal: the last refusal.
        is_suspect: whether a broker may have hung up because of them: they are sent alone, and
            nothing behind them until they are answered, so that the answer is not lost.
    """

    __slots__ = ("failures", "is_suspect", "refusal", "refusals")

    def __init__(self) -> None:
        self.failures = 0
        self.refusals = 0
        self.refusal: Refused | None = None
        self.is_suspect = False


class PendingPublish:
    """Messages that are published together, and the future of their acknowledgement.

    Attributes:
        topic: their topic.
        bodies: their bodies.
        size_bytes: what they take in a command.
        future: gets the result of the first one; None from a PUB, MPUB or DPUB.
        deadline_s: when to give up, by the event loop's clock.
        order_key: messages of one key go to one broker and never overtake each other.
        extras: what they have beside bodies; None for nothing.
        is_alone: whether they need a command of their own.
        trouble: what has gone wrong with them; None while nothing has.
    """

    __slots__ = (
        "bodies",
        "deadline_s",
        "extras",
        "future",
        "is_alone",
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
        future: asyncio.Future[Any],
        deadline_s: float,
        order_key: OrderKey | None = None,
        extras: Extras | None = None,
    ) -> None:
        self.topic = topic
        self.bodies = bodies
        self.size_bytes = size_bytes
        self.future = future
        self.deadline_s = deadline_s
        self.order_key = order_key
        self.extras = extras
        self.is_alone = extras is not None and extras.defer_ms is not None
        self.trouble: Trouble | None = None

    @property
    def fields(self) -> SendFields | None:
        """The options of the SEND that carries them; None for another command."""
        return None if self.extras is None else self.extras.fields

    @property
    def is_suspect(self) -> bool:
        """Whether a broker may have hung up because of them."""
        return self.trouble is not None and self.trouble.is_suspect

    def failed(self, refusal: Refused | None = None) -> Trouble:
        """Count an attempt in vain: a broker refused them, or was lost before it answered."""
        trouble = self.trouble = self.trouble or Trouble()
        trouble.failures += 1
        if refusal is not None:
            trouble.refusals += 1
            trouble.refusal = refusal
        return trouble

    def fail(self, error: Exception) -> None:
        """Set the error, unless the future is done."""
        if not self.future.done():
            self.future.set_exception(error)
