"""A consumer: a client subscribed to a channel, as the core sees it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

from martlet.broker.queue.started import StartedMessages
from martlet.broker.queue.topology import TopologyPreference


class MessageReceiver(Protocol):
    """The other side of a consumer, behind a socket or in a test."""

    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        """Take these message frames. They stay valid and unchanged while they are referenced."""

    def channel_closed(self) -> None:
        """The channel or its topic was deleted: close the connection."""

    def failures_counted(self, max_attempts: int) -> None:
        """So many failures a message may have from now on, -1 for any number; 0 where they are not
        counted. Only a client that says what it starts is notified.
        """


class _Nobody:
    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        """Nothing is ever sent to nobody."""
        raise AssertionError("messages for nobody")

    def channel_closed(self) -> None:
        """There is nobody to notify."""

    def failures_counted(self, max_attempts: int) -> None:
        """There is nobody to notify."""


NOBODY = _Nobody()
"""Behind the consumer, number 0, that has what is kept from all others."""


class Lease(NamedTuple):
    """The offsets from `first` up to `end` are in flight until a deadline, but for those that the
    window does not show as held. They were delivered with a rank (see
    `martlet.broker.queue.started`).
    """

    first: int
    end: int
    deadline_ns: int
    rank: int


_first_offset = attrgetter("first")


class ChannelConsumer:
    """A subscription.

    Args:
        client: takes the messages.
        number: its number in the channel's window, from 1.
        timeout_ns: how long a message may stay in flight.
        sample_rate: the percentage of messages that it wants; 0 for all.
        with_properties: whether it gets the properties of messages.
        says_started: whether it says which messages it starts to handle.
        nearness: where it is.
    """

    __slots__ = (
        "answered",
        "blocked",
        "client",
        "finish_count",
        "in_flight_count",
        "is_ready",
        "leases",
        "message_count",
        "nearness",
        "number",
        "progress",
        "ready_count",
        "requeue_count",
        "sample_rate",
        "timeout_ns",
        "with_properties",
    )

    def __init__(
        self,
        client: MessageReceiver,
        number: int,
        timeout_ns: int,
        sample_rate: int = 0,
        *,
        with_properties: bool = False,
        says_started: bool = False,
        nearness: TopologyPreference = TopologyPreference.ELSEWHERE,
    ) -> None:
        self.client = client
        self.nearness = nearness
        self.number = number
        self.timeout_ns = timeout_ns
        self.sample_rate = sample_rate
        self.with_properties = with_properties
        self.ready_count = 0
        self.in_flight_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.blocked = False
        """The client does not read what was sent to it."""
        self.is_ready = False
        """It stands in its channel's line."""
        self.leases: deque[Lease] = deque()
        self.answered = -1
        """The highest offset that it has answered under a lease, and `progress` may not know of."""
        self.progress = StartedMessages(says_started=says_started)

    @property
    def room(self) -> int:
        """How many more messages may be sent to it now."""
        return 0 if self.blocked else self.ready_count - self.in_flight_count

    @property
    def trace_name(self) -> str:
        """Its name in a trace; its number where it has none, as in a test."""
        return getattr(self.client, "trace_name", "") or f"consumer {self.number}"

    def offer_room(self) -> None:
        """Let other queues use room that no answer of the client has made."""

    def lease_of(self, offset: int) -> Lease:
        """The lease under which it holds an offset."""
        leases = self.leases
        number = bisect_right(leases, offset, key=_first_offset) - 1
        lease = leases[number]
        assert lease.first <= offset < lease.end, f"offset {offset} is held without a lease"
        return lease

    def settle_progress(self) -> None:
        """Pass all that was answered on to `progress`."""
        offset = self.answered
        number = bisect_right(self.leases, offset, key=_first_offset) - 1
        if number >= 0 and offset < self.leases[number].end:
            self.progress.answered(self.leases[number].rank, offset)

    def cut_leases(self, end: int) -> None:
        """Drop the newest leases, as far as they reach beyond an offset."""
        self.settle_progress()
        self.answered = min(self.answered, end - 1)
        leases = self.leases
        while leases and leases[-1].first >= end:
            leases.pop()
        if leases and leases[-1].end > end:
            leases.append(leases.pop()._replace(end=end))

    def trim_leases(self, floor: int) -> None:
        """Drop the oldest leases of which everything is finished."""
        leases = self.leases
        while leases and leases[0].end <= floor:
            lease = leases.popleft()
            if lease.first <= self.answered < lease.end:
                self.progress.answered(lease.rank, self.answered)
