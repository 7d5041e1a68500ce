"""An application's messages: check bodies and properties, and cut them into pieces."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, cast

from martlet.client.errors import BadBody
from martlet.client.producer.limits import Limits
from martlet.client.producer.options import NO_HEADERS, SendOptions
from martlet.properties.model import NONE, Properties
from martlet.protocol.nsq.commands import MPUB_EXTRA_BYTES

PIECE_MESSAGES = 20_000
"""The maximum number of messages checked in one turn of the event loop."""
_FIRST_AHEAD = 16
"""The number taken at once from an iterable with messages of unknown size."""
_BARE = {bytes}
Body = bytes | bytearray | memoryview


class Outgoing(NamedTuple):
    """A message to publish or send.

    Attributes:
        body: not empty.
        properties: a tag, keys, headers, an order key.
    """

    body: Body
    properties: Properties = NONE


class MessageLike(Protocol):
    """Anything with a body and properties, such as a received message."""

    @property
    def body(self) -> Body:
        """The body."""

    @property
    def properties(self) -> Properties:
        """The properties."""


Sendable = Body | MessageLike


def check_body(body: Body, max_bytes: int) -> bytes:
    """Return a body that brokers accept. Raises BadBody: it is empty or too big. TypeError: it is
    not bytes.
    """
    if type(body) is not bytes:
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise TypeError(f"a body is bytes, not {type(body).__name__}: encode it first")
        body = bytes(body)
    if not 0 < len(body) <= max_bytes:
        if not body:
            raise BadBody("the body is empty, and NSQ has no empty messages")
        raise BadBody(
            f"a body of {len(body)} bytes is above max_message_bytes={max_bytes};"
            " if the broker's --max-msg-size is higher,"
            " say so by limits=Limits(max_message_bytes=...)"
        )
    return body


def check_message(message: Sendable, max_bytes: int) -> tuple[bytes, Properties]:
    """Return the body of a message, and its properties. Raises BadBody: the body is empty or too
    big. TypeError: it is not a message.
    """
    if isinstance(message, (bytes, bytearray, memoryview)):
        return check_body(message, max_bytes), NONE
    properties = getattr(message, "properties", None)
    if not isinstance(properties, Properties):
        raise TypeError(
            "a message is bytes, or has a body and properties,"
            f" not {type(message).__name__}: encode it first"
        )
    return check_body(message.body, max_bytes), properties


def are_bare(messages: Iterable[Sendable]) -> bool:
    """Return whether all are bodies without properties, after `checked`."""
    return set(map(type, messages)) == _BARE


def split(
    messages: Sequence[Sendable], max_bytes: int
) -> tuple[Sequence[bytes], Sequence[Properties]]:
    """Return the bodies of messages, and their properties. Raises BadBody, TypeError: one of them
    cannot be sent.
    """
    if set(map(type, messages)) == {Outgoing}:
        bodies: list[Any] = list(map(itemgetter(0), cast("Sequence[Outgoing]", messages)))
        properties: list[Any] = list(map(itemgetter(1), cast("Sequence[Outgoing]", messages)))
        if are_fit(bodies, max_bytes) and set(map(type, properties)) == {Properties}:
            return bodies, properties
    pairs = [check_message(message, max_bytes) for message in messages]
    return [body for body, _ in pairs], [properties for _, properties in pairs]


def are_fit(bodies: Sequence[Any], max_bytes: int) -> bool:
    """Return whether all are bytes of a size that brokers accept."""
    if len(bodies) == 1:
        return type(bodies[0]) is bytes and 0 < len(bodies[0]) <= max_bytes
    return are_bare(bodies) and 0 < min(map(len, bodies)) <= max(map(len, bodies)) <= max_bytes


def checked(messages: Sequence[Sendable], max_bytes: int) -> Sequence[Sendable]:
    """Check messages, and return them, those without properties as bytes. Raises BadBody,
    TypeError: one of them cannot be sent.
    """
    if are_fit(messages, max_bytes):
        return messages
    bodies, properties = split(messages, max_bytes)
    bare = {id(one) for one in _distinct(properties) if not one}
    if not bare:
        return messages
    some = zip(messages, bodies, properties, strict=True)
    return [body if id(one) in bare else message for message, body, one in some]


def _distinct(properties: Sequence[Properties]) -> Iterable[Properties]:
    """Return each of the objects once: many messages may share one."""
    return dict(zip(map(id, properties), properties, strict=True)).values()


async def check_all(messages: Sequence[Sendable], max_bytes: int) -> list[Sendable]:
    """Check messages as `checked` does, yielding to the event loop."""
    accepted: list[Sendable] = []
    for start in range(0, len(messages), PIECE_MESSAGES):
        accepted += checked(messages[start : start + PIECE_MESSAGES], max_bytes)
        await asyncio.sleep(0)
    return accepted


class Prepared(NamedTuple):
    """Messages that go together."""

    bodies: Sequence[bytes]
    entries: Sequence[bytes]
    """The packed properties of each, empty for one without; nothing if none has any."""
    size_bytes: int


def prepare(
    messages: Sequence[Sendable],
    options: SendOptions,
    max_bytes: int,
    more_headers: Mapping[str, str] = NO_HEADERS,
) -> Prepared:
    """Check messages of one SEND, and pack their properties, with more headers where they fit.
    Raises BadBody, BadProperties, TypeError: one of them cannot be sent.
    """
    if are_fit(messages, max_bytes):
        bodies = cast("Sequence[bytes]", messages)
        packed = options.pack_with(NONE, more_headers)
        entries = [packed] * len(bodies) if packed else []
        return Prepared(bodies, entries, bodies_bytes(bodies) + len(bodies) * len(packed))
    bodies, properties = split(messages, max_bytes)
    packed_by_id = {id(one): options.pack_with(one, more_headers) for one in _distinct(properties)}
    entries = list(map(packed_by_id.__getitem__, map(id, properties)))
    entries_bytes = sum(map(len, entries))
    return Prepared(bodies, entries if entries_bytes else (), bodies_bytes(bodies) + entries_bytes)


def bodies_bytes(bodies: Sequence[bytes]) -> int:
    """Return the size of bodies in a command."""
    return sum(map(len, bodies)) + len(bodies) * MPUB_EXTRA_BYTES


def cut(messages: Iterable[Sendable], limits: Limits) -> Iterator[list[Sendable]]:
    """Cut messages into pieces that fit a command, taking few ahead of a lazy iterable."""
    max_bytes = limits.command_bytes
    max_count = min(limits.max_in_flight_messages, PIECE_MESSAGES)
    is_lazy = not isinstance(messages, (list, tuple))
    ahead = min(max_count, _FIRST_AHEAD) if is_lazy else max_count
    iterator = iter(messages)
    while some := list(islice(iterator, ahead)):
        sizes = _sizes(some)
        ends = [sum(sizes) + MPUB_EXTRA_BYTES * len(some)]
        if ends[0] <= max_bytes:
            yield some
        else:
            ends = list(accumulate(size + MPUB_EXTRA_BYTES for size in sizes))
            start = passed = 0
            while start < len(some):
                end = max(start + 1, bisect_right(ends, passed + max_bytes))
                yield some[start:end]
                start, passed = end, ends[end - 1]
        if is_lazy:
            ahead = min(max_count, max(1, max_bytes * len(some) // ends[-1]))


def _sizes(messages: Sequence[Sendable]) -> list[int]:
    """Return the sizes of bodies."""
    kinds = set(map(type, messages))
    if kinds == {bytes}:
        return list(map(len, cast("Sequence[bytes]", messages)))
    if kinds == {Outgoing}:
        bodies = list(map(itemgetter(0), cast("Sequence[Outgoing]", messages)))
        if are_bare(bodies):
            return list(map(len, bodies))
    return list(map(size_of, messages))


def size_of(message: Sendable) -> int:
    """Return the size of a message's body; 0 for a non-message, which is refused later."""
    if isinstance(message, (bytes, bytearray, memoryview)):
        return len(message)
    return len(getattr(message, "body", b""))
