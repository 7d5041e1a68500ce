"""The subscriber: one client at all queues of a channel.

A topic of several queues has a channel at each of them, and a client that subscribes is a consumer
of each.  Its ready count, and whether its socket is blocked, apply to all of them together::

    RDY 5            queue 0    queue 1    queue 2
    in flight           2    +     0     +    3      = 5: no capacity at any of them
    in the line         no         yes        no        the queues that may send the next message

A share without capacity leaves its channel's ready line and waits in `out`. When capacity is freed,
by an answer or otherwise, the shares join their lines again, the longest waiting first: so the
queues take turns, and none waits until another is empty. Where queues have priorities,
`martlet.broker.channel.priority_turns` chooses instead.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from martlet.broker.queue.consumer import (
    ChannelConsumer,
    MessageReceiver,
    StartedMessages,
    TopologyPreference,
)

if TYPE_CHECKING:
    from martlet.broker.channel.delivery import Delivery
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.broker.channel.priority_turns import PriorityTurns


class Client(MessageReceiver, Protocol):
    """The client behind a subscription, over a socket or in a test."""

    def channel_grown(self, channel: PartitionedChannel, consumer: Subscriber) -> None:
        """Acknowledge to `channel`, as `consumer`, from now on: it has several queues."""


class Subscriber:
    """A client's consumers at the queues of a channel, by queue; see `ChannelConsumer`."""

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
        """The shares in no ready line, the longest waiting first."""
        self.out_bits = 0
        """Their queues: bits, by number."""
        self.ready_count = 0
        self.in_flight_count = 0
        self.blocked = False
        self.turns: PriorityTurns | None = None
        """Chooses the queue that delivers next; None where all have one priority."""
        self.held = False
        """Whether an answer is being processed: other queues get the freed capacity first."""

    @property
    def room(self) -> int:
        """The number of further messages that may be sent to the client now."""
        return 0 if self.blocked or self.held else self.ready_count - self.in_flight_count

    def resume_delivery(self) -> None:
        """Put the shares in `out` back into their lines, in turn, as long as there is capacity."""
        if self.turns is not None:
            self.turns.deliver(self)
        out = self.out
        for _ in range(len(out)):
            if not out or self.room <= 0:
                return
            share = next(iter(out))
            share.channel.resume(share)

    @property
    def message_count(self) -> int:
        """The number of messages sent to the client."""
        return sum(share.message_count for share in self.shares)

    @property
    def finish_count(self) -> int:
        """The number of messages that it has finished."""
        return sum(share.finish_count for share in self.shares)

    @property
    def requeue_count(self) -> int:
        """The number of messages that it has requeued."""
        return sum(share.requeue_count for share in self.shares)


class Share(ChannelConsumer):
    """A subscriber at one queue, as a consumer of the channel there."""

    __slots__ = ("_bit", "_in_flight_count", "_is_ready", "channel", "subscriber")

    def __init__(self, subscriber: Subscriber, channel: Delivery, number: int) -> None:
        self.subscriber = subscriber
        self.channel = channel
        self._bit = 1 << channel.state.queue.number
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
        """Make a share that replaces a consumer without a subscriber."""
        share = cls(subscriber, channel, consumer.number)
        counts = "message_count", "finish_count", "requeue_count"
        for name in (*counts, "leases", "answered", "progressed_ns", "started"):
            setattr(share, name, getattr(consumer, name))
        share.progress = subscriber.progress = consumer.progress
        subscriber.ready_count = consumer.ready_count
        subscriber.blocked = consumer.blocked
        share.in_flight_count = consumer.in_flight_count
        share.is_ready = consumer.is_ready
        return share

    @property
    def room(self) -> int:
        """The number of further messages that may be sent to the client now."""
        return self.subscriber.room

    @property
    def is_held(self) -> bool:
        """Whether an answer is being processed, and it is resumed after that."""
        return self.subscriber.held

    @property
    def queue_count(self) -> int:
        """The number of queues that share its ready count."""
        return len(self.subscriber.shares)

    def offer_room(self) -> None:
        """Offer capacity that no answer of the client has freed to the other queues."""
        self.subscriber.resume_delivery()

    def settle_progress(self) -> None:
        """Update `progress` with all answers, on every queue."""
        for share in self.subscriber.shares:
            super(Share, share).settle_progress()

    # Properties over the subscriber's totals; the base class has plain attributes.

    @property
    def ready_count(self) -> int:
        """The client's ready count, for all queues."""
        return self.subscriber.ready_count

    @ready_count.setter
    def ready_count(self, count: int) -> None:
        self.subscriber.ready_count = count

    @property
    def blocked(self) -> bool:
        """Whether the client has stopped reading from its socket."""
        return self.subscriber.blocked

    @blocked.setter
    def blocked(self, blocked: bool) -> None:
        self.subscriber.blocked = blocked

    @property
    def in_flight_count(self) -> int:
        """The number of this queue's messages that the client holds."""
        return self._in_flight_count

    @in_flight_count.setter
    def in_flight_count(self, count: int) -> None:
        self.subscriber.in_flight_count += count - self._in_flight_count
        self._in_flight_count = count

    @property
    def is_ready(self) -> bool:
        """Whether it is in its channel's ready line."""
        return self._is_ready

    @is_ready.setter
    def is_ready(self, is_ready: bool) -> None:
        self._is_ready = is_ready
        subscriber = self.subscriber
        if is_ready:
            subscriber.out.pop(self, None)
            subscriber.out_bits &= ~self._bit
        else:
            subscriber.out[self] = None
            subscriber.out_bits |= self._bit
