"""The options of published and sent messages: one set for all methods."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from numbers import Real
from types import MappingProxyType
from typing import TypedDict

from martlet.client.producer.pending import SendFields
from martlet.properties.model import (
    MAX_BYTES,
    NORMAL_PRIORITY,
    Properties,
    TextOrBytes,
    check_priority,
    pack_entry,
)

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class MessageKeywords(TypedDict, total=False):
    """The options of `SendOptions` that a message in a transaction may have."""

    tag: str
    keys: Iterable[str] | str
    headers: Mapping[str, TextOrBytes] | None
    order_key: str | bytes | None
    queue: int | None
    defer_ms: int | None
    deliver_at: datetime | float | None
    priority: int | None


class SendKeywords(MessageKeywords, total=False):
    """The options of `SendOptions`, as keywords."""

    wait_store_ok: bool
    timeout_s: float | None


@dataclass(kw_only=True, slots=True)
class SendOptions:
    """The options of published and sent messages.

    With an NSQ broker only an order key, the timeout, and the delay of a single published message
    work; all other options need a Martlet broker.

    Attributes:
        tag: a printable text without ``|``, by which consumers filter.
        keys: one or several, to find the message by, such as an order's number.
        headers: the application's own; values are text or bytes.
        order_key: the topic's messages with this key stay in order: they go to one broker, and by
            ``send`` to one queue.
        queue: the number of the queue; not beside ``order_key``.
        defer_ms: the delay of the delivery in milliseconds.
        deliver_at: the delivery time: with a time zone, or seconds since 1970.
        priority: 0 (the lowest) to 9; channels deliver higher ones first, and keep the order of
            each. Without one it is 4. Not beside ``queue``.
        wait_store_ok: False for an answer once the broker has written the message, even if its
            flush mode makes others wait for the disk.
        timeout_s: the time limit of all attempts, overriding the producer's.
    """

    tag: str = ""
    keys: Iterable[str] | str = ()
    headers: Mapping[str, TextOrBytes] | None = None
    order_key: str | bytes | None = None
    queue: int | None = None
    defer_ms: int | None = None
    deliver_at: datetime | float | None = None
    priority: int | None = None
    wait_store_ok: bool = True
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.queue is not None:  # JSON cannot encode numpy's integers
            self.queue = operator.index(self.queue)
            if self.order_key:
                raise ValueError("queue and order_key both choose a queue: give one")
            if self.priority is not None:
                raise ValueError("queue and priority both choose a queue: give one")
        if self.priority is not None:
            self.priority = check_priority(self.priority)
        if self.defer_ms is not None:
            try:
                self.defer_ms = int(self.defer_ms)
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"defer_ms={self.defer_ms!r}: a number of milliseconds") from None
            if self.defer_ms < 0:
                raise ValueError(f"defer_ms={self.defer_ms}: nothing can be delivered in the past")
            if self.deliver_at is not None:
                raise ValueError("defer_ms and deliver_at both say when to deliver: give one")
        if self.timeout_s is not None and not self.timeout_s > 0:  # so is NaN
            raise ValueError(f"timeout_s={self.timeout_s} must be above 0")
        if self.keys:
            self.keys = (self.keys,) if isinstance(self.keys, str) else tuple(self.keys)

    @property
    def needs_send(self) -> bool:
        """Whether they need SEND, since PUB and DPUB cannot carry them."""
        return bool(
            self.tag
            or self.keys
            or self.headers
            or self.queue is not None
            or self.deliver_at is not None
            or self.message_priority != NORMAL_PRIORITY
            or not self.wait_store_ok
        )

    @property
    def message_priority(self) -> int:
        """The priority of messages that have none of their own."""
        return NORMAL_PRIORITY if self.priority is None else self.priority

    @property
    def deliver_at_ms(self) -> int:
        """Return the delivery time in milliseconds since 1970; 0 for now.

        Raises:
            ValueError: the time has no time zone, or is before 1970.
        """
        if self.defer_ms is not None:
            return round(time.time() * 1000) + self.defer_ms
        at: object = self.deliver_at
        if at is None:
            return 0
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise ValueError(f"deliver_at={at}: a time needs a time zone, such as {UTC}")
            at = at.timestamp()
        if not isinstance(at, Real) or not 0 < float(at) < math.inf:
            raise ValueError(f"deliver_at={at}: seconds since 1970, or a datetime")
        return round(float(at) * 1000)

    def fields(self, retries: int | None) -> SendFields:
        """Return the options of a SEND. Raises ValueError."""
        at_ms, priority = self.deliver_at_ms, self.message_priority
        if (
            self.wait_store_ok
            and not (at_ms or self.order_key)
            and self.queue is None
            and priority == NORMAL_PRIORITY
        ):
            return plain_fields(retries)
        return SendFields(
            at_ms, self.wait_store_ok, self.order_key or "", self.queue, retries, priority
        )

    def pack_with(
        self, properties: Properties, more_headers: Mapping[str, str] = NO_HEADERS
    ) -> bytes:
        """Pack these, overriding a message's own properties.

        System properties of a received message are left out. More headers are added, overriding
        all others, if there is room for them.

        Raises:
            BadProperties: they are invalid.
        """
        tag, keys = self.tag or properties.tag, tuple(self.keys) or properties.keys
        headers = self.headers if self.headers is not None else properties.headers
        order_key = self.order_key or properties.order_key
        priority = self.message_priority
        packed = pack_entry(tag, keys, order_key, priority, headers)
        if not more_headers or len(packed) + _size_bytes(more_headers) > MAX_BYTES:
            return packed
        return pack_entry(tag, keys, order_key, priority, {**headers, **more_headers})


@lru_cache(maxsize=64)
def plain_fields(retries: int | None) -> SendFields:
    """Return the options of a SEND that has no others, as one object."""
    return SendFields(retries=retries)


def _size_bytes(headers: Mapping[str, str]) -> int:
    return len(Properties(headers=headers).pack())


def options_of(method: str, options: MessageKeywords) -> SendOptions:
    """Return the options that a method was called with. Raises TypeError for an unknown one."""
    try:
        return SendOptions(**options)
    except TypeError:
        names = [field.name for field in fields(SendOptions)]
        for name in options:
            if name not in names:
                raise TypeError(
                    f"{method}() has no keyword argument {name!r}; its options are"
                    f" {', '.join(names)}"
                ) from None
        raise
