"""The state of a consumer, and what it has done so far."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Literal

from martlet.client.errors import Refused
from martlet.plural import counted

logger = logging.getLogger("martlet.client")

STARVED_PART = 0.85
"""A connection with so much of its ready count in flight gets little more before it answers."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a consumer has done so far.

    Attributes:
        received: messages that came.
        finished: messages finished.
        requeued: messages requeued.
        expired: messages dropped because they had waited here for longer than the broker's message
            timeout.
        late: finishes, requeues and touches that the broker refused because they came too late.
    """

    received: int
    finished: int
    requeued: int
    expired: int
    late: int


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """The state of a consumer's connection to one broker.

    Attributes:
        address: the broker's, as ``host:port``.
        is_connected: whether it is subscribed there now.
        ready_count: how many messages the broker may have in flight to it.
        in_flight: how many came on this connection and are not answered.
        received, finished, requeued: how many messages were, on all connections to it.
        last_message_s: when the last one came, by ``time.monotonic``; 0 where none did.
        last_error: why there is no connection, or was none before; empty where there always was.
    """

    address: str
    is_connected: bool
    ready_count: int
    in_flight: int
    received: int
    finished: int
    requeued: int
    last_message_s: float
    last_error: str

    @property
    def is_starved(self) -> bool:
        """Whether 85 % of the ready count or more is in flight: handlers hold up what comes."""
        return self.in_flight > 0 and self.in_flight >= int(self.ready_count * STARVED_PART)


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """The state of a consumer.

    Attributes:
        counts: what it has done so far.
        given_up: messages given up because they came more than ``max_attempts`` times.
        waiting: messages that came and were not handed out yet.
        workers: how many handlers may be at work now.
        max_in_flight: how many messages may be in flight from all brokers together.
        is_paused: whether no more are asked for.
        backoff: ``open``, or ``blocked`` because messages failed, or ``trial`` while one is tried.
        backoff_level: how often the wait is doubled; 0 where it is open.
        connections: one for each broker.
        stall: why it does not progress, if the watchdog found that; else empty.
    """

    counts: Counts
    given_up: int
    waiting: int
    workers: int
    max_in_flight: int
    is_paused: bool
    backoff: Literal["open", "blocked", "trial"]
    backoff_level: int
    connections: tuple[ConnectionStats, ...]
    stall: str

    @property
    def is_starved(self) -> bool:
        """Whether a connection is: more could come if handlers were faster, or there were more."""
        return any(each.is_starved for each in self.connections)


class Losses:
    """Counts what came to nothing, and logs it, at most once a second.

    Attributes:
        expired: messages that were dropped.
        late: answers that came too late.
    """

    def __init__(self) -> None:
        self.expired = 0
        self.late = 0
        self._quiet_until_s = 0.0

    def on_late(self, error: Refused) -> None:
        """Count an answer that the broker refused, as the message is not in flight any more."""
        self.late += 1
        now_s = time.monotonic()
        level = logging.WARNING if now_s >= self._quiet_until_s else logging.DEBUG
        if level == logging.WARNING:
            self._quiet_until_s = now_s + 1.0
        logger.log(
            level, "too late (%d so far), the message is delivered again: %s", self.late, error
        )

    def on_expired(self, count: int) -> None:
        """Count messages that were dropped because they had waited for too long."""
        self.expired += count
        logger.warning(
            "%s waited here for longer than the broker's message timeout, to be delivered again:"
            " lower max_in_flight, raise concurrency, or ask for a longer message timeout",
            counted(count, "message"),
        )
