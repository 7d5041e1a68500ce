"""A consumer: a client subscribed to a channel, and which of its messages it has started to handle.

Only started messages fail when they time out or the connection is lost; the others were waiting in
the client and are redelivered without a failure.  Deliveries have ranks, rising over all queues,
one for each grant; so rank and offset together are the order of delivery to a client.

Martlet's clients announce the messages that they start; for NSQ's clients, which cannot, it is
inferred from the order, since clients handle messages in the order of delivery::

    event             the client announces    it does not
    STARTED m         reached: m              reached: m
    FIN, REQ of m     -                       reached: m; from the touched one on: none is touched
    TOUCH m           -                       reached: m; touched: m, unless it is before reached
    m times out       one more copy of a timed-out message is in the client
    FIN, REQ of       one copy less, unless the client has another of it; the client is at the
    a copy            copies now

    m times out, or its client is lost: the first row that fits
    up to reached                             charged; if it is touched: none is, a round begins
    the client announces                      not charged: it waits in the client
    delivered before the round began          not charged: it waited behind the one charged then
    one is touched, and not timed out         not charged: the client is at that one
    copies are left, and the client was at    not charged: the client has not come to m yet
    them after the delivery of m
    anything else: the first behind reached   charged: a handler may have it; a round begins

Reached and touched only move forward. Each answer to a copy uses one up, so no message is
redelivered for ever without a failure.

A message that crashes clients which announce it fails at each loss. The first loss makes no dead
letter, since the client's last answers and announcements may be lost with it: the messages that
fail become suspects, which a client handles one at a time, each once the broker has answered its
announcement. So a poison message is dead after ``max_attempts`` losses, or 2 if that is 1, and a
harmless one fails at most once. If the broker is killed while it moves a dead letter, the message
is delivered once more, which costs up to 2 losses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import count
from operator import attrgetter
from typing import NamedTuple, Protocol

from martlet.properties.model import Properties

Rank = tuple[int, int]
"""The rank and offset of a message: the order of delivery to a client."""
NOTHING: Rank = (0, -1)

next_rank = count(1).__next__


def notes_of(failures: int, *, is_suspect: bool) -> bytes:
    """Return the notes on a failed message for a client that announces messages, as packed
    properties: ``failures``, and ``suspect`` if the last failure was a lost connection.
    """
    suspect = {"suspect": "1"} if is_suspect else {}
    return Properties(system={"failures": str(failures), **suspect}).pack()


class StartedMessages:
    """The progress of a client in its deliveries, on all queues of a channel."""

    __slots__ = (
        "_at_copies_ns",
        "_copy_count",
        "_reached",
        "_round_rank",
        "_touched",
        "_touched_until_ns",
        "in_order",
        "says_started",
        "takes_no_more",
    )

    def __init__(self, *, says_started: bool = False) -> None:
        self.says_started = says_started
        """Whether the client announces the messages that it starts."""
        self.in_order = False
        """Whether the client handles each queue's messages one after the other, and drops those
        behind one that fails. It announces each, so not all delivered before were started.
        """
        self.takes_no_more = False
        """Whether the client closes by CLS: messages that it returns then were not started."""
        self._reached = NOTHING
        self._touched = NOTHING
        self._touched_until_ns = 0
        self._round_rank = 0
        """Messages of a lower rank were delivered before this round began."""
        self._copy_count = 0
        """The number of copies of timed-out messages that the client has yet to handle."""
        self._at_copies_ns = 0
        """When it last answered such a copy."""

    def started(self, rank: int, offset: int) -> None:
        """Record that the client starts this message, and started all delivered before it."""
        self._reached = max(self._reached, (rank, offset))

    def answered(self, rank: int, offset: int) -> None:
        """Record the client's answer to this message."""
        if not self.says_started:
            self.started(rank, offset)
            if (rank, offset) >= self._touched:
                self._touched_until_ns = 0

    def touched(self, rank: int, offset: int, until_ns: int) -> None:
        """Record that the client extended this message's timeout."""
        if not self.says_started:
            if (rank, offset) >= self._reached:
                self._touched, self._touched_until_ns = (rank, offset), until_ns
            self.started(rank, offset)

    def timed_out(self) -> None:
        """Record that the client has a copy of a message that timed out."""
        self._copy_count += 1

    def answered_late(self, now_ns: int, *, used_up: bool = True) -> None:
        """Record the client's answer to such a copy; unless `used_up`, it has another copy."""
        if self._copy_count:
            self._copy_count -= used_up
            self._at_copies_ns = now_ns

    def charges(self, rank: int, offset: int, delivered_at_ns: int, now_ns: int) -> bool:
        """Whether a message gets a failure when its client is lost, or it times out.

        Must be called in the order of delivery.
        """
        if (rank, offset) <= self._reached:
            if (rank, offset) == self._touched and self._touched_until_ns:
                self._touched_until_ns = 0
                self._round_rank = next_rank()
            return True
        if (
            self.says_started
            or rank < self._round_rank
            or now_ns < self._touched_until_ns
            or (self._copy_count and self._at_copies_ns > delivered_at_ns)
        ):
            return False
        self._round_rank = next_rank()
        return True

    def is_blamed_for(self, *, is_suspect: bool) -> bool:
        """Whether the loss of the client may make this message, which failed by it, a dead letter:
        if it is a suspect, or the client announces nothing.
        """
        return not self.says_started or is_suspect


class TopologyPreference(IntEnum):
    """The distance of a consumer from the broker; the nearest first."""

    ZONE = 0
    REGION = 1
    ELSEWHERE = 2


def nearness(broker: tuple[str, str], client: tuple[str, str]) -> TopologyPreference:
    """Return a client's distance from a broker, each given by its zone and its region."""
    for near, here, there in zip(TopologyPreference, broker, client, strict=False):
        if here and here == there:
            return near
    return TopologyPreference.ELSEWHERE


class NearestFirst:
    """A ready line with the nearest consumers first, which take turns among themselves.

    It replaces a deque; its elements and length are those of the nearest consumers alone.
    """

    def __init__(self) -> None:
        self._lines: tuple[deque[ChannelConsumer], ...] = tuple(deque() for _ in TopologyPreference)

    @property
    def _first(self) -> deque[ChannelConsumer]:
        for line in self._lines:
            if line:
                return line
        return self._lines[0]

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, index: int) -> ChannelConsumer:
        return self._first[index]

    def __iter__(self) -> Iterator[ChannelConsumer]:
        for line in self._lines:
            yield from line

    def rotate(self, count: int) -> None:
        """Rotate the nearest consumers."""
        self._first.rotate(count)

    def append(self, consumer: ChannelConsumer) -> None:
        """Add a consumer behind those of the same distance."""
        self._lines[consumer.nearness].append(consumer)

    def extend(self, consumers: Iterable[ChannelConsumer]) -> None:
        """Add consumers, in their order."""
        for consumer in consumers:
            self.append(consumer)

    def clear(self) -> None:
        """Remove all consumers."""
        for line in self._lines:
            line.clear()

    def remove(self, consumer: ChannelConsumer) -> None:
        """Remove a consumer. Raises ValueError where it is not in the line."""
        self._lines[consumer.nearness].remove(consumer)


class MessageReceiver(Protocol):
    """The receiver of a consumer's messages, over a socket or in a test."""

    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        """Send these message frames. They stay valid and unchanged while they are referenced."""

    def channel_closed(self) -> None:
        """Close the connection, since the channel or its topic was deleted."""

    def failures_counted(self, max_attempts: int) -> None:
        """Handle a change of the maximum number of failures: -1 for any, 0 where they are not
        counted. Only a client that announces started messages is notified.
        """

    def recalled(self, queue: int) -> None:
        """Drop all messages of a queue that were sent before: they are redelivered. Only a client
        that handles messages in order is notified.
        """


class _InternalClient:
    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        raise AssertionError("the internal consumer gets no messages")

    def channel_closed(self) -> None: ...
    def failures_counted(self, max_attempts: int) -> None: ...
    def recalled(self, queue: int) -> None: ...


INTERNAL_CLIENT = _InternalClient()
"""The client of the internal consumer, number 0, that holds messages back from all others."""


class Lease(NamedTuple):
    """A range of offsets in flight until a deadline, all delivered with one rank.
    Those that the window does not show as held are finished.
    """

    first: int
    end: int
    deadline_ns: int
    rank: int


_first_offset = attrgetter("first")


class ChannelConsumer:
    """A subscription.

    Args:
        number: its number in the channel's window, from 1.
        timeout_ns: how long a message may stay in flight.
        sample_rate: the percentage of messages to deliver; 0 for all.
        with_properties: whether it gets the properties of messages.
        says_started: whether it announces the messages that it starts to handle.
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
        "progressed_ns",
        "ready_count",
        "requeue_count",
        "sample_rate",
        "started",
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
        """Whether the client has stopped reading from its socket."""
        self.is_ready = False
        """Whether it is in its channel's ready line."""
        self.leases: deque[Lease] = deque()
        self.answered = -1
        """The highest offset answered under a lease that `progress` may not have yet."""
        self.progress = StartedMessages(says_started=says_started)
        self.progressed_ns = 0
        """When a client that handles messages in order last finished one of this queue: since then
        it may handle the next.
        """
        self.started: Rank = NOTHING
        """The last message of this queue that the client has announced."""

    @property
    def room(self) -> int:
        """The number of further messages that may be sent to it now."""
        return 0 if self.blocked else self.ready_count - self.in_flight_count

    @property
    def is_held(self) -> bool:
        """Whether an answer is being processed, and it is resumed after that."""
        return False

    @property
    def queue_count(self) -> int:
        """The number of queues that share its ready count."""
        return 1

    @property
    def trace_name(self) -> str:
        """Its name in a trace; its number where it has none, as in a test."""
        return getattr(self.client, "trace_name", "") or f"consumer {self.number}"

    def offer_room(self) -> None:
        """Offer capacity that no answer of the client has freed to other queues."""

    def lease_of(self, offset: int) -> Lease:
        """Return the lease under which it holds an offset."""
        leases = self.leases
        number = bisect_right(leases, offset, key=_first_offset) - 1
        lease = leases[number]
        assert lease.first <= offset < lease.end, f"offset {offset} is held without a lease"
        return lease

    def settle_progress(self) -> None:
        """Pass all answers on to `progress`."""
        offset = self.answered
        number = bisect_right(self.leases, offset, key=_first_offset) - 1
        if number >= 0 and offset < self.leases[number].end:
            self.progress.answered(self.leases[number].rank, offset)

    def cut_leases(self, end: int) -> None:
        """Remove the newest leases, as far as they reach beyond an offset."""
        self.settle_progress()
        self.answered = min(self.answered, end - 1)
        leases = self.leases
        while leases and leases[-1].first >= end:
            leases.pop()
        if leases and leases[-1].end > end:
            leases.append(leases.pop()._replace(end=end))
        assert not leases or leases[-1].first < leases[-1].end <= end

    def trim_leases(self, floor: int) -> None:
        """Remove the oldest leases whose messages are all finished."""
        leases = self.leases
        while leases and leases[0].end <= floor:
            lease = leases.popleft()
            if lease.first <= self.answered < lease.end:
                self.progress.answered(lease.rank, self.answered)
