"""The state and counts of a consumer."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Literal

from martlet.client.errors import Refused
from martlet.text import counted

logger = logging.getLogger("martlet.client")

STARVED_FRACTION = 0.85
"""The fraction of its ready count in flight from which on a connection is starved."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a consumer so far.

    Attributes:
        received: messages received.
        finished: messages finished.
        requeued: messages requeued.
        expired: messages dropped because they had waited here for longer than the broker's message
            timeout.
        late: finishes, requeues and touches that the broker refused as too late.
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
        ready_count: the maximum number of messages in flight to it.
        in_flight: messages received on this connection and not answered.
        received, finished, requeued: the numbers of messages, on all connections to it.
        last_message_s: when the last one came, by ``time.monotonic``; 0 if none did.
        last_error: why there is no connection, or was none before; empty if there always was.
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
        """Whether 85 % of the ready count or more is in flight, so that handlers limit the
        delivery.
        """
        return self.in_flight > 0 and self.in_flight >= int(self.ready_count * STARVED_FRACTION)


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """The state of a consumer.

    Attributes:
        counts: its counts so far.
        given_up: messages not tried again after ``max_attempts``.
        waiting: messages received and not handed out yet.
        workers: the maximum number of handlers at once.
        max_in_flight: the maximum number of messages in flight, from all brokers together.
        is_paused: whether no more are requested.
        backoff: ``open``, or ``blocked`` because messages failed, or ``trial`` while one is tried.
        backoff_level: the number of times the wait is doubled; 0 if open.
        connections: one for each broker.
        stall: why it does not progress, if the watchdog found a stall; else empty.
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
        """Whether a connection is starved: more or faster handlers would get more messages."""
        return any(connection.is_starved for connection in self.connections)


class Losses:
    """Count messages dropped and answers in vain; log each kind at most once a second."""

    def __init__(self) -> None:
        self.expired = 0
        self.late = 0
        self._quiet_until_s: dict[str, float] = {}

    def on_late(self, error: Refused) -> None:
        """Count an answer that the broker refused, since the message is no longer in flight."""
        self.late += 1
        self._warn("too late (%d so far), the message is delivered again: %s", self.late, error)

    def on_expired(self, count: int) -> None:
        """Count messages dropped because they had waited for too long."""
        self.expired += count
        self._warn(
            "%s waited here for longer than the broker's message timeout (%d so far), to be"
            " delivered again: lower max_in_flight, raise concurrency, or ask for a longer message"
            " timeout",
            counted(count, "message"),
            self.expired,
        )

    def _warn(self, text: str, *values: object) -> None:
        now_s = time.monotonic()
        is_quiet = now_s < self._quiet_until_s.get(text, 0.0)
        if not is_quiet:
            self._quiet_until_s[text] = now_s + 1.0
        logger.log(logging.DEBUG if is_quiet else logging.WARNING, text, *values)
