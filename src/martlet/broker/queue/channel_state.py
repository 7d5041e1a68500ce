"""The state of a channel at one queue, which the parts of the channel share.

It has no rules: those are the parts' (`martlet.broker.channel`), and those of a group
(`martlet.broker.groups.group_queue`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from martlet.broker.context import BrokerContext
from martlet.broker.policy import ChannelPolicy
from martlet.broker.queue.topology import TopologyPreference
from martlet.broker.tracing.finish_ages import FinishAges
from martlet.names import is_ephemeral

if TYPE_CHECKING:
    from martlet.broker.offset_ranges import Stretch
    from martlet.broker.queue.aside import AsideMessages
    from martlet.broker.queue.consumer import ChannelConsumer
    from martlet.broker.queue.cursor import Cursor
    from martlet.broker.queue.tag_filter import TagFilter
    from martlet.broker.retry import DeadLetterReason, RetryPolicy
    from martlet.broker.schedule import Alarm
    from martlet.broker.tracing.recorder import TraceRecorder


class ChannelContext(BrokerContext, Protocol):
    """What a channel needs of its broker."""

    def changed(self, channel: ChannelState) -> None:
        """The channel's cursor moved: journal it before long."""

    def write_cursor(self, channel: ChannelState) -> None:
        """Write down at once where a channel's cursor is. Raises WritesRefused."""

    def delayed_count(self, topic_number: int, /) -> int:
        """How many messages wait until all channels of a topic get them."""

    def put_off(self, channel: ChannelState, error: OSError) -> None:
        """The channel can not read its messages at the moment; it is tried again."""

    def bury(
        self,
        channel: ChannelState,
        offset: int,
        attempts: int,
        failures: int,
        reason: DeadLetterReason,
    ) -> None:
        """Move a message that no consumer has to the channel's dead-letter topic."""

    def append_again(self, channel: ChannelState, offset: int, attempts: int) -> None:
        """Move a message that is due to the end of its queue, for its channel alone."""


class Waiting(Protocol):
    """What is to be called when messages arrive in a queue."""

    def pump(self) -> None:
        """Some have arrived."""

    def pump_lone(self, offset: int, frame: memoryview) -> None:
        """One has arrived."""


class Source(Protocol):
    """What a channel reads: its topic, as far as the channel sees it."""

    @property
    def limit(self) -> int:
        """The offset up to which the channel sees it."""

    def limit_of(self, cursor: Cursor) -> int:
        """The offset up to which a cursor may go from where it is."""

    def count_from(self, offset: int) -> int:
        """How many messages the channel sees from an offset on."""

    def stretches(self, first: int, end: int | None = None) -> Iterator[Stretch]:
        """What the channel sees of the offsets from `first` on, up to `end` or the limit."""

    def deferred_from(self, offset: int) -> int:
        """How many of the messages that it sees from an offset on are deferred."""


class ChannelState:
    """A channel at one queue: its cursor, consumers, policy and counts.

    Args:
        context: the broker's clock, schedule and journal.
        id: its number in the log.
        topic: the topic's name.
        name: its own.
        cursor: where it stands.
        source: what it reads.
    """

    alarm: Alarm
    """Rings when something is due, or times out."""
    aside: AsideMessages
    """Messages on their way to another topic."""

    def __init__(
        self,
        context: ChannelContext,
        id: int,
        topic: str,
        name: str,
        cursor: Cursor,
        source: Source,
    ) -> None:
        self.context = context
        self.id = id
        self.topic = topic
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.cursor = cursor
        self.queue = cursor.queue
        self.topic_id = cursor.queue.topic
        """The topic's number in the log, at this queue."""
        self.source = source
        self.voids: Sequence[Stretch] = ()
        """Offsets of its topic that do not concern it."""
        self.policy = ChannelPolicy()
        self.retry: RetryPolicy | None = None
        """What the policy says of messages that fail; None for NSQ's rules."""
        self.wanted: TagFilter | None = None
        """Which messages it gets; None for all."""
        self.consumers: list[ChannelConsumer] = []
        self.numbers: dict[int, ChannelConsumer] = {}
        """The consumers by their numbers."""
        self.paused = False
        self.closed = False
        """Whether it was deleted."""
        self.dirty = False
        """Whether its cursor has moved since that was journaled."""
        self.trail: TraceRecorder | None = None
        """What becomes of its messages, where that is traced."""
        # Counts of messages, since the broker was started.
        self.retry_count = 0
        """Delivered again."""
        self.timeout_count = 0
        self.requeue_count = 0
        self.committed_count = 0
        """Below an offset that was committed, where it is a group."""
        self.dead_letter_count = 0
        self.dropped_count = 0
        """Given up, to make room, before they were finished."""
        self.delivered_before = 0
        """Delivered to consumers that have left."""
        self.delivered_near_before = [0] * len(TopologyPreference)
        self.counted_from = cursor.next
        """Messages below this offset came before the broker was started."""
        self.finishes = FinishAges(cursor.queue.index, context.clock)

    def moved(self) -> None:
        """The cursor has moved: have it journaled."""
        if not self.dirty:
            self.dirty = True
            self.context.changed(self)

    @property
    def retries(self) -> bool:
        """Whether the broker decides about messages that fail."""
        return self.retry is not None

    @property
    def max_attempts(self) -> int:
        """How often a message may fail; -1 for ever, 0 where failures are not counted."""
        return 0 if self.retry is None else self.retry.max_attempts or -1

    @property
    def own_mark(self) -> int:
        """What batches have in place of a time that are for a group alone; 0 for a channel, whose
        own are stragglers.
        """
        return 0 if self.policy.kind == "shared" else -self.id

    @property
    def delivered_count(self) -> int:
        """How many messages have gone to consumers since the start, those delivered again too."""
        return self.delivered_before + sum(c.message_count for c in self.consumers)
