"""What the parts of a broker are handed, below all of them.

A part that needs more of its broker says so by a protocol of its own, beside itself, that extends
`BrokerContext`.  `martlet.broker.broker.BrokerCore` is all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from martlet.broker.schedule import Schedule
from martlet.log.commit_log import CommitLog


@dataclass(kw_only=True, slots=True)
class TopicSettings:
    """What the operator has set for all topics and channels.

    Attributes:
        max_consumers: of one channel; 0 for no limit.
        prefers_near: whether consumers in the broker's zone, then its region, are preferred.
        max_channels: so many new ones may be made in one topic; 0 for no limit.
        max_timeout_ns: how long TOUCH may keep a message in flight.
        latency_window_ns: over how long latencies are measured; 0 for not at all.
        max_ephemeral: so many messages wait in an ephemeral topic or channel; the oldest go.
        traces: whether the log keeps what becomes of messages whose topic's policy does not say.
    """

    max_consumers: int = 0
    prefers_near: bool = False
    max_channels: int = 0
    max_timeout_ns: int = 15 * 60 * 10**9
    latency_window_ns: int = 0
    max_ephemeral: int = 10_000
    traces: bool = False


class BrokerContext(Protocol):
    """What each part of a broker may use."""

    clock: Callable[[], int]
    """Nanoseconds since 1970, never going back."""
    random: Random
    schedule: Schedule
    log: CommitLog

    @property
    def settings(self) -> TopicSettings:
        """What the operator has set."""
