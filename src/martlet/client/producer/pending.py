"""A producer's unanswered messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from martlet.client.errors import Refused
from martlet.properties.model import NORMAL_PRIORITY, TextOrBytes, order_key_json

OrderKey = tuple[str, str]
"""A topic, and an order key in it."""


class SendFields(NamedTuple):
    """The options of a SEND; messages with equal fields may share one."""

    deliver_at_ms: int = 0
    """The delivery time, in milliseconds since 1970; 0 for now."""
    waits: bool = True
    """Whether the broker answers only when its flush mode's promise holds."""
    order_key: TextOrBytes = ""
    """Messages with this key go to one queue, in order."""
    queue: int | None = None
    """The queue's number; None if the broker may choose."""
    retries: int | None = None
    """The number of retries; None for no limit."""
    priority: int = NORMAL_PRIORITY

    def to_json(self) -> dict[str, Any]:
        """Return the options of a SEND."""
        fields: dict[str, Any] = {}
        if self.deliver_at_ms:
            fields["deliver_at_ms"] = self.deliver_at_ms
        if not self.waits:
            fields["wait"] = False
        if self.queue is not None:
            fields["queue"] = self.queue
        else:
            fields |= order_key_json(self.order_key)
        if self.priority != NORMAL_PRIORITY:
            fields["priority"] = self.priority
        return fields


class Extras(NamedTuple):
    """The extras of messages, beside their bodies."""

    timeout_s: float
    """The time limit of publishing."""
    defer_ms: int | None = None
    fields: SendFields | None = None
    """The options of a SEND; None for PUB, MPUB or DPUB."""
    entries: Sequence[bytes] = ()
    """The packed properties of each, empty for one without; nothing if none has any."""


@dataclass(eq=False, slots=True)
class Trouble:
    """The failed tries of messages so far."""

    failures: int = 0
    refusals: int = 0
    """The number of brokers that could not store them."""
    refusal: Refused | None = None
    """The last of these."""
    is_suspect: bool = False
    """Whether a broker may have closed the connection because of them: they are sent alone, and
    nothing after them until they are answered, so that the answer is not lost.
    """


class PendingPublish:
    """Messages published together, and the future of their acknowledgement.

    Attributes:
        future: gets the result of the first one; None from a PUB, MPUB or DPUB.
        deadline_s: when they time out, by the event loop's clock.
        order_key: messages of one key go to one broker and never overtake each other.
        is_alone: whether they need a command of their own.
        trouble: their failed tries; None for none.
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
        """The options of their SEND; None for another command."""
        return None if self.extras is None else self.extras.fields

    @property
    def is_suspect(self) -> bool:
        """Whether a broker may have closed the connection because of them."""
        return self.trouble is not None and self.trouble.is_suspect

    def failed(self, refusal: Refused | None = None) -> Trouble:
        """Count a failed try: a broker refused them, or was lost before it answered."""
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
