"""The statistics of a producer and its brokers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """The health of a broker.

    ``connecting``: not tried yet. ``connected``: it accepts messages. ``silent``: connected,
    without an answer for a while. ``refusing``: it cannot store, or refuses this client, and is not
    tried for a while. ``failing``: it cannot be reached.
    """

    CONNECTING = "connecting"
    CONNECTED = "connected"
    SILENT = "silent"
    REFUSING = "refusing"
    FAILING = "failing"


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerStats:
    """One broker, as a producer sees it.

    Attributes:
        address: as ``host:port``; of several, the one that it is connected to.
        health: the broker's.
        in_flight_messages, in_flight_bytes: sent to it and not answered.
        stored: messages that it has stored.
        refused: messages that it has refused.
        lost: messages that were sent to it and not answered before the connection was lost.
        last_error: why the last connection was lost or could not be made; None if none was.
    """

    address: str
    health: Health
    in_flight_messages: int
    in_flight_bytes: int
    stored: int
    refused: int
    lost: int
    last_error: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerStats:
    """The statistics of a producer.

    Attributes:
        pending_messages, pending_bytes: published and not answered, sent or not.
        stored: messages that were answered OK.
        retried: messages that had to be sent again.
        timed_out: messages that failed for lack of an answer in time.
        waiting_requests: requests that wait for their reply.
        late_replies: replies that were dropped: they came too late, or for a second time.
        brokers: each broker.
    """

    pending_messages: int
    pending_bytes: int
    stored: int
    retried: int
    timed_out: int
    waiting_requests: int
    late_replies: int
    brokers: tuple[BrokerStats, ...]

    @property
    def connected(self) -> int:
        """The number of brokers that accept messages."""
        return sum(broker.health is Health.CONNECTED for broker in self.brokers)
