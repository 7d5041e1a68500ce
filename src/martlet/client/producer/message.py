"""What is sent to a Martlet broker: a body, what it carries beside it, and how it is to be sent."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, islice
from numbers import Real
from typing import Any, NamedTuple, Protocol, cast

from martlet.client.producer.body import Body, check_body
from martlet.properties.model import NONE, Properties
from martlet.protocol.nsq.commands import MPUB_EXTRA_BYTES

_LOOK_AT = 20_000
"""The most messages that go together."""


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

    def to_json(self) -> dict[str, Any]:
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
    told: object = deliver_at
    if not isinstance(told, Real) or deliver_at <= 0:
        raise ValueError(f"deliver_at={deliver_at}: seconds since 1970, or a datetime")
    return round(deliver_at * 1000)


class SharedProperties(NamedTuple):
    """What messages carry that are sent with one call, in the place of what they have themselves.

    Attributes:
        tag, keys, headers, order_key: those that are empty stand in the place of nothing.
    """

    tag: str = ""
    keys: tuple[str, ...] = ()
    headers: Mapping[str, str] | None = None
    order_key: str = ""

    @classmethod
    def of(
        cls,
        tag: str,
        keys: Iterable[str] | str,
        headers: Mapping[str, str] | None,
        order_key: str,
    ) -> SharedProperties:
        """With one key, or any number of them."""
        if not (tag or keys or headers or order_key):
            return NOTHING
        several = ((keys,) if keys else ()) if isinstance(keys, str) else tuple(keys)
        return cls(tag, several, headers, order_key)

    def packed_with(self, properties: Properties) -> bytes:
        """Both, packed; what the broker had noted of a message that was received is left out.

        Raises:
            BadProperties: no message may have them.
        """
        if self is NOTHING and not properties:
            return b""
        return Properties(
            self.tag or properties.tag,
            self.keys or properties.keys,
            self.headers if self.headers is not None else properties.headers,
            self.order_key or properties.order_key,
        ).pack()


NOTHING = SharedProperties()


def taken_apart(message: Sendable, max_bytes: int) -> tuple[bytes, Properties]:
    """The body of a message, and what it carries.

    Raises:
        BadBody: the body is empty or too big.
        TypeError: it is no message.
    """
    if isinstance(message, (bytes, bytearray, memoryview)):
        return check_body(message, max_bytes), NONE
    properties = getattr(message, "properties", None)
    if not isinstance(properties, Properties):
        raise TypeError(
            f"a message is bytes, or has a body and properties, not {type(message).__name__}"
        )
    return check_body(message.body, max_bytes), properties


class Prepared(NamedTuple):
    """Messages that go together.

    Attributes:
        bodies: theirs.
        entries: the packed properties of those that have any, by their numbers.
        size_bytes: what they take in a SEND, about.
    """

    bodies: Sequence[bytes]
    entries: Sequence[tuple[int, bytes]]
    size_bytes: int


def prepared(messages: Sequence[Sendable], also: SharedProperties, max_bytes: int) -> Prepared:
    """Check messages that are to go together, and pack what they carry.

    Raises:
        BadBody, BadProperties, TypeError: one of them can not be sent.
    """
    if len(messages) == 1 and type(messages[0]) is bytes:
        body = check_body(messages[0], max_bytes)
        packed = also.packed_with(NONE)
        entries = [(0, packed)] if packed else []
        return Prepared((body,), entries, len(body) + len(packed) + MPUB_EXTRA_BYTES)
    if set(map(type, messages)) == {bytes}:
        bodies = cast("Sequence[bytes]", messages)
        if not 0 < min(map(len, bodies)) <= max(map(len, bodies)) <= max_bytes:
            for body in bodies:
                check_body(body, max_bytes)
        packed = also.packed_with(NONE)
        entries = [(number, packed) for number in range(len(bodies))] if packed else []
        extra_bytes = len(bodies) * (MPUB_EXTRA_BYTES + len(packed))
        return Prepared(bodies, entries, sum(map(len, bodies)) + extra_bytes)
    bodies, entries, size_bytes = [], [], 0
    known, packed = NONE, also.packed_with(NONE)
    for number, message in enumerate(messages):
        body, properties = taken_apart(message, max_bytes)
        if properties is not known:
            known, packed = properties, also.packed_with(properties)
        if packed:
            entries.append((number, packed))
        bodies.append(body)
        size_bytes += len(body) + len(packed) + MPUB_EXTRA_BYTES
    return Prepared(bodies, entries, size_bytes)


def cut(messages: Iterable[Sendable], max_bytes: int) -> Iterator[Sequence[Sendable]]:
    """Cut messages into pieces whose bodies are about so large together."""
    iterator = iter(messages)
    while piece := list(islice(iterator, _LOOK_AT)):
        sizes = [
            MPUB_EXTRA_BYTES + len(each if type(each) is bytes else _body(each)) for each in piece
        ]
        ends = list(accumulate(sizes))
        start = passed = 0
        while start < len(piece):
            end = max(start + 1, bisect_right(ends, passed + max_bytes))
            yield piece[start:end]
            start, passed = end, ends[end - 1]


def _body(message: Sendable) -> Body:
    return message if isinstance(message, (bytes, bytearray, memoryview)) else message.body
