"""A broker's core and its model, side by side: how they are held against each other."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant
from tests.property.broker.core_invariants import check_core
from tests.property.broker.model import (
    NEVER,
    MessageState,
    ModelChannel,
    ModelConsumer,
    ModelTopic,
)

from martlet.broker.broker import BrokerCore
from martlet.broker.channel.channel import Channel
from martlet.broker.channel.subscriber import Subscriber
from martlet.broker.delayed.bucket import Bucket
from martlet.broker.errors import WritesRefused
from martlet.broker.policy import TopicPolicy
from martlet.broker.queue.consumer import ChannelConsumer
from martlet.broker.queue.cursor import Cursor
from martlet.broker.queue.queue_log import Receipt
from martlet.broker.recovery.restore import RestoredBroker, restore
from martlet.broker.retention.checkpoint import CheckpointJob
from martlet.broker.retention.eviction import Eviction, EvictionLoss, HistoryReclaimer
from martlet.broker.retention.history import Retention
from martlet.broker.topic.topic import Topic
from martlet.broker.tracing.finish_ages import quantiles
from martlet.log import checkpoint_file
from martlet.log.checkpoint_file import Checkpoint
from martlet.log.recovery import RecoveryReport, scan
from martlet.log.retention import Need
from martlet.log.segmented import FlushJob
from martlet.log.storage import Segment
from martlet.properties.model import KeyHash
from martlet.testing import SimulatedClock, SimulatedStorage

MILLISECOND_NS = 10**6
SECOND_NS = 10**9
MAX_TIMEOUT_NS = 5_000 * MILLISECOND_NS
SEGMENT_BYTES = 4096
SMALL_DISK_BYTES = 8 * SEGMENT_BYTES
FRAME = struct.Struct(">IIqH16s")


class WatchedEviction(Eviction):
    """Reports the losses of a segment before it goes."""

    def __init__(
        self,
        broker: BrokerCore,
        flush: Callable[[], bool],
        on_losses: Callable[[list[EvictionLoss]], None],
    ) -> None:
        super().__init__(broker, flush)
        self._on_losses = on_losses

    def _losses(self, segment: Segment, needed_by: list[Need]) -> list[EvictionLoss]:
        losses = super()._losses(segment, needed_by)
        self._on_losses(losses)
        return losses


class EdgeRandom(Random):
    """Chooses the numbers of a queue's ids so that they soon run over 64 bits."""

    def getrandbits(self, k: int, /) -> int:
        return (1 << 64) - 1 - self.randrange(60) if k == 64 else super().getrandbits(k)


class BesideModel(RuleBasedStateMachine):
    """A broker, its model, and what must be the same in both."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[str, ModelTopic] = {}
        self.clock = SimulatedClock()
        self.stored_ahead_ns = 0
        self.storage = SimulatedStorage(Random(0))
        self.real: dict[ModelConsumer, ChannelConsumer | Subscriber] = {}
        self.sent: list[tuple[ModelConsumer, bytes]] = []
        self.staged: list[tuple[Receipt, ModelTopic, list[bytes], int]] = []
        """Messages published in this turn, and their delivery times."""
        self.lost: list[tuple[str, str, int, int, str]] = []
        self.flushes: list[FlushJob] = []
        self.checkpoint: CheckpointJob | None = None
        self.checkpoint_saved = False
        self.at_checkpoint: Callable[[], None] = lambda: None
        self.deleted: list[tuple[str, str | None, int]] = []
        self.unmade: set[tuple[str, str]] = set()
        """Channels that were refused, though the head of a segment may have them already.
        """
        self.ungrown: set[str] = set()
        """Topics that were refused more queues, which may be there after a restart all the same."""
        self.made = 0
        self.dropping = False
        """A full disk drops the oldest messages."""
        self.torn = False
        """The log may have bad places, or the remains of a torn record behind its end."""
        self.holds = False
        """So far all went well: it makes sense to look at the end."""
        self.broker: BrokerCore

    @initialize(
        seed=st.integers(0, 1000),
        dropping=st.booleans(),
        retention_ms=st.sampled_from([0, 4000, 10_000_000]),
    )
    def open(self, seed: int, dropping: bool, retention_ms: int = 0) -> None:
        self.storage.random.seed(seed)
        self.retention_ms = retention_ms
        self.seed = seed
        self.dropping = dropping
        if dropping:
            self.storage.capacity_bytes = SMALL_DISK_BYTES
        self.restore()
        self.run()

    def restore(self) -> RestoredBroker:
        self.holds = False
        self.seed += 1
        behind_ns = self.newest_stored_ns() - self.clock.wall()
        self.broker, restored = self.make_broker(
            segment_bytes=SEGMENT_BYTES,
            max_timeout_ns=MAX_TIMEOUT_NS,
            latency_window_ns=10**18,
            retention=Retention(self.retention_ms * MILLISECOND_NS),
            traces=self.seed % 2 == 0,
            on_lost=lambda *args: self.lost.append(args),
        )
        if self.dropping:
            eviction = WatchedEviction(self.broker, self._flush_now, self._given_up)
            self.broker.log.on_full = lambda: self._make_room(eviction)
            self.lost.clear()
        else:
            HistoryReclaimer(self.broker)
        self.real.clear()
        self.sent.clear()
        self.flushes.clear()
        self.checkpoint = None
        if not self.torn:
            noted = [note for note in restored.notes if note.startswith("the clock is ")]
            assert bool(noted) == (behind_ns > SECOND_NS)
            assert self.broker.last_stored_ns >= self.clock.wall() + behind_ns
        self.follow_stored_times()
        return restored

    def make_broker(self, **options: Any) -> tuple[BrokerCore, RestoredBroker]:
        return restore(self.storage, self.clock, EdgeRandom(self.seed), **options)

    def run(self) -> None:
        """Do all that is due, however many turns of the loop it takes."""
        next_ns: int | None = 0
        while next_ns is not None and next_ns <= self.clock.now_ns + 1:
            self.clock.advance(1)
            for channel in self.channels():
                channel.expire(self.clock.now_ns)
            next_ns = self.broker.run()
            self.settle()

    # the wall clock; the model knows the running time alone

    def date(self, time_ns: int) -> int:
        """Return the date at a running time; 0 for 0."""
        return time_ns + self.clock.wall_ahead_ns if time_ns else 0

    def last_date_ns(self) -> int:
        """Return the running time at which the last message is due that waits for a date."""
        dates = [message.deliver_at_ns for topic in self.parts() for message in topic.messages]
        return max(dates, default=0)

    def shift_dates(self, step_ns: int) -> None:
        """Set the wall clock, and the model's dates by it."""
        self.follow_stored_times()
        self.clock.set_wall(step_ns)
        self.follow_stored_times()
        for topic in self.parts():
            for message in topic.messages:
                message.deliver_at_ns -= step_ns if message.deliver_at_ns else 0
            for channel in topic.channels.values():
                for offset, held in channel.messages.items():
                    dated = topic.messages[offset].deliver_at_ns
                    if dated and held.state is MessageState.DEFERRED and not held.attempts:
                        held.due_ns = dated

    def follow_stored_times(self) -> None:
        """Let messages be as old as stored times say: these go ahead with the wall clock, and go on
        from the newest record where that is ahead.
        """
        ahead_ns = self.broker.stored_at_ns() - self.clock.now_ns
        assert ahead_ns >= self.clock.wall_ahead_ns
        self.grow_older(ahead_ns - self.stored_ahead_ns)
        self.stored_ahead_ns = ahead_ns

    def grow_older(self, duration_ns: int) -> None:
        """Messages are older by that, though no time has passed."""
        for topic in self.parts():
            for message in topic.messages:
                message.stored_at_ns -= duration_ns

    def newest_stored_ns(self) -> int:
        """Return when the newest on the disk was stored: a record of the log, or the checkpoint."""
        loaded = checkpoint_file.load(self.storage)
        newest_ns = loaded.stored_at_ns if isinstance(loaded, Checkpoint) else 0
        records = scan(self.storage.segments(), 0, RecoveryReport())
        return max([newest_ns, *(header.stored_at_ns for header, _ in records)])

    @invariant()
    def stored_times_never_go_back(self) -> None:
        if not hasattr(self, "broker"):
            return
        for topic in self.parts():
            index = self.real_topic(topic).queue.index
            times = index.array(index.first_row, index.end_row)["stored_at_ns"]
            assert (np.diff(times) >= 0).all()
            assert not len(times) or times[-1] <= self.broker.last_stored_ns

    # delayed messages

    def bucket_given_up(self, loss: EvictionLoss, position: int) -> None:
        """Delayed messages were dropped for space."""

    def waiting_of(self, topic: ModelTopic) -> int:
        """How many messages of a topic wait, as the model has it."""
        return 0

    def compare_waiting(self) -> None:
        """The core waits with what the model waits with."""

    # losses

    def _make_room(self, eviction: Eviction) -> bool:
        done = eviction.make_room()
        log = self.broker.log
        # After damage no head of a segment counts until one is begun, or a checkpoint is made.
        releasable = all(log.is_releasable(segment) for segment in log.closed_segments)
        assert done or log.failed is not None or not log.closed_segments or not releasable
        return done

    def _flush_now(self) -> bool:
        return self.flush(self.broker.log.flush_job())

    def _given_up(self, losses: list[EvictionLoss]) -> None:
        """Take in that a segment goes.

        It counts even if all in it is finished and no eviction is reported: messages that a paused
        topic holds back may be done for each channel, all advanced past them, and yet wait for new
        channels.
        """
        self.take_in_stored()
        self.settle()
        assert self.storage.capacity_bytes is not None
        written = self.broker.log.segments[-1]
        # The head of the next segment says so.
        position = written.base + written.capacity + 8
        for loss in losses:
            if isinstance(loss.topic, Bucket):
                self.bucket_given_up(loss, position)
                continue
            topic = self.topics[loss.topic.name].at_queues[loss.topic.queue.number]
            gone = [offset for first, end in loss.gone for offset in range(first, end)]
            lost = topic.give_up(gone, position)
            if not topic.has_holes:
                reported = {
                    c.name if c else "": list(o) for c, o in loss.unfinished.items() if len(o)
                }
                assert reported == lost

    def kept_ms(self, policy: TopicPolicy) -> int:
        """Return how long a topic of that policy keeps finished messages, whatever their bytes."""
        if policy.retention_bytes:
            return 0
        return self.retention_ms if policy.retention_ms is None else policy.retention_ms

    # comparison

    @property
    def position(self) -> int:
        return self.broker.log.position

    def channels(self) -> list[ModelChannel]:
        return [channel for topic in self.parts() for channel in topic.channels.values()]

    def parts(self) -> list[ModelTopic]:
        """All topics at all their queues."""
        return [part for topic in self.topics.values() for part in topic.at_queues]

    def consumers(self) -> list[ModelConsumer]:
        channels = [channel for channel in self.channels() if not channel.topic.number]
        return [consumer for channel in channels for consumer in channel.consumers]

    def pick_channel(self, pick: int) -> ModelChannel | None:
        channels = self.channels()
        return channels[pick % len(channels)] if channels else None

    def pick_consumer(self, pick: int) -> ModelConsumer | None:
        consumers = self.consumers()
        return consumers[pick % len(consumers)] if consumers else None

    def real_topic(self, topic: ModelTopic) -> Topic:
        return self.broker.topics[topic.name].at_queues[topic.number]

    def real_channel(self, channel: ModelChannel) -> Channel:
        return self.real_topic(channel.topic).channels[channel.name]

    def real_all_queues(self, channel: ModelChannel) -> Any:
        """Return the object that its clients subscribe to."""
        return self.real_channel(channel).all_queues

    def take_in_stored(self) -> None:
        """Take in the staged messages that were stored; others were refused, or are to come.

        Eviction may come between two batches of one turn.
        """
        done = sorted(
            (entry for entry in self.staged if entry[0].position),
            key=lambda entry: entry[0].position,
        )
        self.staged = [entry for entry in self.staged if not entry[0].position]
        for receipt, topic, bodies, deliver_at_ns in sorted(
            done, key=lambda entry: entry[0].position
        ):
            self.published(topic, bodies, deliver_at_ns, receipt.position)

    def published(
        self, topic: ModelTopic, bodies: list[bytes], deliver_at_ns: int, position: int
    ) -> None:
        """Messages were stored before a position of the log."""
        topic.publish(bodies, deliver_at_ns, position, self.clock.now_ns)

    def settle(self) -> None:
        """Take in what the core has sent."""
        sent = self.sent.copy()
        self.sent.clear()
        for consumer, frames in sent:
            self._take_in(consumer, memoryview(frames))

    def _take_in(self, consumer: ModelConsumer, frames: memoryview) -> None:
        first = self.real_topic(consumer.channel.topic).queue
        while frames:
            size, kind, stored_at_ns, attempts, id = FRAME.unpack_from(frames)
            assert kind == 2
            assert stored_at_ns <= self.clock.now_ns + self.stored_ahead_ns
            body = bytes(frames[FRAME.size : size + 4])
            channel, offset = consumer.at((int(id, 16) - first.id_base) % (1 << 64))
            topic = channel.topic
            assert id == self.real_topic(topic).queue.message_id(offset)
            assert offset < len(topic.messages), f"offset {offset} was never stored"
            assert body == topic.messages[offset].body
            channel.deliver(consumer, offset, attempts, self.clock.now_ns)
            frames = frames[size + 4 :]

    def refused(self, call: Callable[[], object]) -> bool:
        """Do what may be refused while the disk is full or has failed, and only then."""
        try:
            call()
        except WritesRefused:
            log = self.broker.log
            assert log.failed is not None or log.full is not None
            assert self.broker.health.startswith("NOK - ")
            return True
        return False

    def flush(self, job: FlushJob) -> bool:
        try:
            job.run()
        except OSError as error:
            self.broker.log.flush_failed(error)
            return False
        if self.broker.log.failed is None:
            self.broker.log.flushed(job)
        return self.broker.log.failed is None

    def compare_after_restart(self, *, power: bool, durable: int) -> None:
        """Check that the broker's state is the model's, as far as it was written down."""
        gone = self._compare_names(durable)
        for topic in self.parts():
            real = self.real_topic(topic)
            if topic.changed_position > durable:
                topic.paused_at = real.paused_at
                topic.backlog_offset = real.backlog_offset
                topic.emptied = {o for first, end in real.voids for o in range(first, end)}
                topic.keep(self.kept_ms(real.policy))
            self._compare_messages(topic, real, power, durable)
            topic.pass_over_lost()
            assert topic.paused_at == real.paused_at
            if not topic.channels:
                assert topic.backlog_offset == real.backlog_offset
            topic.message_count = 0
            topic.message_bytes = topic.dropped_count = 0
            for channel in topic.channels.values():
                self._compare_channel(channel, durable, power)
            if power:
                topic.created_position = topic.changed_position = 0
        if power:
            self.deleted = gone

    def _compare_names(self, durable: int) -> list[tuple[str, str | None, int]]:
        """A power cut may take what was created, and bring back what was deleted.

        Returns what had to be deleted once more.
        """
        gone: list[tuple[str, str | None, int]] = []
        capacity_bytes, self.storage.capacity_bytes = self.storage.capacity_bytes, None
        for name, real_topic in list(self.broker.topics.items()):
            if name not in self.topics or self.topics[name].id != real_topic.id:
                assert any(n == name and p > durable for n, c, p in self.deleted if c is None)
                self.broker.delete_topic(name)
                gone.append((name, None, self.position))
        for topic in list(self.topics.values()):
            real = self.broker.topics.get(topic.name)
            if real is None:
                assert topic.created_position > durable
                del self.topics[topic.name]
                continue
            self._compare_queues(topic, real, durable)
            for name, real_channel in list(real.channels.items()):
                if name not in topic.channels or topic.channels[name].id != real_channel.id:
                    positions = [p for n, c, p in self.deleted if n == topic.name and c == name]
                    unmade = (topic.name, name) in self.unmade
                    assert unmade or any(p > durable for p in positions), f"{name} is back"
                    for part in topic.at_queues:
                        part.changed_position = NEVER
                    real.delete_channel(name)
                    gone.append((topic.name, name, self.position))
            for name, channel in list(topic.channels.items()):
                if name not in real.channels:
                    assert channel.created_position > durable, f"{name} has gone"
                    for part in topic.at_queues:
                        del part.channels[name]
                        part.changed_position = NEVER
        self.storage.capacity_bytes = capacity_bytes
        return gone

    def _compare_queues(self, topic: ModelTopic, real: Topic, durable: int) -> None:
        """A power cut may take queues again; what was refused may be found done."""
        assert [part.number for part in real.at_queues] == list(range(len(real.at_queues)))
        for part in real.at_queues:
            assert set(part.channels) == set(real.channels)
            assert part.key_hash is KeyHash.CRC32C_FMIX32
        for lost in topic.at_queues[len(real.at_queues) :]:
            assert lost.created_position > durable, "queues have gone"
        del topic.at_queues[len(real.at_queues) :]
        for fresh in real.at_queues[len(topic.at_queues) :]:
            assert topic.name in self.ungrown
            topic.grow(fresh.id, NEVER)

    def _compare_messages(self, topic: ModelTopic, real: Topic, power: bool, durable: int) -> None:
        end = real.queue.end_offset
        assert end <= len(topic.messages), "offsets without messages"
        for message in topic.messages[end:]:
            assert power
            assert message.position > durable, "a durable message has gone"
        for channel in topic.channels.values():
            for offset in range(end, len(topic.messages)):
                channel.messages.pop(offset, None)
        del topic.messages[end:]
        stored: set[int] = set()
        index = real.queue.index
        for entry in index.rows(index.first_row, index.end_row):
            if self.broker.log.find(entry.position) is not None:
                stored.update(range(entry.first_offset, entry.end_offset))
        needed = {
            offset
            for channel in topic.channels.values()
            for offset, message in channel.messages.items()
            if message.state is not MessageState.DONE
        }
        if not topic.channels:
            needed = set(range(topic.backlog_offset, end)) - topic.emptied
        for offset in set(range(end)) - stored:
            message = topic.messages[offset]
            if power and message.position > durable:
                message.lost = topic.has_holes = True
            assert message.lost or offset not in needed, f"the durable message {offset} has gone"

    def _compare_channel(self, channel: ModelChannel, durable: int, power: bool) -> None:
        real = self.real_channel(channel)
        if channel.paused_position > durable:
            channel.paused = real.paused
        assert channel.paused == real.paused
        if power:
            channel.paused_position = channel.created_position = 0
        channel.consumers.clear()
        channel.message_count = channel.requeue_count = channel.timeout_count = 0
        channel.dropped_count = 0
        for offset, message in channel.messages.items():
            state, due_ns, attempts = self._real_state(channel, real.cursor, offset)
            undone = message.replayed_position > durable
            where = f"{channel.topic.name}:{channel.name} {offset}"
            if channel.topic.messages[offset].lost:
                state = MessageState.DONE
            elif message.state is MessageState.DONE:
                if message.done_position <= durable:
                    assert state is MessageState.DONE, f"{where} is finished, and back as {state}"
            elif not undone:
                assert state is not MessageState.DONE, f"{where} was {message.state}, and is gone"
            due_ns_wanted = channel.topic.messages[offset].deliver_at_ns
            if (
                due_ns_wanted > self.clock.now_ns
                and not attempts
                and state is not MessageState.DONE
            ):
                hidden = offset >= channel.topic.limit
                # It was due, and then the wall clock was set back.
                is_due = state is MessageState.READY and message.state is not MessageState.DEFERRED
                assert is_due or state is (
                    MessageState.FRESH if hidden else MessageState.DEFERRED
                ), where
                assert hidden or is_due or due_ns == due_ns_wanted
            assert undone or attempts <= message.attempts, where
            message.state, message.due_ns, message.owner = state, due_ns, None
            if power:
                message.replayed_position = 0
            if state is not MessageState.DONE:
                # What had been written down of its end is lost: it will be finished anew.
                message.attempts, message.done_position = attempts, NEVER

    def _real_state(
        self, channel: ModelChannel, cursor: Cursor, offset: int
    ) -> tuple[MessageState, int, int]:
        """Where a message is, as the core has restored it."""
        real = self.real_channel(channel)
        message = cursor.pending.by_offset.get(offset)
        if message is not None:
            assert message.owner is None
            ready = message.due_ns <= self.clock.now_ns
            state = MessageState.READY if ready else MessageState.DEFERRED
            return state, message.due_ns, message.attempts
        deferred = channel.topic.messages[offset].deliver_at_ns
        topic = self.real_topic(channel.topic)
        void = any(first <= offset < end for first, end in topic.voids)
        if offset < cursor.next or void or (deferred and offset < topic.limit):
            return MessageState.DONE, 0, 0
        assert real.cursor.window.floor <= offset
        return MessageState.FRESH, 0, 0

    # what always holds

    @invariant()
    def stands_where_the_model_stands(self) -> None:
        if not hasattr(self, "broker"):
            return
        self.holds = False
        self.settle()
        check_core(self.broker)
        assert set(self.broker.topics) == set(self.topics)
        shown = [part for part in self.broker.by_id.values() if not isinstance(part, Bucket)]
        assert len(shown) == len(self.parts())
        for topic in self.parts():
            real = self.real_topic(topic)
            assert set(real.channels) == set(topic.channels)
            assert real.queue.visible_end == len(topic.messages)
            assert real.paused == (topic.paused_at is not None)
            assert real.depth == topic.depth
            assert real.message_count == topic.message_count
            assert real.message_bytes == topic.message_bytes
            if not topic.has_holes:
                assert real.dropped_count == topic.dropped_count
            for channel in topic.channels.values():
                self._compare_counts(channel, self.real_channel(channel))
        self.compare_waiting()
        for name, *loss in self.lost:
            model = self.topics.get(name)
            parts = model.at_queues if model is not None else []
            assert not parts or any(part.has_holes or part.lost_delayed for part in parts), loss
        self.lost.clear()
        self.holds = True

    def _compare_counts(self, channel: ModelChannel, real: Channel) -> None:
        assert real.paused == channel.paused
        assert real.in_flight_count == len(channel.all_in(MessageState.IN_FLIGHT))
        assert real.requeue_count == channel.requeue_count
        assert real.timeout_count == channel.timeout_count
        assert real.message_count == channel.message_count
        assert real.latency is not None
        assert quantiles([real.latency], [1.0])[0] == real.finishes.count
        for consumer in channel.consumers:
            real_consumer = self.real[consumer]
            assert real_consumer.in_flight_count == len(consumer.in_flight)
            assert real_consumer.message_count == consumer.delivered_count
            assert real_consumer.finish_count == consumer.finished_count
            assert real_consumer.requeue_count == consumer.requeued_count
            for frame, copy in consumer.seen:
                assert bytes(frame) == copy, "a frame has changed after it was sent"
        if not channel.topic.has_holes:
            assert real.dropped_count == channel.dropped_count
            if not channel.paused and any(consumer.room > 0 for consumer in channel.consumers):
                assert not channel.depth, "somebody has room, and something waits"
            waiting = len(channel.all_in(MessageState.DEFERRED)) + self.waiting_of(channel.topic)
            assert real.deferred_count == waiting
            assert real.depth == channel.depth
        if not channel.paused and channel.depth and not channel.topic.has_holes:
            for consumer in channel.consumers:
                assert consumer.room <= 0, "a consumer waits, and so does a message"
        next_ns = self.broker.schedule.next_ns()
        if channel.earliest_ns < NEVER:
            assert next_ns is not None, "nobody will look when it times out"
            assert next_ns <= channel.earliest_ns
