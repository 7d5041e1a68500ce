"""The state of a pull consumer, and what it has done so far."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.client.consumer.stats import ConnectionStats
from martlet.client.group.counters import PullCounts
from martlet.client.group.queues.queue_id import QueueId


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The state of one queue that is assigned to a pull consumer.

    Attributes:
        place: the queue, and the broker's address.
        position: the offset of what is handed out next.
        committed: the offset that was committed last.
        lag: messages that are not done, as of the last fetch.
        in_flight: messages that were fetched and are not done.
        is_paused: whether `pause` holds.
    """

    place: QueueId
    position: int
    committed: int
    lag: int
    in_flight: int
    is_paused: bool


@dataclass(frozen=True, slots=True)
class PullStats:
    """The state of a pull consumer: what `ConsumerStats` has, as far as it applies.

    Attributes:
        counts: what it has done so far.
        given_up: messages given up because they failed ``max_attempts`` times, or were rejected.
        waiting: messages that were fetched and are not handed out.
        workers: how many handlers may be at work now.
        connections: one for each broker; their ``ready_count`` is how many messages of
            all its queues there may be here and not done, and ``in_flight`` how many are.
        queues: one for each queue that is assigned to it.
    """

    counts: PullCounts
    given_up: int
    waiting: int
    workers: int
    connections: tuple[ConnectionStats, ...]
    queues: tuple[QueueStats, ...]

    @property
    def is_starved(self) -> bool:
        """Whether a connection is: more could be fetched if handlers were faster, or more."""
        return any(each.is_starved for each in self.connections)
