"""What is sent to a Martlet broker: a body, what it carries beside it, and how it is to be sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from martlet.client.body import Body, check_body
from martlet.properties import NONE, Properties


class Outgoing(NamedTuple):
    """A message to be sent.

    Attributes:
        body: not empty.
        properties: what it carries: a tag, keys, headers, an order key.
    """

    body: Body
    properties: Properties = NONE


class MessageLike(Protocol):
    """Anything with a body and properties, such as a message that was received."""

    @property
    def body(self) -> Body:
        """The body."""

    @property
    def properties(self) -> Properties:
        """What it carries."""


Sendable = Body | MessageLike


class SendOptions(NamedTuple):
    """How messages are to be sent; those with equal options may go together.

    Attributes:
        deliver_at_ms: when they may be delivered, in milliseconds since 1970; 0 for at once.
        waits: whether they are answered when they are as safe as the broker's flush mode promises.
        order_key: messages with this key go to one queue, in order.
        queue: the queue's number; None where the broker may choose.
        retries: how often they are sent again; None for as often as there is time for.
    """

    deliver_at_ms: int = 0
    waits: bool = True
    order_key: str = ""
    queue: int | None = None
    retries: int | None = None

    def told(self) -> dict[str, Any]:
        """As SEND tells them."""
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


def deliver_at_ms(deliver_at: datetime | float | None) -> int:
    """A time as milliseconds since 1970; 0 for none.

    Raises:
        ValueError: it has no time zone, or is before 1970.
    """
    if deliver_at is None:
        return 0
    if isinstance(deliver_at, datetime):
        if deliver_at.tzinfo is None:
            raise ValueError(f"deliver_at={deliver_at}: a time needs a time zone, such as {UTC}")
        deliver_at = deliver_at.timestamp()
    if deliver_at <= 0:
        raise ValueError(f"deliver_at={deliver_at}: seconds since 1970, or a datetime")
    return round(deliver_at * 1000)


def with_properties(
    properties: Properties,
    tag: str,
    keys: Iterable[str] | str,
    headers: Mapping[str, str] | None,
    order_key: str,
) -> bytes:
    """Properties, packed, of which these are set in the place of what there is.

    What the broker had noted of a message that was received is left out.

    Raises:
        BadProperties: no message may have them.
    """
    return Properties(
        tag or properties.tag,
        ((keys,) if isinstance(keys, str) else tuple(keys)) or properties.keys,
        headers if headers is not None else properties.headers,
        order_key or properties.order_key,
    ).pack()


def body_of(message: Sendable) -> Body:
    """The body of a message, which may be nothing but that."""
    return message if isinstance(message, (bytes, bytearray, memoryview)) else message.body


def taken_apart(message: Sendable, most_bytes: int) -> tuple[bytes, Properties]:
    """The body of a message, and what it carries.

    Raises:
        BadBody: the body is empty or too big.
        TypeError: it is no message.
    """
    if isinstance(message, (bytes, bytearray, memoryview)):
        return check_body(message, most_bytes), NONE
    properties = getattr(message, "properties", None)
    if not isinstance(properties, Properties):
        raise TypeError(
            f"a message is bytes, or has a body and properties, not {type(message).__name__}"
        )
    return check_body(message.body, most_bytes), properties
