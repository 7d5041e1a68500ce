"""The subscriber: one client at all queues of a channel.

A topic of several queues has a channel at each of them, and a client that subscribes is a consumer
of each.  What it said of itself counts for all of them together: what it takes at a time, and
whether it reads at all::

    RDY 5            queue 0    queue 1    queue 2
    in flight           2    +     0     +    3      = 5: there is no room at any of them
    in the line         no         yes        no        where it would take the next message

A share that has no room leaves its channel's line, and waits among those that are `out`.  When room
comes, by an answer or otherwise, those are lined up again, the one first that is out for longest:
so the queues take turns, and none waits for another to run dry.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from martlet.broker.queue.consumer import ChannelConsumer
from martlet.broker.queue.started import StartedMessages
from martlet.broker.queue.topology import TopologyPreference

if TYPE_CHECKING:
    from martlet.broker.channel.client import Client
    from martlet.broker.channel.delivery import Delivery


class Subscriber:
    """A client's consumers at the queues of a channel, by queue.

    Args:
        client: takes the messages.
        timeout_ns: how long a message may stay in flight.
        sample_rate: the percentage of messages that it wants; 0 for all.
        with_properties: whether it gets the properties of messages.
        says_started: whether it says which messages it starts to handle.
        nearness: where it is.
    """

    def __init__(
        self,
        client: Client,
        timeout_ns: int,
        sample_rate: int,
        *,
        with_properties: bool = False,
        says_started: bool = False,
        nearness: TopologyPreference = TopologyPreference.ELSEWHERE,
    ) -> None:
        self.client = client
        self.timeout_ns = timeout_ns
        self.sample_rate = sample_rate
        self.with_properties = with_properties
        self.progress = StartedMessages(says_started=says_started)
        self.nearness = nearness
        self.shares: list[Share] = []
        self.out: OrderedDict[Share, None] = OrderedDict()
        """Those that stand in no line, the one first that left first."""
        self.ready_count = 0
        self.in_flight_count = 0
        self.blocked = False
        self.held = False
        """An answer is being taken: what room it makes goes round before the same queue has it."""

    @property
    def room(self) -> int:
        """How many more messages may be sent to the client now."""
        return 0 if self.blocked or self.held else self.ready_count - self.in_flight_count

    def go_on(self) -> None:
        """Line up again where it is out, in turn, as long as there is room."""
        out = self.out
        for _ in range(len(out)):
            if not out or self.room <= 0:
                return
            share = next(iter(out))
            share.channel.resume(share)

    @property
    def message_count(self) -> int:
        """How many messages were sent to it."""
        return sum(share.message_count for share in self.shares)

    @property
    def finish_count(self) -> int:
        """How many it has finished."""
        return sum(share.finish_count for share in self.shares)

    @property
    def requeue_count(self) -> int:
        """How many it has given back."""
        return sum(share.requeue_count for share in self.shares)


class Share(ChannelConsumer):
    """A subscriber at one queue: what a channel sees of it.

    Args:
        subscriber: whose.
        channel: of the queue.
        number: its number in the channel's window, from 1.
    """

    __slots__ = ("_in_flight_count", "_is_ready", "channel", "subscriber")

    def __init__(self, subscriber: Subscriber, channel: Delivery, number: int) -> None:
        self.subscriber = subscriber
        self.channel = channel
        self._in_flight_count = 0
        before = subscriber.ready_count, subscriber.blocked
        super().__init__(
            subscriber.client,
            number,
            subscriber.timeout_ns,
            subscriber.sample_rate,
            with_properties=subscriber.with_properties,
            nearness=subscriber.nearness,
        )
        subscriber.ready_count, subscriber.blocked = before
        self.progress = subscriber.progress

    @classmethod
    def instead_of(
        cls, consumer: ChannelConsumer, subscriber: Subscriber, channel: Delivery
    ) -> Share:
        """A share that goes on where a consumer was that had no subscriber."""
        share = cls(subscriber, channel, consumer.number)
        for name in ("message_count", "finish_count", "requeue_count", "leases", "answered"):
            setattr(share, name, getattr(consumer, name))
        share.progress = subscriber.progress = consumer.progress
        subscriber.ready_count = consumer.ready_count
        subscriber.blocked = consumer.blocked
        share.in_flight_count = consumer.in_flight_count
        share.is_ready = consumer.is_ready
        return share

    @property
    def room(self) -> int:
        """How many more messages may be sent to it now."""
        return self.subscriber.room

    def offer_room(self) -> None:
        """There may be room that no answer of the client has made: other queues may use it."""
        self.subscriber.go_on()

    def settle_progress(self) -> None:
        """Have `progress` know of all that was answered, on every queue."""
        for share in self.subscriber.shares:
            super(Share, share).settle_progress()

    # What the subscriber counts for all its shares; the base class has plain attributes.

    @property
    def ready_count(self) -> int:
        """How many messages the client takes at a time, from all queues."""
        return self.subscriber.ready_count

    @ready_count.setter
    def ready_count(self, count: int) -> None:
        self.subscriber.ready_count = count

    @property
    def blocked(self) -> bool:
        """The client does not read what was sent to it."""
        return self.subscriber.blocked

    @blocked.setter
    def blocked(self, blocked: bool) -> None:
        self.subscriber.blocked = blocked

    @property
    def in_flight_count(self) -> int:
        """How many messages of this queue the client has."""
        return self._in_flight_count

    @in_flight_count.setter
    def in_flight_count(self, count: int) -> None:
        self.subscriber.in_flight_count += count - self._in_flight_count
        self._in_flight_count = count

    @property
    def is_ready(self) -> bool:
        """It stands in its channel's line."""
        return self._is_ready

    @is_ready.setter
    def is_ready(self, is_ready: bool) -> None:
        self._is_ready = is_ready
        if is_ready:
            self.subscriber.out.pop(self, None)
        else:
            self.subscriber.out[self] = None
