"""Messages as the log has them: find the offset of a time, and messages by a key.

``topic.fetch`` is not declared: it is read for each fetch of a consumer, which checks six fields
faster one by one.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from martlet.schema.access import OPERATORS, READERS
from martlet.schema.kinds import Position, Text, TimeMs, TimeNs, TopicName
from martlet.schema.operation import OperationAnswer, OperationRequest, operation

_IS_POSITION = {"rule": ": it is the 'next' of an answer"}
_Position = Annotated[
    str, Meta(pattern=r"^([0-9]+-[0-9]+)?$(?!\n)", max_length=39, extra=_IS_POSITION)
]


class FindOffset(OperationRequest):
    """The time, and its queue.

    topic: its topic
    time_ms: the time, in milliseconds since 1970
    queue: its queue
    """

    topic: TopicName
    time_ms: TimeMs
    queue: Position = 0


class OffsetFound(OperationAnswer, kw_only=True):
    """The offset of a time.

    Attributes:
        offset: of the first message published at or after the time.
        is_gone: whether earlier messages since that time are no longer stored.
        start_offset, end_offset: the offsets of the queue's first stored and next new message.
    """

    queue: int
    offset: int
    is_gone: bool = field(name="gone")
    start_offset: int
    end_offset: int


class SearchByKey(OperationRequest):
    """Which messages to find.

    topic: their topic
    key: one of their keys, or their order key
    since_ns: only those published at or after this time, in nanoseconds since 1970
    until_ns: only those published before this time
    limit: maximum messages of each broker
    max_bytes: maximum size; one message is returned, however large
    time_limit_ms: the time limit of the search, in milliseconds
    """

    topic: TopicName
    key: Text
    since_ns: TimeNs = 0
    until_ns: TimeNs | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    max_bytes: Annotated[int, Meta(ge=1, le=8 << 20)] = 1 << 20
    time_limit_ms: Annotated[int, Meta(ge=1, le=600_000)] = 10_000


class FindByKey(SearchByKey, kw_only=True):
    """And where the search goes on.

    after: the `next` of the last answer
    """

    after: _Position = ""


class FoundByKey(OperationAnswer):
    """The messages that a request has found; they are the answer's bytes, newest first."""

    count: int
    next: str
    """Where the search goes on; empty once all messages were searched."""


OFFSET = operation(
    "topic.offset", FindOffset, OffsetFound, READERS, "Find the first message since a time."
)
FIND = operation(
    "topic.find", FindByKey, FoundByKey, OPERATORS, "Find messages by a key, newest first."
)
