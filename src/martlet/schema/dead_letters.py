"""Dead letters: count, show, redrive and purge them.

Those of a channel are named by the ``topic`` and ``channel`` that they come from, or by their
``dead_letter_topic``; with all three, by both. A call visits a few thousand, and answers where
the next one continues. ``until_ms`` leaves newer dead letters alone: one that fails again at once
would be redriven for ever.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

from msgspec import field

from martlet.schema.access import OPERATORS
from martlet.schema.kinds import (
    ChannelName,
    Limit,
    MessageIds,
    Position,
    Size,
    Text,
    TimeMs,
    TopicName,
)
from martlet.schema.operation import OperationAnswer, OperationRequest, operation
from martlet.schema.read import Refusal

Reason = Literal["max_attempts", "timeout", "disconnected", "rejected", "given_up"]
REASONS: tuple[Reason, ...] = get_args(Reason)


_NAMES = ("topic", "channel", "dead_letter_topic")
_FILTERS = ("ids", "reason", "error", "since_ms", "until_ms")


class OfChannel(OperationRequest):
    """The dead letters of a channel.

    topic: the topic that they come from
    channel: the channel that they come from
    """

    section: ClassVar[str] = "whose dead letters"
    topic: TopicName | None = None
    channel: ChannelName | None = None


class ListDeadLetters(OfChannel, kw_only=True):
    """Which dead letters to count: all, if none are named.

    dead_letter_topic: the dead-letter topic (default: the channel's)
    """

    dead_letter_topic: TopicName | None = None

    def __post_init__(self) -> None:
        if not self.dead_letter_topic and bool(self.topic) != bool(self.channel):
            raise Refusal(
                "MISSING_ARGUMENT", "{topic} and {channel} go together; without them all are listed"
            )


class SelectedDeadLetters(ListDeadLetters, kw_only=True):
    """Some dead letters of a channel: those that meet all conditions.

    ids: only those with this id; may be given several times
    reason: only these
    error: only those whose errors contain this
    since_ms: only those dead-lettered at or after this time
    until_ms: only those dead-lettered until this time
    queue: begin at this queue
    offset: begin at this offset of the queue
    """

    section: ClassVar[str] = "which of them"
    selecting: ClassVar[tuple[str, ...]] = (*_NAMES, *_FILTERS)
    ids: MessageIds | None = None
    reason: Reason | None = None
    error: Text | None = None
    since_ms: TimeMs | None = None
    until_ms: TimeMs | None = None
    queue: Position = 0
    offset: Position = 0

    def __post_init__(self) -> None:
        if not self.dead_letter_topic and not (self.topic and self.channel):
            raise Refusal(
                "MISSING_ARGUMENT",
                "the channel is missing: add {topic} and {channel}, or {dead_letter_topic}",
            )

    @property
    def is_filtered(self) -> bool:
        """Whether only some of them are meant; a time of 1970 leaves none out."""
        filters = [getattr(self, name) for name in _FILTERS if name != "since_ms"]
        return bool(self.since_ms) or any(value is not None for value in filters)


class ShowDeadLetters(SelectedDeadLetters, kw_only=True):
    """Which dead letters to show.

    limit: maximum dead letters to show of each broker
    max_body_bytes: maximum bytes of a body to show
    """

    section: ClassVar[str] = "output"
    limit: Limit | None = None
    max_body_bytes: Size = 1024


class PurgeDeadLetters(SelectedDeadLetters, kw_only=True):
    """Which dead letters to delete.

    all: redrive or purge all of the channel's
    dry_run: only show the effect
    """

    section: ClassVar[str] = "what to do"
    all: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.all and not self.is_filtered:
            raise Refusal(
                "MISSING_ARGUMENT",
                "the selection is missing: add {all}, or any of {ids}, {reason}, {error},"
                " {since_ms} and {until_ms}",
            )


class RedriveDeadLetters(PurgeDeadLetters, kw_only=True):
    """Which dead letters to move, and where to.

    to_topic: redrive to this topic, to all its channels (default: to the channel that they come
        from, and to no other)
    """

    to_topic: TopicName | None = None


class DeadLetterChannelCounts(OperationAnswer):
    """The dead letters of one channel in a dead-letter topic.

    Attributes:
        topic, channel: where they come from.
        reasons: their numbers by reason.
        oldest_ms, newest_ms: when they were dead-lettered, in milliseconds since 1970.
    """

    topic: str
    channel: str
    count: int
    reasons: dict[str, int]
    oldest_ms: int
    newest_ms: int


class DeadLetterTopicCounts(OperationAnswer):
    """A dead-letter topic of one broker.

    Attributes:
        in_flight_count: the dead letters that a consumer has.
        looked_at: those that `channels` counts, the first thousands.
        channels: their numbers by the channel that they come from.
    """

    dead_letter_topic: str
    count: int
    in_flight_count: int
    looked_at: int
    channels: tuple[DeadLetterChannelCounts, ...]


class DeadLetterTopics(OperationAnswer):
    """The dead-letter topics of one broker."""

    dead_letter_topics: tuple[DeadLetterTopicCounts, ...]


class DeadLetterMessage(OperationAnswer, kw_only=True):
    """A dead letter. What is not known of its history is empty.

    Attributes:
        queue, offset: where it is.
        state: ``in_flight`` if a consumer has it, else ``waiting``, ``due`` or ``deferred``.
        at_ms: when it was dead-lettered, in milliseconds since 1970.
        body_bytes: the size of the complete body.
        body_text: the beginning of the body as text; None if it is no UTF-8.
        body_base64: the beginning of the body, if it is no UTF-8.
        topic, channel: where it comes from.
        message_id, message_offset: the id and the offset that the message had there.
        stored_ms: when that was published, in milliseconds since 1970, as text.
        reason: why it is dead.
        first_error, last_error: the texts of its errors.
        before: the topics in which it failed before, the oldest first.
        instead_of: the topic that it was to go to, where that would have begun a cycle.
        order_key_base64, headers_base64: an order key and values of headers that are no UTF-8.
        failures_text, attempts_text, redrives_text: numbers as the broker sends them.
    """

    id: str
    queue: int
    offset: int
    state: str
    at_ms: int
    topic: str = ""
    channel: str = ""
    message_id: str
    message_offset: str
    stored_ms: str = ""
    reason: str = "unknown"
    failures_text: str = field(name="failures", default="")
    attempts_text: str = field(name="attempts", default="")
    redrives_text: str = field(name="redrives", default="")
    first_error: str = ""
    last_error: str = ""
    before: str = ""
    instead_of: str = ""
    tag: str
    keys: tuple[str, ...]
    order_key: str
    headers: Mapping[str, str]
    body_bytes: int
    body_text: str | None = field(name="body")
    body_base64: str | None = None
    order_key_base64: str = ""
    headers_base64: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The beginning of the body, as much as was asked for."""
        if self.body_base64 is not None:
            return b64decode(self.body_base64)
        return (self.body_text or "").encode()

    @property
    def failures(self) -> int | None:
        """How often it failed; None if that is unknown."""
        return int(self.failures_text) if self.failures_text.isdecimal() else None

    @property
    def attempts(self) -> int | None:
        """How often it was delivered; None if that is unknown."""
        return int(self.attempts_text) if self.attempts_text.isdecimal() else None

    @property
    def redrives(self) -> int:
        """How often it was redriven before."""
        return int(self.redrives_text) if self.redrives_text.isdecimal() else 0


Next = dict[str, int]
"""Where a list continues: fields of the next request. A newer broker may have more of them."""


class DeadLetters(OperationAnswer):
    """Some dead letters of one broker."""

    messages: tuple[DeadLetterMessage, ...]
    next: Next | None

    @property
    def items(self) -> tuple[DeadLetterMessage, ...]:
        """The dead letters, the oldest first."""
        return self.messages

    @property
    def following(self) -> Mapping[str, object] | None:
        """The fields of the request for the next page."""
        return self.next


class Moved(OperationAnswer, kw_only=True):
    """The dead letters that were redriven or purged at one broker, or would be.

    Attributes:
        kept: the numbers of those that stay where they are, by the reason.
        next: where the next call continues; None at the end.
        until_ms: those dead-lettered later were left alone, and are to be by the next call.
        found_ids: those of the ids given that were met; None if the broker does not say.
    """

    count: int
    kept: Mapping[str, int]
    next: Next | None
    found_ids: tuple[str, ...] | None = field(name="found", default=None)
    until_ms: int | None = None

    @property
    def found(self) -> frozenset[str] | None:
        """Those of the ids given that were met, under their present or former id; None if the
        broker does not say.
        """
        return None if self.found_ids is None else frozenset(self.found_ids)

    @property
    def following(self) -> Mapping[str, object] | None:
        """The fields of the next request."""
        return None if self.next is None else {**self.next, "until_ms": self.until_ms}

    def added(self, later: Moved) -> Moved:
        """Return the sum of two answers, one after the other."""
        ids = None
        if self.found_ids is not None and later.found_ids is not None:
            ids = tuple(dict.fromkeys(self.found_ids + later.found_ids))
        return Moved(
            count=self.count + later.count,
            kept={
                why: self.kept.get(why, 0) + later.kept.get(why, 0)
                for why in {**self.kept, **later.kept}
            },
            next=later.next,
            found_ids=ids,
            until_ms=later.until_ms,
        )


LIST = operation(
    "dead_letters.list",
    ListDeadLetters,
    DeadLetterTopics,
    OPERATORS,
    "Count dead letters; by channel and reason for the first thousands of each topic.",
)
SHOW = operation(
    "dead_letters.show",
    ShowDeadLetters,
    DeadLetters,
    OPERATORS,
    "Show dead letters, the oldest first.",
)
REDRIVE = operation(
    "dead_letters.redrive",
    RedriveDeadLetters,
    Moved,
    OPERATORS,
    "Move dead letters back to the channels that they come from, or to another topic.",
)
PURGE = operation("dead_letters.purge", PurgeDeadLetters, Moved, OPERATORS, "Delete dead letters.")
