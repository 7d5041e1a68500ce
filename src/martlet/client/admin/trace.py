"""Traces: find a message and its history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from martlet.client.admin.answers import Answers
from martlet.client.admin.decode import Described, named
from martlet.client.admin.noun import Noun, given, id_texts, place

_GRACE_S = 5
"""The time for the answer beyond the search."""


@dataclass(frozen=True, kw_only=True)
class MessageEvent(Described):
    """An event of a message.

    Attributes:
        time_ns: when it was, in nanoseconds since 1970.
        channel: whose event it is.
        event: what happened: ``delivered``, ``finished``, ``requeued``, ``timed_out`` and more.
        client: the consumer.
        attempt: the number of the delivery.
        delay_ms: the time until the redelivery.
        reason: why it failed.
    """

    time_ns: int
    channel: str
    event: str
    client: str = ""
    attempt: int = 0
    delay_ms: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class MessageStanding(Described):
    """The state of a message in a channel or a group.

    Attributes:
        channel: its name.
        state: ``waiting``, ``unfinished``, ``deferred`` or ``done``.
        attempts: its deliveries.
        due_ns: when it is delivered again.
        is_group: whether it is a group.
    """

    channel: str
    state: str
    attempts: int = 0
    due_ns: int | None = None
    is_group: bool = False


@dataclass(frozen=True, kw_only=True)
class TracedMessage(Described):
    """A message and its history.

    Attributes:
        id, topic, queue: identify it.
        offset: its place in the queue; None of a delayed message that waits.
        stored_at_ns: when it was published, in nanoseconds since 1970.
        deliver_at_ns: when it is due, of a deferred or delayed one.
        delayed: of a delayed one: ``waiting``, or ``done`` if it no longer waits.
        body_bytes: the size of its body.
        properties: its tag, keys, order key, headers and system properties, those that it has.
        events: its history; only of topics that are traced.
        starts_ns: when the broker was started since.
        channels: its state in each channel.
        known_since_ns: since when its events are known.
    """

    id: str
    topic: str
    queue: int
    offset: int | None
    stored_at_ns: int
    deliver_at_ns: int | None = None
    delayed: str | None = None
    body_bytes: int
    properties: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[MessageEvent, ...]
    starts_ns: tuple[int, ...] = ()
    channels: tuple[MessageStanding, ...]
    known_since_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class FoundMessages(Described):
    """The result of a search at one broker.

    Attributes:
        messages: the messages, by time.
        is_complete: False if there are more, or the time limit was reached.
        are_traced: whether the log has events of the topic's messages.
        log_since_ns: how far back the log goes, in nanoseconds since 1970.
    """

    messages: tuple[TracedMessage, ...]
    is_complete: bool = named("complete")
    are_traced: bool = named("traced")
    log_since_ns: int = 0


class TraceAdmin(Noun):
    """The history of messages: `Admin.trace`."""

    async def find(
        self,
        id: str | bytes = "",
        *,
        key: str = "",
        topic: str = "",
        since_ns: int = 0,
        limit: int = 20,
        time_limit_ms: int = 10_000,
    ) -> Answers[FoundMessages]:
        """Find a message by its id, or messages by a key.

        A broker that has none answers `AdminNotFound`. A request may take the time limit of the
        search and some seconds, whatever ``request_timeout_s`` is.

        Args:
            id: of the message, 16 hexadecimal digits.
            key: of the messages.
            topic: search only this topic.
            since_ns: with a key, only messages published since, in nanoseconds since 1970.
            limit: with a key, the maximum number of messages of each broker, up to 1,000.
            time_limit_ms: the time limit of the search.

        Raises:
            ValueError: not exactly one of id and key is given.
            AdminError: no broker answered. AdminNotFound: none has such a message.
        """
        if bool(id) == bool(key):
            raise ValueError("give either a message's id or a key")
        if topic:
            place(topic)
        # The names that brokers of version 0.1 know, for `limit` and `time_limit_ms`.
        fields = given(key=key, topic=topic) | {"limit_ms": time_limit_ms}
        if id:
            (fields["id"],) = id_texts([id])
        else:
            fields |= {"since_ns": since_ns, "most": limit}
        return await self._http.call_each(
            "trace.find", fields, FoundMessages.read, timeout_s=time_limit_ms / 1000 + _GRACE_S
        )
