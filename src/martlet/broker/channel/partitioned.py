"""A channel over several queues.

Each queue has a `Channel` of its own. Clients subscribe to all of them together: an answer goes to
the queue of its message, and the counts are sums. A topic of one queue needs none of this.

The ids of a topic's messages follow from the queue and the offset alone::

    id   =  id_base + (queue << 54) + offset          modulo 2^64
    position = id - id_base:   | queue 10 bits | offset 54 bits |

so an id leads to both without a table, and a run of ids by two operations on an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from martlet.broker.channel.channel import Channel
from martlet.broker.channel.priority_turns import PriorityTurns, highest_first
from martlet.broker.channel.redelivery import charged_of
from martlet.broker.channel.subscriber import Client, Share, Subscriber
from martlet.broker.errors import NotInFlight
from martlet.broker.offset_ranges import Offsets
from martlet.broker.queue.consumer import ChannelConsumer, TopologyPreference
from martlet.broker.queue.queue_log import ID_MASK, OFFSET_BITS, OFFSET_MASK
from martlet.broker.tracing.finish_ages import Latency, Together

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_NO_POSITIONS: Offsets = np.empty(0, np.int64)


def _at_its_queue(
    method_of: Callable[[Channel], Callable[Concatenate[ChannelConsumer, int, _Args], _Result]],
) -> Callable[Concatenate[PartitionedChannel, Subscriber, int, _Args], _Result]:
    """Return a method that handles an answer to a message by a method of its queue's channel."""

    def answer(
        channel: PartitionedChannel,
        subscriber: Subscriber,
        position: int,
        /,
        *args: _Args.args,
        **kwargs: _Args.kwargs,
    ) -> _Result:
        number, offset = (position & ID_MASK) >> OFFSET_BITS, position & OFFSET_MASK
        if number >= len(subscriber.shares):
            raise NotInFlight("ID not in flight")
        method = method_of(channel.at_queues[number])
        subscriber.held = True
        try:
            return method(subscriber.shares[number], offset, *args, **kwargs)
        finally:
            subscriber.held = False
            subscriber.resume_delivery()

    return answer


class OverQueues:
    """A count over all queues: the sum, or another merger, of the count of that name at each."""

    def __init__(self, merge: Callable[[Iterable[int]], int] = sum) -> None:
        self._merge = merge

    def __set_name__(self, owner: type, name: str) -> None:
        self._read = attrgetter(name)

    def __get__(self, over: Any, owner: type) -> int:
        return self._merge(map(self._read, over.at_queues))


class PartitionedChannel:
    """A channel at all queues of its topic.

    Its methods take a position, the queue's number and the offset, where those of `Channel` take an
    offset.
    """

    def __init__(self, channels: list[Channel]) -> None:
        first = channels[0]
        self.at_queues = channels
        """The channel at each queue, by number."""
        self.id = first.id
        self.topic = first.topic
        self.name = first.name
        self.ephemeral = first.ephemeral
        self.queue = first.queue
        """Of queue 0: an id minus its `id_base` is a position."""
        self.turns: PriorityTurns | None = None
        """Who delivers next, if messages have several priorities."""
        self.prioritize()

    def prioritize(self) -> None:
        """Deliver by the priorities of the queues from now on."""
        if len({channel.queue.priority for channel in self.at_queues}) > 1:
            self.turns = PriorityTurns(self.at_queues)

    # consumers

    def add_consumer(
        self,
        client: Client,
        timeout_ns: int,
        sample_rate: int = 0,
        *,
        with_properties: bool = False,
        says_started: bool = False,
        nearness: TopologyPreference = TopologyPreference.ELSEWHERE,
    ) -> Subscriber:
        """Subscribe a client at all queues. Raises TooMany."""
        subscriber = Subscriber(
            client,
            timeout_ns,
            sample_rate,
            with_properties=with_properties,
            says_started=says_started,
            nearness=nearness,
        )
        subscriber.turns = self.turns
        for channel in self.at_queues:
            channel.add_share(subscriber)
        return subscriber

    def remove_consumer(self, subscriber: Subscriber) -> None:
        """Unsubscribe a client: the messages that it held are redelivered to others at once."""
        subscriber.blocked = True
        charged = charged_of(list(zip(self.at_queues, subscriber.shares, strict=True)))
        for channel in highest_first(self.at_queues):
            number = channel.queue.number
            channel.remove_consumer(subscriber.shares[number], charged[number])

    def set_ready(self, subscriber: Subscriber, count: int) -> None:
        """Handle RDY: the client takes up to `count` messages at a time."""
        subscriber.ready_count = count
        subscriber.resume_delivery()

    def set_blocked(self, subscriber: Subscriber, blocked: bool) -> None:
        """Note whether the client has stopped reading from its socket."""
        subscriber.blocked = blocked
        subscriber.resume_delivery()

    # acknowledgements, as those of `Channel`, each to the queue of its message

    finish = _at_its_queue(lambda channel: channel.finish)
    requeue = _at_its_queue(lambda channel: channel.requeue)
    reject = _at_its_queue(lambda channel: channel.reject)
    touch = _at_its_queue(lambda channel: channel.touch)
    started = _at_its_queue(lambda channel: channel.started)

    def give_back(
        self, subscriber: Subscriber, positions: Iterable[int], *, is_started: bool = False
    ) -> int:
        """Redeliver these to others. Returns how many of them were in flight."""
        offsets: dict[int, list[int]] = {}
        for position in positions:
            number = (position & ID_MASK) >> OFFSET_BITS
            offsets.setdefault(number, []).append(position & OFFSET_MASK)
        subscriber.held = True
        try:
            return sum(
                self.at_queues[number].give_back(
                    subscriber.shares[number], some, is_started=is_started
                )
                for number, some in offsets.items()
                if number < len(subscriber.shares)
            )
        finally:
            subscriber.held = False
            subscriber.resume_delivery()

    def finish_ended(self, position: int, attempts: int) -> None:
        """Finish a message whose lease has ended. Raises NotInFlight."""
        number = (position & ID_MASK) >> OFFSET_BITS
        if number >= len(self.at_queues):
            raise NotInFlight("ID not in flight")
        self.at_queues[number].finish_ended(position & OFFSET_MASK, attempts)

    def finish_run(self, subscriber: Subscriber, positions: Offsets) -> Offsets:
        """Handle FIN of many, in any order. Returns those that must be finished one by one."""
        numbers = positions.view(np.uint64) >> np.uint64(OFFSET_BITS)
        first = int(numbers[0])
        subscriber.held = True
        try:
            if (numbers == first).all():
                return self._finish_some(subscriber, first, positions)
            left = [
                self._finish_some(subscriber, number, positions[numbers == number])
                for number in np.bincount(numbers.astype(np.int64)).nonzero()[0].tolist()
            ]
            return np.concatenate(left)
        finally:
            subscriber.held = False
            subscriber.resume_delivery()

    def _finish_some(self, subscriber: Subscriber, number: int, positions: Offsets) -> Offsets:
        """Finish the messages of one queue."""
        if number >= len(subscriber.shares):
            return positions
        offsets = positions & OFFSET_MASK
        left = self.at_queues[number].finish_run(subscriber.shares[number], offsets)
        if not len(left):
            return _NO_POSITIONS
        return left + np.int64(positions.item(0) & ~OFFSET_MASK)

    # statistics

    @property
    def consumers(self) -> list[Subscriber]:
        """The subscribed clients."""
        return [
            share.subscriber for share in self.at_queues[0].consumers if isinstance(share, Share)
        ]

    @property
    def paused(self) -> bool:
        """Whether delivery is paused."""
        return self.at_queues[0].paused

    @property
    def retries(self) -> bool:
        """Whether the broker handles failed messages by a retry policy."""
        return self.at_queues[0].retries

    @property
    def max_attempts(self) -> int:
        """How often a message may fail; -1 for ever, 0 where failures are not counted."""
        return self.at_queues[0].max_attempts

    client_count = OverQueues(max)
    depth = OverQueues()
    oldest_age_ns = OverQueues(max)
    message_count = OverQueues()
    delivered_count = OverQueues()
    in_flight_count = OverQueues()
    deferred_count = OverQueues()
    requeue_count = OverQueues()
    timeout_count = OverQueues()
    dead_letter_count = OverQueues()
    dropped_count = OverQueues()
    filtered_count = OverQueues()

    @property
    def delivered_near_counts(self) -> list[int]:
        """The numbers of deliveries to consumers in the broker's zone, in its region, and
        elsewhere; empty if near consumers are not preferred.
        """
        rows = (channel.delivered_near_counts for channel in self.at_queues)
        return [sum(column) for column in zip(*rows, strict=True)]

    @property
    def latency(self) -> Latency | Together | None:
        """Latencies from publish to finish, if percentiles are measured."""
        together = Together()
        for channel in self.at_queues:
            if channel.latency is not None:
                together.add(channel.latency)
        return together if together.some else None

    @property
    def finishes(self) -> PartitionedFinishAges:
        """The ages of finished messages."""
        return PartitionedFinishAges(self.at_queues)


class PartitionedFinishAges:
    """The finish ages of several channels, summed at this moment."""

    def __init__(self, channels: list[Channel]) -> None:
        ages = [channel.finishes for channel in channels]
        self.counts = [sum(column) for column in zip(*(age.counts for age in ages), strict=True)]
        self.sum_ns = sum(age.sum_ns for age in ages)
        self.count = sum(self.counts)
