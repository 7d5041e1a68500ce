"""The services that a broker gives to what it consists of.

A module that needs more of its broker declares a protocol of its own, in its module, that extends
`BrokerContext`. `martlet.broker.broker.BrokerCore` implements all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from martlet.broker.schedule import Schedule
from martlet.log.commit_log import CommitLog
from martlet.log.record import RecordKind


@dataclass(kw_only=True, slots=True)
class TopicSettings:
    """The operator's settings for all topics and channels."""

    max_consumers: int = 0
    """Maximum consumers of a channel; 0 for no limit."""
    prefers_near: bool = False
    """Whether consumers in the broker's zone, then its region, are preferred."""
    max_channels: int = 0
    """Maximum channels of a topic for new ones; 0 for no limit."""
    max_timeout_ns: int = 15 * 60 * 10**9
    """How long TOUCH may keep a message in flight."""
    latency_window_ns: int = 0
    """The window of latency percentiles; 0 to measure none."""
    max_ephemeral: int = 10_000
    """Maximum waiting messages of an ephemeral topic or channel; the oldest are dropped."""
    traces: bool = False
    """Whether messages are traced where the topic's policy is not set."""


class BrokerClock(Protocol):
    """Two clocks: one for lengths of time, which no step of the other one changes."""

    def __call__(self) -> int:
        """Return the running time, in nanoseconds: the date when the broker began, and the time in
        which it has run since. It never goes back.
        """

    def wall(self) -> int:
        """Return the date, in nanoseconds since 1970; it may be set ahead or back."""


class BrokerContext(Protocol):
    """The services of the broker for all that it consists of."""

    clock: Callable[[], int]
    """The running time: for what lasts, such as timeouts and leases, and all alarms."""
    wall: Callable[[], int]
    """The date: for what is stored, shown, or due at a date."""
    random: Random
    schedule: Schedule
    log: CommitLog

    def stored_at_ns(self) -> int:
        """Return the timestamp of what is stored now, never before that of an earlier record."""

    def journal(self, kind: RecordKind, entry: bytes, topic: int = 0, /) -> None:
        """Write an entry into the journal, stored now. Raises WritesRefused."""

    @property
    def settings(self) -> TopicSettings:
        """The operator's settings."""


def running_time(context: BrokerContext, date_ns: int) -> int:
    """Return the running time at a date, if the wall clock is not set until then."""
    return date_ns - context.wall() + context.clock()
