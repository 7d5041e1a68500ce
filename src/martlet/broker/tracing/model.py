"""The trace: one message and its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from martlet.properties.model import NORMAL_PRIORITY

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


def fields_of(found: TraceResult) -> dict[str, Any]:
    """Return a result as JSON fields."""
    return {
        "messages": [_trace_fields(trace) for trace in found.traces],
        "complete": found.complete,
        "traced": found.traced,
        "log_since_ns": found.log_since_ns,
    }


def _trace_fields(trace: Trace) -> dict[str, Any]:
    properties = trace.properties
    carried: dict[str, Any] = {
        "tag": properties.tag,
        "keys": list(properties.keys),
        "order_key": properties.order_key,
        "headers": dict(properties.headers),
        "system": dict(properties.system),
    }
    if properties.priority != NORMAL_PRIORITY:
        carried["priority"] = properties.priority
    return {
        "id": trace.id,
        "topic": trace.topic,
        "queue": trace.queue,
        "offset": trace.offset if trace.offset >= 0 else None,
        "stored_at_ns": trace.stored_at_ns,
        "deliver_at_ns": trace.deliver_at_ns or None,
        "delayed": trace.delayed or None,
        "body_bytes": trace.body_bytes,
        "properties": {name: value for name, value in carried.items() if value},
        "events": [
            {
                "time_ns": event.time_ns,
                "channel": event.channel,
                "event": event.step.name.lower(),
                "client": event.consumer,
                "attempt": event.attempt,
                "delay_ms": event.delay_ms,
                "reason": event.reason,
            }
            for event in trace.events
        ],
        "starts_ns": trace.starts_ns,
        "channels": [
            {
                "channel": standing.channel,
                "state": standing.state,
                "attempts": standing.attempts,
                "due_ns": standing.due_ns or None,
                "is_group": standing.is_group,
            }
            for standing in trace.standing
        ],
        "known_since_ns": trace.known_since_ns,
    }
