"""Traces: find a message, by its id or a key, and its history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta, field

from martlet.names import ID_PATTERN
from martlet.schema.access import OPERATORS
from martlet.schema.kinds import IS_ID, MessageId, Text, TimeNs, TopicName
from martlet.schema.operation import OperationAnswer, OperationRequest, operation
from martlet.schema.read import Refusal

if TYPE_CHECKING:
    _AnyCaseId = MessageId
else:
    _AnyCaseId = Annotated[
        str, Meta(pattern=rf"^(?i:{ID_PATTERN})$(?!\n)", max_length=16, extra=IS_ID)
    ]
_Count = Annotated[int, Meta(ge=1, le=1000)]
_SearchMs = Annotated[int, Meta(ge=1, le=600_000)]


class _WithId(OperationRequest):
    """A message.

    id: the message's id, 16 hexadecimal digits
    """

    section: ClassVar[str] = "message"
    id: _AnyCaseId | None = None


class FindMessages(_WithId, kw_only=True):
    """Which messages to find.

    key: messages with this key, instead of one with an id
    topic: search only this topic
    since_ns: with a key, only messages published since, in nanoseconds since 1970
    limit: with a key, the maximum number of messages of each broker
    time_limit_ms: the time limit of the search
    """

    former: ClassVar[Mapping[str, str]] = {"most": "limit", "limit_ms": "time_limit_ms"}
    key: Text | None = None
    topic: TopicName | None = None
    since_ns: TimeNs = 0
    limit: _Count = 20
    time_limit_ms: _SearchMs = 10_000

    def __post_init__(self) -> None:
        if bool(self.id) == bool(self.key):
            raise Refusal("BAD_ARGUMENT", "give either a message's {id} or a {key}")


class MessageEvent(OperationAnswer, kw_only=True):
    """An event of a message.

    Attributes:
        time_ns: when it was, in nanoseconds since 1970.
        channel: whose event it is.
        event: what happened: ``delivered``, ``finished``, ``requeued``, ``timed_out`` and more.
        attempt: the number of the delivery.
        delay_ms: the time until the redelivery.
        reason: why it failed.
    """

    time_ns: int
    channel: str
    event: str
    client: str
    attempt: int
    delay_ms: int
    reason: str


class MessageStanding(OperationAnswer, kw_only=True):
    """The state of a message in a channel or a group.

    Attributes:
        state: ``waiting``, ``unfinished``, ``deferred`` or ``done``.
        due_ns: when it is delivered again.
        is_group: whether it is a group.
    """

    channel: str
    state: str
    attempts: int
    due_ns: int | None
    is_group: bool


class TracedMessage(OperationAnswer, kw_only=True):
    """A message and its history.

    Attributes:
        id, topic, queue: identify it.
        offset: of its queue; None of a delayed message that waits.
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
    deliver_at_ns: int | None
    delayed: str | None
    body_bytes: int
    properties: Mapping[str, Any]
    events: tuple[MessageEvent, ...]
    starts_ns: tuple[int, ...]
    channels: tuple[MessageStanding, ...]
    known_since_ns: int


class FoundMessages(OperationAnswer, kw_only=True):
    """The result of a search at one broker.

    Attributes:
        messages: the messages, by time.
        is_complete: False if there are more, or the time limit was reached.
        are_traced: whether the log has events of the topic's messages.
        log_since_ns: how far back the log goes, in nanoseconds since 1970.
    """

    messages: tuple[TracedMessage, ...]
    is_complete: bool = field(name="complete")
    are_traced: bool = field(name="traced")
    log_since_ns: int


FIND = operation(
    "trace.find",
    FindMessages,
    FoundMessages,
    OPERATORS,
    "Find messages by their id or a key, with their events.",
)
