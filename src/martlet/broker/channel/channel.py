"""The channel: the consumers that share a topic's messages.

A channel copies nothing.  It is a cursor over the topic's log, with NSQ's rules for messages in
flight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from martlet.broker.channel.delivery import Delivery
from martlet.broker.channel.ordering import KeyOrdering, Ordering, QueueOrdering
from martlet.broker.channel.priority_turns import ChannelRate
from martlet.broker.channel.redelivery import Redelivery, charged_of
from martlet.broker.channel.subscriber import Client, Share, Subscriber
from martlet.broker.errors import Conflict, TooMany
from martlet.broker.groups.group_queue import ExternalReader, GroupQueue, group_queue
from martlet.broker.offset_ranges import Offsets, Stretch, apart_from, distinct, inside
from martlet.broker.queue.channel_state import (
    ChannelContext,
    ChannelState,
    MovingMessages,
    Source,
    Waiting,
    oldest_age_ns,
)
from martlet.broker.queue.consumer import ChannelConsumer, TopologyPreference
from martlet.broker.retry import RetryPolicy
from martlet.broker.tracing.recorder import TraceStep
from martlet.properties.model import NORMAL_PRIORITY
from martlet.rate_limit import TokenBucket
from martlet.text import MILLISECOND_NS

if TYPE_CHECKING:
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.broker.groups.membership import GroupConsumer
    from martlet.broker.policy import ChannelPolicy
    from martlet.broker.queue.channel_filter import ChannelFilter
    from martlet.broker.queue.cursor import Cursor
    from martlet.broker.queue.pending import PendingMessage
    from martlet.broker.tracing.finish_ages import Latency

ConsumerT = TypeVar("ConsumerT", bound=ChannelConsumer)
_NO_OFFSETS: Offsets = np.empty(0, np.int64)

SAME_NS = MILLISECOND_NS
"""Clocks that are nearer to each other agree: dates that are shown do not tremble."""


class Channel(ChannelState):
    """A channel of a topic, at one of its queues: its state, and the objects that work on it.

    The topic calls what is in `waiting` for new messages: this channel's delivery, while a consumer
    has capacity.
    """

    def __init__(
        self,
        context: ChannelContext,
        id: int,
        topic: str,
        name: str,
        cursor: Cursor,
        source: Source,
        waiting: dict[Waiting, None],
    ) -> None:
        super().__init__(context, id, topic, name, cursor, source)
        self.delivery = delivery = Delivery(self, waiting)
        self.redelivery = redelivery = Redelivery(self, delivery)
        self.moving = MovingMessages(self, delivery.pump)
        self.alarm = context.schedule.alarm(self._expire, NORMAL_PRIORITY - self.queue.priority)
        self.at_queues: list[Channel] = [self]
        """The channel at each queue of the topic, by number."""
        self.all_queues: Channel | PartitionedChannel = self
        """The object that clients subscribe to."""
        self.group: GroupQueue | None = None
        """The members and their queues, of a group."""
        self._last_number = 0
        self._follow_wall()
        # Bound methods, as attributes: a wrapper would cost a call for each message.
        self.pump = delivery.pump
        self.resume = delivery.resume
        self.set_ready = delivery.set_ready
        self.set_blocked = delivery.set_blocked
        self.spread = delivery.spread
        self.requeue = redelivery.requeue
        self.give_back = redelivery.give_back
        self.reject = redelivery.reject
        self.touch = redelivery.touch
        self.finish_ended = redelivery.finish_ended
        self.started = redelivery.started

    def configure(self, policy: ChannelPolicy) -> None:
        """Apply a policy from now on."""
        before, self.policy = self.policy, policy
        self.retry = RetryPolicy.of(policy)
        self._limit_rate(before)
        self.channel_filter = _filter_of(policy)
        if policy.kind != "shared" and self.group is None:
            self.group = group_queue(self, policy.kind)
            self.group.members.on_lost = self._charge
        how, until_now = ((p.kind, p.order, p.lock_ms) for p in (policy, before))
        if how != until_now:
            delivery = self.delivery
            if isinstance(delivery.order, Ordering):
                delivery.order.end()
            delivery.order = self.group
            if policy.order == "key":
                delivery.order = KeyOrdering(delivery)
            elif policy.order == "queue":
                delivery.order = QueueOrdering(delivery, policy.lock_ms * MILLISECOND_NS)

    def _limit_rate(self, before: ChannelPolicy) -> None:
        """Apply the policy's rate, if it differs from the one before; all queues share a limit."""
        rate_per_s, burst = self.policy.rate_per_s, self.policy.rate_burst
        if (rate_per_s, burst) == (before.rate_per_s, before.rate_burst):
            return
        self.delivery.rate_limit = None
        if self.at_queues[0] is not self:
            self.delivery.rate_limit = self.at_queues[0].delivery.rate_limit
        elif rate_per_s:
            clock = self.context.clock
            alarm = self.context.schedule.alarm(lambda _now_ns: limit.ring())
            limit = ChannelRate(TokenBucket(rate_per_s, burst, clock()), clock, alarm.at)
            self.delivery.rate_limit = limit

    def _charge(self, member: GroupConsumer) -> None:
        """Charge a lost member with all messages that it had started, at any queue."""
        for queue, started in member.started.items():
            group = self.at_queues[queue].group
            if group is not None and queue in member.held:
                group.charge(started, member)

    # statistics

    @property
    def client_count(self) -> int:
        """The number of consumers."""
        return len(self.consumers)

    @property
    def depth(self) -> int:
        """The number of messages waiting for delivery, deferred ones excluded."""
        cursor = self.cursor
        fresh = self.source.count_from(cursor.next) - cursor.deferred_ahead
        if self.group is not None:
            fresh += self.group.own_ahead
        return fresh + cursor.pending.ready_count

    @property
    def oldest_age_ns(self) -> int:
        """How long the oldest waiting message has been waiting, in nanoseconds; 0 where none is."""
        return oldest_age_ns(self)

    @property
    def message_count(self) -> int:
        """The number of messages that the channel has received since the broker was started."""
        return self.source.limit - self.counted_from

    @property
    def latency(self) -> Latency | None:
        """Latencies from publish to finish, if percentiles are measured."""
        return self.finishes.latency

    @property
    def delivered_near_counts(self) -> list[int]:
        """The numbers of deliveries to consumers in the broker's zone, in its region, and
        elsewhere; empty if near consumers are not preferred.
        """
        if not self.context.settings.prefers_near:
            return []
        counts = self.delivered_near_before.copy()
        for consumer in self.consumers:
            counts[consumer.nearness] += consumer.message_count
        return counts

    @property
    def in_flight_count(self) -> int:
        """The number of messages with consumers, or on their way to another topic."""
        with_consumers = sum(consumer.in_flight_count for consumer in self.consumers)
        return with_consumers + self.moving.consumer.in_flight_count

    @property
    def deferred_count(self) -> int:
        """The number of messages that wait for a time, in the channel or in its topic's buckets."""
        waiting = self.cursor.pending.waiting_count
        return waiting + self.context.delayed_count(self.cursor.queue.topic)

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
    ) -> ChannelConsumer:
        """Subscribe a client. Raises TooMany."""
        self._last_number = self._next_number()
        return self._add(
            ChannelConsumer(
                client,
                self._last_number,
                timeout_ns,
                sample_rate,
                with_properties=with_properties,
                says_started=says_started,
                nearness=nearness,
            )
        )

    def _next_number(self) -> int:
        if self.group is not None:
            raise Conflict(
                f"{self.name!r} of topic {self.topic!r} is a group, whose members join it and"
                " fetch; subscribe to a channel of another name"
            )
        max_count = self.context.settings.max_consumers
        if max_count and len(self.consumers) >= max_count:
            raise TooMany(f"consumers for {self.topic}:{self.name} exceeds limit of {max_count}")
        return self._last_number + 1

    def _add(self, consumer: ConsumerT) -> ConsumerT:
        self.consumers.append(consumer)
        self.numbers[consumer.number] = consumer
        return consumer

    def add_share(self, subscriber: Subscriber) -> None:
        """Subscribe a client that consumes other queues too. Raises TooMany."""
        self._last_number = self._next_number()
        subscriber.shares.append(self._add(Share(subscriber, self.delivery, self._last_number)))

    def spread_out(self, consumer: ChannelConsumer) -> Subscriber:
        """Replace a consumer of one queue by a subscriber of several."""
        subscriber = Subscriber(
            cast("Client", consumer.client),  # `add_consumer` takes a `Client`.
            consumer.timeout_ns,
            consumer.sample_rate,
            with_properties=consumer.with_properties,
            says_started=consumer.progress.says_started,
            nearness=consumer.nearness,
        )
        share = Share.instead_of(consumer, subscriber, self.delivery)
        subscriber.shares.append(share)
        self.consumers[self.consumers.index(consumer)] = share
        self.numbers[consumer.number] = share
        if consumer.is_ready:
            self.delivery.replace_in_line(consumer, share)
        for _, message in self.cursor.pending.owned_by(consumer):
            message.owner = share
        return subscriber

    def remove_consumer(
        self, consumer: ChannelConsumer, charged: Collection[int] | None = None
    ) -> None:
        """Unsubscribe a client: redeliver its messages to others at once. Those at the `charged`
        offsets have failed; by default those that it may have started.
        """
        if charged is None:
            (charged,) = charged_of([(self, consumer)])
        assert self.numbers[consumer.number] is consumer
        self.consumers.remove(consumer)
        self.delivered_before += consumer.message_count
        self.delivered_near_before[consumer.nearness] += consumer.message_count
        del self.numbers[consumer.number]
        self.delivery.leave_line(consumer)
        self.redelivery.redeliver_held(consumer, charged)
        assert not consumer.is_ready
        if consumer.in_flight_count:
            consumer.in_flight_count = 0
            self.moved()
        self.pump()  # It may also have locked the queue.

    # acknowledgements

    def finish(self, consumer: ChannelConsumer, offset: int) -> None:
        """Handle FIN. Raises NotInFlight."""
        if not self._finish_one(consumer, offset):
            raise self.redelivery.not_in_flight(consumer, offset)

    def _finish_one(self, consumer: ChannelConsumer, offset: int) -> bool:
        """Finish a message. Returns whether it was in flight."""
        cursor = self.cursor
        if cursor.window.release_one(consumer.number, offset):
            consumer.answered = max(consumer.answered, offset)
        else:
            message = cursor.pending.get(offset, consumer)
            if message is None:
                return False
            consumer.progress.answered(message.first_rank, offset)
            # The answer may be to an earlier delivery: the client may have another copy.
            if message.first_rank < message.rank:
                consumer.progress.answered_late(self.context.clock(), used_up=False)
            cursor.pending.remove(offset)
        self.finishes.note(offset)
        if self.recorder is not None:
            self.recorder.note(
                TraceStep.FINISHED, offset, offset + 1, self.context.wall(), consumer
            )
        self._finished(consumer, 1)
        return True

    def finish_run(self, consumer: ChannelConsumer, offsets: Offsets) -> Offsets:
        """Handle FIN of many offsets, in any order. Returns those that must be finished one by one:
        they are not in the window, or given twice.
        """
        if len(offsets) == 1:  # As of each of many queues; numpy would take longer.
            return _NO_OFFSETS if self._finish_one(consumer, offsets.item()) else offsets
        window = self.cursor.window
        left = _NO_OFFSETS
        rising = bool((offsets[1:] > offsets[:-1]).all())
        if rising and window.release_run(consumer.number, offsets):
            consumer.answered = max(consumer.answered, int(offsets[-1]))
        else:
            held = window.held_of(consumer.number, offsets)
            some = np.sort(offsets[held])
            if not (some[1:] > some[:-1]).all():
                return offsets
            if len(some):
                window.release_run(consumer.number, some)
                consumer.answered = max(consumer.answered, int(some[-1]))
            others, left = self._finish_pending(consumer, offsets[~held])
            if not len(some) and not len(others):
                return offsets
            offsets = np.sort(np.concatenate((some, others)))
        self.finishes.note_run(offsets)
        if self.recorder is not None:
            self.recorder.note_run(TraceStep.FINISHED, offsets, self.context.wall(), consumer)
        self._finished(consumer, len(offsets))
        return left

    def _finish_pending(
        self, consumer: ChannelConsumer, offsets: Offsets
    ) -> tuple[Offsets, Offsets]:
        """Finish the pending messages that a consumer has in flight. Returns them, and the rest."""
        pending = self.cursor.pending
        held: dict[int, PendingMessage[ChannelConsumer]] = {}
        left: list[int] = []
        for offset in offsets.tolist():
            message = None if offset in held else pending.get(offset, consumer)
            if message is None:
                left.append(offset)
            else:
                held[offset] = message
        if not held:
            return _NO_OFFSETS, offsets
        consumer.progress.answered(*max((held[offset].first_rank, offset) for offset in held))
        # Some answers may be to earlier deliveries, as in `finish`.
        if any(message.first_rank < message.rank for message in held.values()):
            consumer.progress.answered_late(self.context.clock(), used_up=False)
        pending.finish_owned(held.keys())
        return np.fromiter(held, np.int64, len(held)), np.array(left, np.int64)

    def _finished(self, consumer: ChannelConsumer, count: int) -> None:
        consumer.in_flight_count -= count
        consumer.finish_count += count
        if consumer.progress.in_order:
            consumer.progressed_ns = self.context.clock()
        if not self.dirty:
            self.moved()
        self.resume(consumer)

    # time

    def _expire(self, now_ns: int) -> int | None:
        """Requeue timed-out messages and deliver due ones. Returns when to run again."""
        if self.redelivery.time_out(now_ns):
            self.moved()
            self.delivery.line_up(self.consumers)
        self.pump()
        times = [c.leases[0].deadline_ns for c in self.consumers if c.leases]
        earliest_ns = self.cursor.pending.earliest_ns()
        if earliest_ns is not None:
            times.append(earliest_ns)
        return min(times, default=None)

    # operations

    @property
    def _reads_deferred(self) -> bool:
        """Whether deferred messages are read at once, like all others: by a follower."""
        return isinstance(self.group, ExternalReader)

    def schedule(self, first: int, end: int) -> None:
        """Schedule the deferred messages from an offset up to another."""
        if self._reads_deferred:
            return
        # The members of a group fetch the batches for the group alone.
        number = self.id if self.group is None else 0
        due_ns = self.cursor.schedule(first, end, self.context.clock(), number)
        if due_ns is not None:
            self.alarm.at(due_ns)
            self.moved()

    def follow_wall(self) -> None:
        """Let deferred messages keep their dates after the wall clock was set."""
        self._follow_wall()
        self.arm()

    def _follow_wall(self) -> None:
        context, now_ns, pending = self.context, self.context.clock(), self.cursor.pending
        wall_ns, stored_ns = context.wall() - now_ns, context.stored_at_ns() - now_ns
        if abs(stored_ns - wall_ns) < SAME_NS:  # Read one after the other.
            stored_ns = wall_ns
        changes_ns = wall_ns - pending.wall_ahead_ns, stored_ns - pending.stored_ahead_ns
        if max(map(abs, changes_ns)) >= SAME_NS:
            pending.follow_wall(wall_ns, stored_ns)

    def arm(self) -> None:
        """Set the alarm after a restart."""
        earliest_ns = self.cursor.pending.earliest_ns()
        if earliest_ns is not None:
            self.alarm.at(earliest_ns)
        if self.group is not None:
            self.alarm.at(self.context.clock())

    def deliver_again(self, attempts: Mapping[int, int]) -> None:
        """Deliver imported messages that their former broker had delivered before.

        `attempts` has by offset how often.
        """
        self.wait_again((offset, count, 0, 0) for offset, count in attempts.items())
        self.pump()

    def wait_again(self, messages: Iterable[tuple[int, int, int, int]]) -> None:
        """Make messages below the cursor wait for delivery; the caller then calls
        `resume_delivery`. A message that waits already, or is in flight, is left as it is.

        Args:
            messages: of each its offset, its attempts, its time in ns (0 for now) and its failures.
        """
        now_ns = self.context.clock()
        window, pending = self.cursor.window, self.cursor.pending
        for offset, attempts, due_ns, failures in messages:
            assert offset < window.next
            if offset in pending.by_offset or window.is_held(offset):
                continue
            due_ns = max(due_ns, now_ns)
            pending.wait(offset, attempts, due_ns, now_ns, failures)
            self.alarm.at(due_ns)
        if isinstance(self.delivery.order, Ordering):
            self.delivery.order.begin_again()
        self.moved()

    def set_paused(self, paused: bool) -> None:
        """Pause delivery or resume it."""
        self.paused = paused
        self.pump()

    def empty(self) -> None:
        """Finish all stored messages; the members of a group have to join again."""
        if self.group is not None:
            self.group.members.dismiss()
        self.advance(self.source.limit)

    def advance(self, offset: int) -> None:
        """Finish everything below an offset, in flight or not; messages above stay unchanged."""
        cursor = self.cursor
        self._drop([(0, offset)])
        if offset > cursor.next:
            cursor.skip_to(offset, self.source.deferred_from(offset))
        self.resume_delivery()

    def _drop(self, stretches: Sequence[Stretch]) -> None:
        """Drop the messages of some ranges, in flight or pending."""
        window, pending = self.cursor.window, self.cursor.pending
        for first, end in stretches:
            for number, count in window.release_all(first, end).items():
                self.numbers[number].in_flight_count -= count
        for offset in inside(stretches, self._pending_offsets()).tolist():
            owner = pending.by_offset[offset].owner
            if owner is not None:
                owner.in_flight_count -= 1
            pending.remove(offset)
        self.delivery.changed()

    def drop(self, count: int) -> None:
        """Count dropped messages."""
        self.dropped_count += count
        self.moved()

    def _pending_offsets(self) -> Offsets:
        by_offset = self.cursor.pending.by_offset
        return np.fromiter(by_offset, np.int64, len(by_offset))

    def resume_delivery(self) -> None:
        """Deliver to consumers that may have capacity without having answered."""
        self.moved()
        self.delivery.line_up(self.consumers)
        self.pump()

    def go_back(self, offset: int) -> None:
        """Set the channel back to an offset; the state of messages below it stays unchanged.

        The caller schedules deferred messages again, and then calls `resume_delivery`.
        """
        cursor = self.cursor
        for consumer in self.consumers:
            self.redelivery.recall(consumer)
            for lease in consumer.leases:
                first = max(lease.first, offset)
                held = cursor.window.release_range(consumer.number, first, lease.end)
                consumer.in_flight_count -= len(held)
            consumer.cut_leases(offset)
        for pending_offset, message in cursor.pending.by_offset.items():
            if pending_offset >= offset and message.owner is not None:
                message.owner.in_flight_count -= 1
        cursor.go_back(offset)
        self.delivery.changed()
        self.moved()

    # deleted messages

    def unfinished(self, gone: Sequence[Stretch]) -> Offsets:
        """Return the unfinished offsets in some ranges, rising, including those beyond a pause."""
        cursor, source, index = self.cursor, self.source, self.cursor.queue.index
        pieces = [inside(gone, self._pending_offsets())]
        for first, end in gone:
            pieces.append(cursor.window.held_offsets(first, end))
            for begin, stop in source.stretches(max(first, cursor.next), max(end, cursor.next)):
                # Scheduled deferred messages are pending, or finished.
                shown = (
                    ()
                    if self._reads_deferred
                    else index.deferred(begin, min(stop, source.limit), self.own_mark)
                )
                pieces += [np.arange(*stretch) for stretch in apart_from(shown, begin, stop)]
        return distinct(pieces)

    def drop_ranges(self, gone: Sequence[Stretch]) -> None:
        """Drop the messages of deleted ranges. The caller calls `resume_delivery` at the end."""
        cursor, source = self.cursor, self.source
        index = cursor.queue.index
        self._drop(gone)
        for first, end in gone:
            if not self._reads_deferred:
                ahead = source.stretches(max(first, cursor.next), min(end, source.limit))
                cursor.deferred_ahead -= sum(index.count_deferred(*stretch) for stretch in ahead)
            if first <= cursor.next < end:
                cursor.skip_to(end, cursor.deferred_ahead)

    def close(self) -> None:
        """Close a deleted channel: its clients are notified, and get no more messages."""
        self.alarm.cancel()
        self.closed = self.paused = True
        self.delivery.watch(None)
        if self.group is not None:
            self.group.end()
        if self.queue.number:
            return  # Queue 0 notifies the clients, once for all queues.
        for consumer in list(self.consumers):
            consumer.client.channel_closed()


def _filter_of(policy: ChannelPolicy) -> ChannelFilter | None:
    """Return the filter of a channel; None where it gets all messages."""
    if not (policy.tags or policy.filter):
        return None
    # Imported here, as a broker whose channels have no filter starts without.
    from martlet.broker.queue.channel_filter import ChannelFilter

    return ChannelFilter(policy.tags, policy.filter)
