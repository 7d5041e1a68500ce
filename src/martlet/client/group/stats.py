"""The state and counts of a pull consumer."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.client.consumer.stats import ConnectionStats
from martlet.client.group.queues.queue_id import QueueId


@dataclass(slots=True)
class PullCounts:
    """Counts of messages.

    Attributes:
        received: fetched.
        finished: handled, or kept elsewhere.
        requeued: the number of delays for another try here.
        dead: dead-lettered, or kept elsewhere.
    """

    received: int = 0
    finished: int = 0
    requeued: int = 0
    dead: int = 0

    def __add__(self, other: PullCounts) -> PullCounts:
        return PullCounts(
            self.received + other.received,
            self.finished + other.finished,
            self.requeued + other.requeued,
            self.dead + other.dead,
        )


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The state of one queue of a pull consumer.

    Attributes:
        place: the queue, and the broker's address.
        position: the offset of the message that is handed out next.
        committed: the last committed offset.
        lag: messages that are not done, as of the last fetch.
        in_flight: messages fetched and not done.
        is_paused: whether the application paused it.
    """

    place: QueueId
    position: int
    committed: int
    lag: int
    in_flight: int
    is_paused: bool


@dataclass(frozen=True, slots=True)
class PullStats:
    """The state of a pull consumer: the fields of `ConsumerStats` that apply.

    Attributes:
        counts: its counts so far.
        given_up: messages not tried again, since they failed ``max_attempts`` times or were
            rejected.
        waiting: messages fetched and not handed out.
        workers: the maximum number of handlers at once.
        connections: one for each broker; ``in_flight`` is the number of messages not done, of all
            its queues, and ``ready_count`` their maximum.
        queues: one for each of its queues.
    """

    counts: PullCounts
    given_up: int
    waiting: int
    workers: int
    connections: tuple[ConnectionStats, ...]
    queues: tuple[QueueStats, ...]

    @property
    def is_starved(self) -> bool:
        """Whether a connection is starved: more or faster handlers would get more messages."""
        return any(connection.is_starved for connection in self.connections)
