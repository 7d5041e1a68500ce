"""Delayed messages: list and cancel them.

A list goes on behind a message: its position is a text, `next` of an answer and `from` of the next
request. Messages that were sent as one batch are listed together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta, field

from martlet.schema.access import OPERATORS
from martlet.schema.kinds import Limit, MessageId, MessageIds, TopicName
from martlet.schema.operation import OperationAnswer, OperationRequest, operation
from martlet.schema.read import Refusal

_Behind = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]{1,19}-[0-9]{1,10}-[0-9]{1,19})?$(?!\n)",
        max_length=50,
        extra={"flag": "", "rule": ": it must be what 'next' was"},
    ),
]


class OfTopic(OperationRequest):
    """The delayed messages of a topic.

    topic: the topic that they are for
    """

    section: ClassVar[str] = "what to do"
    topic: TopicName


class ListDelayed(OfTopic, kw_only=True):
    """Which delayed messages to list.

    limit: maximum messages to list of each broker
    from: begin behind this position
    """

    section: ClassVar[str] = "output"
    limit: Limit | None = None
    behind: _Behind | None = field(name="from", default=None)


class _WithIds(OfTopic):
    """Some of them.

    ids: cancel the message with this id; may be given several times
    """

    ids: MessageIds | None = None


class CancelDelayed(_WithIds, kw_only=True):
    """Which delayed messages to cancel.

    id: cancel the message with this id, in place of several
    """

    selecting: ClassVar[tuple[str, ...]] = ("id", "ids")
    id: Annotated[MessageId, Meta(extra={"flag": ""})] | None = None

    def __post_init__(self) -> None:
        if self.id is not None and self.ids is not None:
            raise Refusal("BAD_ARGUMENT", "give {id} or {ids}, not both")
        if self.id is None and self.ids is None:
            raise Refusal("MISSING_ARGUMENT", "the messages are missing: add {ids}")


class DelayedMessage(OperationAnswer, kw_only=True):
    """A message that waits for its delivery time.

    Attributes:
        deliver_at_ms: when it is due, in milliseconds since 1970.
        stored_at_ms: when it was published.
        body_bytes: the size of its body.
        tag, keys: of its properties.
    """

    id: str
    deliver_at_ms: int
    stored_at_ms: int
    body_bytes: int = field(name="size_bytes")
    tag: str
    keys: tuple[str, ...]


class DelayedPage(OperationAnswer, kw_only=True):
    """Some delayed messages of one broker, the earliest due first."""

    topic: str
    count: int = field(name="pending_count")
    """The number of all that wait there."""
    messages: tuple[DelayedMessage, ...]
    next: str
    """The position behind the last; empty at the end."""

    @property
    def items(self) -> tuple[DelayedMessage, ...]:
        """The messages."""
        return self.messages

    @property
    def following(self) -> Mapping[str, object] | None:
        """The fields of the request for the next page."""
        return {"from": self.next} if self.next else None


class Cancelled(OperationAnswer):
    """The result of cancelling messages at one broker.

    Attributes:
        cancelled: the ids of messages that are cancelled.
        not_waiting: ids that the broker does not know, or has delivered or cancelled before.
    """

    cancelled: tuple[str, ...]
    not_waiting: tuple[str, ...]


LIST = operation(
    "delay.list",
    ListDelayed,
    DelayedPage,
    OPERATORS,
    "List the delayed messages of a topic, the earliest due first.",
)
CANCEL = operation(
    "delay.cancel",
    CancelDelayed,
    Cancelled,
    OPERATORS,
    "Cancel delayed messages of a topic by their ids, which sends and the list answer.",
)
