"""The broker's core against a model, over a simulated clock and a simulated disk.

Hypothesis makes up a life for a broker: publishers and consumers of all manners, operators who
pause, empty and delete, time that passes, a disk that fills up or fails, checkpoints half done,
kills and power cuts at any moment.  After each step the core must stand where the model stands.

Everything that grows in steps is made small, so that a few dozen messages fill segments, thin out
windows, roll index files over and have segments cleaned.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.property.broker_model import (
    NEVER,
    ModelChannel,
    ModelConsumer,
    ModelTopic,
    Place,
)

from martlet.broker import channel as channel_module
from martlet.broker import cursor as cursor_module
from martlet.broker import topic as topic_module
from martlet.broker import upkeep as upkeep_module
from martlet.broker import window as window_module
from martlet.broker.broker import Broker
from martlet.broker.channel import Channel
from martlet.broker.consumer import Consumer
from martlet.broker.cursor import Cursor
from martlet.broker.errors import NotInFlight, WritesRefused
from martlet.broker.queue import Receipt
from martlet.broker.restore import Restored, restore
from martlet.broker.topic import Topic
from martlet.broker.upkeep import CheckpointJob, begin_checkpoint, end_checkpoint
from martlet.log import index as index_module
from martlet.log.commitlog import FlushJob
from martlet.testing import SimulatedClock, SimulatedStorage

MILLISECOND_NS = 10**6
MAX_TIMEOUT_NS = 5_000 * MILLISECOND_NS
SEGMENT_BYTES = 4096
FRAME = struct.Struct(">IIqH16s")

TOPICS = ["a", "b"]
CHANNELS = ["x", "y", "z"]

names = st.sampled_from(TOPICS)
picks = st.integers(0, 1 << 16)
"""One of many, whichever there are then."""
delays_ms = st.sampled_from([0, 1, 50, 700, 3000])
bodies = st.one_of(
    st.tuples(st.integers(1, 30), st.sampled_from([1, 8, 60])).map(lambda t: [t[1]] * t[0]),
    st.lists(st.integers(1, 120), min_size=1, max_size=20),
    st.just([9]),
    st.just([2500]),
)
"""The sizes of some bodies."""


class EdgeRandom(Random):
    """Chooses the numbers of a queue's ids so that they soon run over 64 bits."""

    def getrandbits(self, k: int, /) -> int:
        return (1 << 64) - 1 - self.randrange(60) if k == 64 else super().getrandbits(k)


class BrokerMachine(RuleBasedStateMachine):
    """Drives a broker and its model side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[str, ModelTopic] = {}
        self.clock = SimulatedClock()
        self.storage = SimulatedStorage(Random(0))
        self.real: dict[ModelConsumer, Consumer] = {}
        self.sent: list[tuple[ModelConsumer, bytes]] = []
        self.lost: list[tuple[str, str, int, int, str]] = []
        self.flushes: list[FlushJob] = []
        self.checkpoint: CheckpointJob | None = None
        self.checkpoint_saved = False
        self.at_checkpoint: Callable[[], None] = lambda: None
        self.deleted: list[tuple[str, str | None, int]] = []
        self.made = 0
        self.torn = False
        """The log may have bad places, or the remains of a torn record behind its end."""
        self.holds = False
        """So far all went well: it makes sense to look at the end."""
        self.broker: Broker

    @initialize(seed=st.integers(0, 1000))
    def open(self, seed: int) -> None:
        self.storage.random.seed(seed)
        self.seed = seed
        self._restore()

    def _restore(self) -> Restored:
        self.holds = False
        self.seed += 1
        self.broker, restored = restore(
            self.storage,
            self.clock,
            EdgeRandom(self.seed),
            segment_bytes=SEGMENT_BYTES,
            max_timeout_ns=MAX_TIMEOUT_NS,
            on_lost=lambda *what: self.lost.append(what),
        )
        self.real.clear()
        self.sent.clear()
        self.flushes.clear()
        self.checkpoint = None
        self.broker.run()
        return restored

    # what is where

    @property
    def position(self) -> int:
        return self.broker.log.position

    def channels(self) -> list[ModelChannel]:
        return [channel for topic in self.topics.values() for channel in topic.channels.values()]

    def consumers(self) -> list[ModelConsumer]:
        return [consumer for channel in self.channels() for consumer in channel.consumers]

    def pick_channel(self, pick: int) -> ModelChannel | None:
        channels = self.channels()
        return channels[pick % len(channels)] if channels else None

    def pick_consumer(self, pick: int) -> ModelConsumer | None:
        consumers = self.consumers()
        return consumers[pick % len(consumers)] if consumers else None

    def real_topic(self, topic: ModelTopic) -> Topic:
        return self.broker.topics[topic.name]

    def real_channel(self, channel: ModelChannel) -> Channel:
        return self.real_topic(channel.topic).channels[channel.name]

    def settle(self) -> None:
        """Take in what the core has sent."""
        sent = self.sent.copy()
        self.sent.clear()
        for consumer, frames in sent:
            self._take_in(consumer, memoryview(frames))

    def _take_in(self, consumer: ModelConsumer, frames: memoryview) -> None:
        topic = consumer.channel.topic
        queue = self.real_topic(topic).queue
        while frames:
            size, kind, stored_at_ns, attempts, id = FRAME.unpack_from(frames)
            assert kind == 2
            assert stored_at_ns <= self.clock.now_ns
            body = bytes(frames[FRAME.size : size + 4])
            offset = (int(id, 16) - queue.id_base) % (1 << 64)
            assert id == queue.message_id(offset)
            assert offset < len(topic.messages), f"offset {offset} was never stored"
            assert body == topic.messages[offset].body
            consumer.channel.deliver(consumer, offset, attempts, self.clock.now_ns)
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

    # publishing

    def _bodies(self, sizes: list[int]) -> list[bytes]:
        made = []
        for size in sizes:
            self.made += 1
            made.append((b"%d " % self.made).ljust(size, b".")[:size])
        return made

    @rule(
        parts=st.lists(
            st.tuples(names, bodies, st.one_of(st.just(0), delays_ms), st.booleans()),
            min_size=1,
            max_size=4,
        )
    )
    def publish(self, parts: list[tuple[str, list[int], int, bool]]) -> None:
        """A turn of the loop: some publishes, then the commit."""
        staged: list[tuple[ModelTopic, list[bytes], int, Receipt]] = []
        for name, sizes, delay_ms, as_matrix in parts:
            topic = self._topic(name)
            if topic is None:
                continue
            some = self._bodies(sizes)
            deliver_at_ns = self.clock.now_ns + delay_ms * MILLISECOND_NS if delay_ms else 0
            what: object = some
            if as_matrix and len(set(sizes)) == 1:
                what = np.frombuffer(b"".join(some), np.uint8).reshape(len(some), sizes[0])
            receipt = self.real_topic(topic).stage(what, deliver_at_ns)  # type: ignore[arg-type]
            staged.append((topic, some, deliver_at_ns, receipt))
        self.broker.commit()
        done = []
        for topic, some, deliver_at_ns, receipt in staged:
            if receipt.error is None:
                assert receipt.position > 0
                done.append((receipt.position, topic, some, deliver_at_ns))
            else:
                assert receipt.position == 0
                assert (
                    self.broker.log.failed is not None
                    or self.broker.log.full is not None
                    or (any(other.position for *_, other in staged))
                )
        for position, topic, some, deliver_at_ns in sorted(done, key=lambda what: what[0]):
            topic.publish(some, deliver_at_ns, position, self.clock.now_ns)

    def _topic(self, name: str) -> ModelTopic | None:
        if name not in self.topics:
            if self.refused(lambda: self.broker.topic(name)):
                assert name not in self.broker.topics
                return None
            self.topics[name] = ModelTopic(name, self.broker.topics[name].id, self.position)
        return self.topics[name]

    # topics and channels

    @rule(name=names)
    def create_topic(self, name: str) -> None:
        self._topic(name)

    @rule(pick=picks, name=st.sampled_from(CHANNELS))
    def create_channel(self, pick: int, name: str) -> None:
        if not self.topics:
            return
        topic = list(self.topics.values())[pick % len(self.topics)]
        if name in topic.channels or self.refused(lambda: self.real_topic(topic).channel(name)):
            assert (name in self.real_topic(topic).channels) == (name in topic.channels)
            return
        id = self.real_topic(topic).channels[name].id
        topic.create_channel(name, id, self.position, self.clock.now_ns)

    @rule(name=names, rarely=st.integers(0, 3))
    def delete_topic(self, name: str, rarely: int) -> None:
        topic = self.topics.get(name)
        if topic is None or rarely:
            return
        gone = [consumer for channel in topic.channels.values() for consumer in channel.consumers]
        real = {consumer: self.real.get(consumer) for consumer in gone}
        channels = {consumer: self.real_channel(consumer.channel) for consumer in gone}
        if self.refused(lambda: self.broker.delete_topic(name)):
            assert name in self.broker.topics
            return
        del self.topics[name]
        self.deleted.append((name, None, self.position))
        for consumer in gone:
            self._leave(consumer, real[consumer], channels[consumer])

    @rule(pick=picks, rarely=st.booleans())
    def delete_channel(self, pick: int, rarely: bool) -> None:
        channel = self.pick_channel(pick)
        if channel is None or rarely:
            return
        topic = self.real_topic(channel.topic)
        real_channel = self.real_channel(channel)
        if self.refused(lambda: topic.delete_channel(channel.name)):
            assert channel.name in topic.channels
            return
        channel.topic.delete_channel(channel.name, self.position)
        self.deleted.append((channel.topic.name, channel.name, self.position))
        for consumer in channel.consumers:
            self._leave(consumer, self.real.get(consumer), real_channel)

    def _leave(self, consumer: ModelConsumer, real: Consumer | None, channel: Channel) -> None:
        """The client of a deleted channel goes, as it has been told to."""
        assert consumer.closed
        assert real is not None
        channel.remove_consumer(real)
        del self.real[consumer]

    @rule(name=names, paused=st.booleans())
    def pause_topic(self, name: str, paused: bool) -> None:
        topic = self.topics.get(name)
        if topic is None:
            return
        if not self.refused(lambda: self.real_topic(topic).set_paused(paused)):
            topic.pause(paused, self.position, self.clock.now_ns)

    @rule(pick=picks, paused=st.booleans())
    def pause_channel(self, pick: int, paused: bool) -> None:
        channel = self.pick_channel(pick)
        if channel is None:
            return
        topic = self.real_topic(channel.topic)
        if not self.refused(lambda: topic.pause_channel(channel.name, paused)):
            if channel.paused != paused:
                channel.paused_position = self.position
            channel.paused = paused

    @rule(name=names)
    def empty_topic(self, name: str) -> None:
        topic = self.topics.get(name)
        if topic is not None and not self.refused(self.real_topic(topic).empty):
            topic.empty(self.position)

    @rule(pick=picks)
    def empty_channel(self, pick: int) -> None:
        channel = self.pick_channel(pick)
        if channel is None:
            return
        self.real_channel(channel).empty()
        limit = channel.topic.limit
        for offset in channel.messages:
            if offset < limit:
                channel.done(offset)

    @rule(pick=picks, share=st.integers(0, 100))
    def advance_channel(self, pick: int, share: int) -> None:
        """A reader is done with all below an offset."""
        channel = self.pick_channel(pick)
        if channel is None:
            return
        end = len(channel.topic.messages) * share // 100
        self.real_channel(channel).advance(end)
        for offset in channel.messages:
            if offset < end:
                channel.done(offset)

    # consumers

    @rule(
        pick=picks,
        timeout_ms=st.sampled_from([100, 1000, 4000]),
        ready_count=st.sampled_from([0, 1, 2, 5, 40]),
    )
    def subscribe(self, pick: int, timeout_ms: int, ready_count: int) -> None:
        channel = self.pick_channel(pick)
        if channel is None or len(channel.consumers) == 4:
            return
        consumer = ModelConsumer(channel, timeout_ms * MILLISECOND_NS, self.sent)
        real_channel = self.real_channel(channel)
        self.real[consumer] = real_channel.add_consumer(consumer, consumer.timeout_ns)
        channel.consumers.append(consumer)
        consumer.ready_count = ready_count
        real_channel.set_ready(self.real[consumer], ready_count)

    @rule(pick=picks, count=st.sampled_from([0, 1, 3, 10, 40]))
    def set_ready(self, pick: int, count: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is not None:
            consumer.ready_count = count
            self.real_channel(consumer.channel).set_ready(self.real[consumer], count)

    @rule(pick=picks, blocked=st.booleans())
    def block(self, pick: int, blocked: bool) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is not None:
            consumer.blocked = blocked
            self.real_channel(consumer.channel).set_blocked(self.real[consumer], blocked)

    @rule(pick=picks)
    def disconnect(self, pick: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        for offset in consumer.in_flight:
            consumer.channel.put_back(offset)
        consumer.channel.consumers.remove(consumer)
        self.real_channel(consumer.channel).remove_consumer(self.real.pop(consumer))

    def _some_offset(self, consumer: ModelConsumer, pick: int) -> int:
        """As a rule one that the consumer holds, at times any other."""
        held = consumer.in_flight
        if held and pick % 8:
            return held[pick % len(held)]
        return pick % (len(consumer.channel.topic.messages) + 2) if pick % 3 else (1 << 64) - pick

    def _answer(
        self, consumer: ModelConsumer, offset: int, act: Callable[[Channel, Consumer], None]
    ) -> bool:
        """Answer for a message; whether it was in flight to the consumer."""
        message = consumer.channel.messages.get(offset)
        channel, real = self.real_channel(consumer.channel), self.real[consumer]
        if message is not None and message.owner is consumer:
            act(channel, real)
            return True
        with pytest.raises(NotInFlight, match="ID not in flight"):
            act(channel, real)
        return False

    @rule(pick=picks, which=picks)
    def finish(self, pick: int, which: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        offset = self._some_offset(consumer, which)
        if self._answer(consumer, offset, lambda channel, real: channel.finish(real, offset)):
            consumer.channel.done(offset)
            consumer.finished_count += 1

    @rule(pick=picks, seed=st.integers(0, 1 << 20), share=st.sampled_from([20, 60, 100]))
    def finish_run(self, pick: int, seed: int, share: int) -> None:
        """Many FINs at once, among which may be one of another's."""
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        random = Random(seed)
        held = consumer.in_flight
        chosen = {offset for offset in held if random.randrange(100) < share}
        if random.randrange(4) == 0:
            chosen.add(random.randrange(-3, len(consumer.channel.topic.messages) + 3))
        if not chosen:
            return
        channel, real = self.real_channel(consumer.channel), self.real[consumer]
        if channel.finish_run(real, np.array(sorted(chosen), np.int64)):
            assert chosen <= set(held)
            for offset in chosen:
                consumer.channel.done(offset)
            consumer.finished_count += len(chosen)
            return
        assert channel.in_flight_count == sum(len(c.in_flight) for c in consumer.channel.consumers)
        for offset in sorted(chosen):
            if offset >= 0 and offset in consumer.in_flight:
                channel.finish(real, offset)
                consumer.channel.done(offset)
                consumer.finished_count += 1
                self.settle()

    @rule(pick=picks, which=picks, delay_ms=delays_ms)
    def requeue(self, pick: int, which: int, delay_ms: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        offset = self._some_offset(consumer, which)
        delay_ns = delay_ms * MILLISECOND_NS
        if self._answer(
            consumer, offset, lambda channel, real: channel.requeue(real, offset, delay_ns)
        ):
            message = consumer.channel.messages[offset]
            consumer.channel.put_back(offset)
            consumer.channel.requeue_count += 1
            consumer.requeued_count += 1
            if delay_ns:
                message.place = Place.DEFERRED
                message.due_ns = self.clock.now_ns + delay_ns

    @rule(pick=picks, which=picks)
    def touch(self, pick: int, which: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        offset = self._some_offset(consumer, which)
        if self._answer(consumer, offset, lambda channel, real: channel.touch(real, offset)):
            message = consumer.channel.messages[offset]
            message.due_ns = min(
                self.clock.now_ns + consumer.timeout_ns, message.delivered_at_ns + MAX_TIMEOUT_NS
            )

    # time

    @rule(duration_ms=st.sampled_from([0, 1, 49, 99, 100, 400, 1000, 3500, 20_000]))
    def wait(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms * MILLISECOND_NS)
        for channel in self.channels():
            channel.expire(self.clock.now_ns)
        next_ns = self.broker.run()
        assert next_ns is None or next_ns > self.clock.now_ns

    # upkeep

    @rule()
    def write_journal(self) -> None:
        if not self.refused(self.broker.write_journal):
            for channel in self.channels():
                channel.written_down(self.position)

    @rule()
    def begin_flush(self) -> None:
        if self.broker.log.failed is None and not self.checkpoint:
            self.flushes.append(self.broker.log.flush_job())

    @rule()
    def end_flush(self) -> None:
        if self.flushes:
            self._flush(self.flushes.pop(0))

    def _flush(self, job: FlushJob) -> bool:
        try:
            job.run()
        except OSError as error:
            self.broker.log.flush_failed(error)
            return False
        if self.broker.log.failed is None:
            self.broker.log.flushed(job)
        return self.broker.log.failed is None

    @rule()
    def begin_checkpoint(self) -> None:
        while self.flushes:
            self._flush(self.flushes.pop(0))
        if self.checkpoint is not None or self.broker.log.failed is not None:
            return
        try:
            self.checkpoint = begin_checkpoint(self.broker)
        except OSError:
            assert self.storage.capacity_bytes is not None
            return
        self.checkpoint_saved = False
        finished = [
            [message for message in channel.messages.values() if message.place is Place.DONE]
            for channel in self.channels()
        ]
        topics = [(topic, topic.changed_position) for topic in self.topics.values()]
        channels = [(channel, channel.paused_position) for channel in self.channels()]
        position = self.checkpoint.flush.position

        def take_down() -> None:
            for messages in finished:
                for message in messages:
                    message.done_position = 0
            for topic, changed in topics:
                topic.created_position = 0
                topic.changed_position = 0 if topic.changed_position == changed else NEVER
            for channel, changed in channels:
                channel.created_position = 0
                channel.paused_position = 0 if channel.paused_position == changed else NEVER
            self.deleted = [what for what in self.deleted if what[2] > position]

        self.at_checkpoint = take_down

    @rule()
    def save_checkpoint(self) -> None:
        job = self.checkpoint
        if job is None or self.checkpoint_saved:
            return
        if not self._flush(job.flush):
            self.checkpoint = None
            return
        try:
            job.save()
        except OSError:
            assert self.storage.flush_error is not None or self.storage.capacity_bytes is not None
            self.checkpoint = None
            return
        self.checkpoint_saved = True
        self.at_checkpoint()

    @rule()
    def end_checkpoint(self) -> None:
        job = self.checkpoint
        if job is not None and self.checkpoint_saved:
            self.checkpoint = None
            self.refused(lambda: end_checkpoint(self.broker, job))

    @rule()
    def whole_checkpoint(self) -> None:
        self.begin_checkpoint()
        self.save_checkpoint()
        self.end_checkpoint()

    # trouble

    @rule(more_segments=st.integers(0, 3), rarely=st.booleans())
    def fill_disk(self, more_segments: int, rarely: bool) -> None:
        if rarely:
            more = more_segments * SEGMENT_BYTES + SEGMENT_BYTES // 2
            self.storage.capacity_bytes = self.storage.used_bytes + more
            self.storage.keep_free_bytes = SEGMENT_BYTES // 4

    @rule()
    def make_room(self) -> None:
        self.storage.capacity_bytes = None
        self.storage.keep_free_bytes = 0

    @rule(failing=st.integers(0, 15))
    def break_disk(self, failing: int) -> None:
        if failing == 0:
            self.storage.flush_error = OSError(errno.EIO, "Input/output error")
        elif failing == 1:
            self.storage.write_error = OSError(errno.EIO, "Input/output error")
            self.torn = True

    def _mend_disk(self) -> None:
        self.storage.flush_error = None
        self.storage.write_error = None

    # ends

    @precondition(lambda self: self.broker.log.failed is None)
    @rule()
    def stop_and_start(self) -> None:
        """A clean stop."""
        self.make_room()
        self._mend_disk()
        self.checkpoint = None
        self.write_journal()
        self.whole_checkpoint()
        if self.broker.log.failed is not None:
            return
        self.storage.close()
        position = self.position
        self.storage = self.storage.crash()
        restored = self._restore()
        assert restored.checkpoint_position is not None
        assert not restored.notes
        if not self.torn:
            assert restored.report.cut is None
            assert not restored.report.damaged
        assert restored.report.records == 0 or position > restored.checkpoint_position
        self._compare_after_restart(power=False, durable=NEVER)

    @rule()
    def kill(self) -> None:
        self.storage = self.storage.crash()
        self._mend_disk()
        restored = self._restore()
        if not self.torn:
            assert not restored.report.damaged
            assert restored.report.cut is None
        self._compare_after_restart(power=False, durable=NEVER - 1)

    @rule(seed=st.integers(0, 1 << 20))
    def cut_power(self, seed: int) -> None:
        durable = self.broker.log.durable_position
        self.torn = True
        self.storage.random.seed(seed)
        self.storage = self.storage.crash(power=True)
        self._mend_disk()
        self._restore()
        self._compare_after_restart(power=True, durable=durable)

    def _compare_after_restart(self, *, power: bool, durable: int) -> None:
        """What the broker knows is what the model says, as far as it was written down."""
        gone = self._compare_names(durable)
        for topic in self.topics.values():
            real = self.real_topic(topic)
            if topic.changed_position > durable:
                topic.paused_at = real.paused_at
                topic.backlog_offset = real.backlog_offset
            assert topic.paused_at == real.paused_at
            self._compare_messages(topic, real, power, durable)
            if not topic.channels:
                assert topic.backlog_offset == real.backlog_offset
            topic.message_count = 0
            topic.message_bytes = 0
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
            for name, real_channel in list(real.channels.items()):
                if name not in topic.channels or topic.channels[name].id != real_channel.id:
                    known = [p for n, c, p in self.deleted if n == topic.name and c == name]
                    assert any(p > durable for p in known), f"{name} is back"
                    topic.changed_position = NEVER
                    real.delete_channel(name)
                    gone.append((topic.name, name, self.position))
            for name, channel in list(topic.channels.items()):
                if name not in real.channels:
                    assert channel.created_position > durable, f"{name} has gone"
                    del topic.channels[name]
                    topic.changed_position = NEVER
        return gone

    def _compare_messages(self, topic: ModelTopic, real: Topic, power: bool, durable: int) -> None:
        end = real.queue.end_offset
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
            if message.place is not Place.DONE
        }
        if not topic.channels:
            needed = set(range(topic.backlog_offset, end))
        for offset in needed - stored:
            message = topic.messages[offset]
            if message.lost:
                continue
            assert power
            assert message.position > durable, f"the durable message {offset} has gone"
            message.lost = topic.has_holes = True
        while len(topic.messages) < end:
            raise AssertionError("offsets without messages")

    def _compare_channel(self, channel: ModelChannel, durable: int, power: bool) -> None:
        real = self.real_channel(channel)
        if channel.paused_position > durable:
            channel.paused = real.paused
        assert channel.paused == real.paused
        if power:
            channel.paused_position = channel.created_position = 0
        channel.consumers.clear()
        channel.message_count = channel.requeue_count = channel.timeout_count = 0
        for offset, message in channel.messages.items():
            place, due_ns, attempts = self._real_place(channel, real.cursor, offset)
            where = f"{channel.topic.name}:{channel.name} {offset}"
            if channel.topic.messages[offset].lost:
                place = Place.DONE
            elif message.place is Place.DONE:
                if message.done_position <= durable:
                    assert place is Place.DONE, f"{where} is finished, and back as {place}"
            else:
                assert place is not Place.DONE, f"{where} was {message.place}, and is gone"
            wanted_ns = channel.topic.messages[offset].deliver_at_ns
            if wanted_ns > self.clock.now_ns and not attempts and place is not Place.DONE:
                hidden = offset >= channel.topic.limit
                assert place is (Place.FRESH if hidden else Place.DEFERRED), where
                assert hidden or due_ns == wanted_ns
            assert attempts <= message.attempts, where
            message.place, message.due_ns, message.attempts = place, due_ns, attempts
            message.owner = None

    def _real_place(
        self, channel: ModelChannel, cursor: Cursor, offset: int
    ) -> tuple[Place, int, int]:
        """Where a message is, as the core has restored it."""
        real = self.real_channel(channel)
        straggler = cursor.stragglers.by_offset.get(offset)
        if straggler is not None:
            assert straggler.owner is None
            ready = straggler.due_ns <= self.clock.now_ns
            place = Place.READY if ready else Place.DEFERRED
            return place, straggler.due_ns, straggler.attempts
        deferred = channel.topic.messages[offset].deliver_at_ns
        topic = self.real_topic(channel.topic)
        void = any(first <= offset < end for first, end in topic.voids)
        if offset < cursor.next or void or (deferred and offset < topic.limit):
            return Place.DONE, 0, 0
        assert real.cursor.window.floor <= offset
        return Place.FRESH, 0, 0

    # what always holds

    @invariant()
    def stands_where_the_model_stands(self) -> None:
        if not hasattr(self, "broker"):
            return
        self.holds = False
        self.settle()
        assert set(self.broker.topics) == set(self.topics)
        for topic in self.topics.values():
            real = self.real_topic(topic)
            assert set(real.channels) == set(topic.channels)
            assert real.queue.end_offset == len(topic.messages)
            assert real.paused == (topic.paused_at is not None)
            assert real.depth == topic.depth
            assert real.message_count == topic.message_count
            assert real.message_bytes == topic.message_bytes
            for channel in topic.channels.values():
                self._compare_counts(channel, self.real_channel(channel))
        assert self.lost == [] or any(topic.has_holes for topic in self.topics.values())
        self.holds = True

    def _compare_counts(self, channel: ModelChannel, real: Channel) -> None:
        assert real.paused == channel.paused
        assert real.in_flight_count == len(channel.all_in(Place.IN_FLIGHT))
        assert real.requeue_count == channel.requeue_count
        assert real.timeout_count == channel.timeout_count
        assert real.message_count == channel.message_count
        for consumer in channel.consumers:
            known = self.real[consumer]
            assert known.in_flight_count == len(consumer.in_flight)
            assert known.message_count == consumer.delivered_count
            assert known.finish_count == consumer.finished_count
            assert known.requeue_count == consumer.requeued_count
            for frame, copy in consumer.seen:
                assert bytes(frame) == copy, "a frame has changed after it was sent"
        if not channel.topic.has_holes:
            assert real.deferred_count == len(channel.all_in(Place.DEFERRED))
            assert real.depth == channel.depth
        if not channel.paused and channel.depth and not channel.topic.has_holes:
            for consumer in channel.consumers:
                assert consumer.room <= 0, "a consumer waits, and so does a message"
        next_ns = self.broker.schedule.next_ns()
        if channel.earliest_ns < NEVER:
            assert next_ns is not None, "nobody will look when it times out"
            assert next_ns <= channel.earliest_ns

    def teardown(self) -> None:
        """In the end every message that was not finished is delivered, once to each channel."""
        if not self.holds:
            return
        self._mend_disk()
        self.make_room()
        if self.broker.log.failed is not None:
            self.kill()
        for topic in list(self.topics.values()):
            self.pause_topic(topic.name, False)
            self.settle()
            if not topic.channels and topic.messages:
                id = self.real_topic(topic).channel("last").id
                topic.create_channel("last", id, self.position, self.clock.now_ns)
        for channel in self.channels():
            self._drain(channel)
        self.stands_where_the_model_stands()

    def _drain(self, channel: ModelChannel) -> None:
        topic = self.real_topic(channel.topic)
        real_channel = self.real_channel(channel)
        for consumer in list(channel.consumers):
            for offset in consumer.in_flight:
                channel.put_back(offset)
            channel.consumers.remove(consumer)
            real_channel.remove_consumer(self.real.pop(consumer))
            self.settle()
        assert not self.refused(lambda: topic.pause_channel(channel.name, False))
        channel.paused = False
        consumer = ModelConsumer(channel, 10**15, self.sent)
        channel.consumers.append(consumer)
        self.real[consumer] = real_channel.add_consumer(consumer, 10**15)
        consumer.ready_count = 1 << 20
        real_channel.set_ready(self.real[consumer], 1 << 20)
        self.settle()
        self.wait(4_000_000)
        self.settle()
        left = {
            offset
            for offset, message in channel.messages.items()
            if message.place not in (Place.DONE, Place.IN_FLIGHT)
            and not channel.topic.messages[offset].lost
        }
        assert not left, f"never delivered: {sorted(left)}"
        assert real_channel.depth == real_channel.deferred_count == 0


@pytest.fixture(autouse=True)
def everything_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few dozen messages do what takes millions else."""
    monkeypatch.setattr(window_module, "FIRST_CAPACITY", 4)
    monkeypatch.setattr(window_module, "COMFORTABLE_SPAN", 16)
    monkeypatch.setattr(channel_module, "COMFORTABLE_SPAN", 16)
    monkeypatch.setattr(window_module, "_SCAN", 4)
    monkeypatch.setattr(cursor_module, "MOST_GRANT_BYTES", 700)
    monkeypatch.setattr(cursor_module, "_SCHEDULE_ROWS", 3)
    monkeypatch.setattr(topic_module, "MOST_BATCH_BYTES", 1500)
    monkeypatch.setattr(upkeep_module, "_DROP_ROWS", 2)
    monkeypatch.setattr(index_module, "MOST_ROWS_IN_MEMORY", 6)
    monkeypatch.setattr(index_module, "_KEPT_ROWS", 2)


LIFE = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def test_the_core_keeps_its_promises() -> None:
    run_state_machine_as_test(BrokerMachine, settings=LIFE)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_core_keeps_its_promises_for_long() -> None:
    run_state_machine_as_test(
        BrokerMachine, settings=settings(LIFE, max_examples=2000, stateful_step_count=120)
    )
