"""The trace: one message and its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.broker.tracing.recorder import TraceEvent
    from martlet.properties.model import Properties


@dataclass
class Standing:
    """The state of a message in a channel.

    Attributes:
        channel: its name.
        state: ``waiting`` for its first delivery, ``unfinished`` where it was delivered and may be
            in flight, ``deferred``, or ``done``.
        attempts: the number of deliveries, of one that is unfinished or deferred.
        due_ns: when it is to be delivered, of one that is deferred.
        is_group: whether it is a group, whose members fetch and commit.
    """

    channel: str
    state: str
    attempts: int = 0
    due_ns: int = 0
    is_group: bool = False


@dataclass
class Trace:
    """A message and its history.

    Attributes:
        id, topic, queue, offset: identify the message; the offset is -1 if it has none in the
            topic.
        stored_at_ns: when it was stored.
        deliver_at_ns: when it is due, of a deferred or delayed one; else 0.
        body_bytes: the size of its body.
        properties: its properties.
        events: its history, by time.
        starts_ns: the later starts of the broker: messages in flight were redelivered.
        standing: its state in each channel.
        known_since_ns: the log has its history from this time on.
        delayed: of a delayed message that is not in its topic: ``waiting`` for its time, or
            ``done``, which is cancelled, or delivered and deleted since.
    """

    id: str
    topic: str
    queue: int
    offset: int
    stored_at_ns: int
    deliver_at_ns: int
    body_bytes: int
    properties: Properties
    events: list[TraceEvent] = field(default_factory=list)
    starts_ns: list[int] = field(default_factory=list)
    standing: list[Standing] = field(default_factory=list)
    known_since_ns: int = 0
    delayed: str = ""


@dataclass
class TraceResult:
    """The result of a search.

    Attributes:
        traces: the messages, by time.
        complete: whether the search was complete; not if the time limit was reached or there are
            more.
        traced: whether the log has any history of their topics' messages.
        log_since_ns: when the oldest segment was begun.
    """

    traces: list[Trace]
    complete: bool
    traced: bool
    log_since_ns: int
