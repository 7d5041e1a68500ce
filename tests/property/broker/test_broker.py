"""The broker's core against a model, over a simulated clock and a simulated disk.

Hypothesis makes up a life for a broker: publishers and consumers of all manners, operators who
pause, empty and delete, time that passes, a disk that fills up or fails, checkpoints half done,
kills and power cuts at any moment.  After each step the core must stand where the model stands.

Everything that grows in steps is made small, so that a few dozen messages fill segments, thin out
windows, roll index files over and have segments cleaned.
"""

from __future__ import annotations

import errno
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from tests.property.broker.beside_model import MILLISECOND_NS, SEGMENT_BYTES, SMALL_DISK_BYTES
from tests.property.broker.consumer_rules import delays_ms, picks
from tests.property.broker.history_rules import HistoryRules
from tests.property.broker.model import NEVER, MessageState, ModelChannel, ModelConsumer, ModelTopic

from martlet.broker.channel import delivery as delivery_module
from martlet.broker.delayed import bucket as bucket_module
from martlet.broker.delayed import delayed_messages as delays_module
from martlet.broker.delayed import done_bitmap as marks_module
from martlet.broker.delayed import due_queue as upcoming_module
from martlet.broker.queue import cursor as cursor_module
from martlet.broker.queue import in_flight as window_module
from martlet.broker.queue import peek as peek_module
from martlet.broker.queue import pending as pending_module
from martlet.broker.queue import queue_log as queue_module
from martlet.broker.retention import checkpoint as upkeep_module
from martlet.broker.retention.checkpoint import begin_checkpoint, count_needs, end_checkpoint
from martlet.broker.topic import retained
from martlet.log import index as index_module
from martlet.log import retention as retention_module

TOPICS = ["a", "b"]
CHANNELS = ["x", "y", "z"]
HOUR_MS = 3600 * 1000
YEARS_MS = 6 * 365 * 24 * HOUR_MS

names = st.sampled_from(TOPICS)
bodies = st.one_of(
    st.tuples(st.integers(1, 30), st.sampled_from([1, 8, 60])).map(lambda t: [t[1]] * t[0]),
    st.lists(st.integers(1, 120), min_size=1, max_size=20),
    st.just([9]),
    st.just([2500]),
)
"""The sizes of some bodies."""
steps_ms = st.sampled_from([-YEARS_MS, -HOUR_MS, -5000, -100, 100, 5000, HOUR_MS, YEARS_MS])
"""Steps of the wall clock."""


class BrokerMachine(HistoryRules):
    """Drives a broker and its model side by side."""

    # publishing

    def some_bodies(self, sizes: list[int]) -> list[bytes]:
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
        for name, sizes, delay_ms, as_matrix in parts:
            topic = self.model_topic(name)
            if topic is None:
                continue
            topic = topic.at_queues[self.made % len(topic.at_queues)]
            some = self.some_bodies(sizes)
            deliver_at_ns = self.clock.now_ns + delay_ms * MILLISECOND_NS if delay_ms else 0
            given: object = some
            if as_matrix and len(set(sizes)) == 1:
                given = np.frombuffer(b"".join(some), np.uint8).reshape(len(some), sizes[0])
            receipt = self.real_topic(topic).stage(given, self.date(deliver_at_ns))  # type: ignore[arg-type]
            self.staged.append((receipt, topic, some, deliver_at_ns))
        staged = [receipt for receipt, *_ in self.staged]
        self.broker.commit()
        self.take_in_stored()
        for receipt, *_ in self.staged:
            assert receipt.error is not None
            assert (
                self.broker.log.failed is not None
                or self.broker.log.full is not None
                or any(other.position for other in staged)
            )
        self.staged.clear()

    @precondition(lambda self: self.dropping or self.retention_ms)
    @rule(name=names, segments=st.integers(1, 4), delay_ms=st.sampled_from([0, 0, 1000]))
    def flood(self, name: str, segments: int, delay_ms: int) -> None:
        """So much that the oldest may have to go."""
        topic = self.model_topic(name)
        if topic is not None:
            self.create_channel(list(self.topics).index(name), "x")
        for _ in range(3 * segments):
            self.publish([(name, [100] * 10, delay_ms, False)])
            if self.broker.log.failed is not None:
                return

    @rule(name=names, size=st.integers(1, 120), before=st.booleans(), count=st.integers(1, 4))
    def publish_lone(self, name: str, size: int, before: bool, count: int) -> None:
        """Messages that come one by one; the first may find others staged."""
        topic = self.model_topic(name)
        if topic is None:
            return
        topic = topic.at_queues[self.made % len(topic.at_queues)]
        if before:
            staged = self.some_bodies([size, size])
            self.staged.append((self.real_topic(topic).stage(staged), topic, staged, 0))
        for _ in range(count):
            (body,) = self.some_bodies([size])
            append = partial(self.broker.append, self.real_topic(topic), body)
            refused = self.refused(append)
            self.take_in_stored()
            self.staged.clear()
            if not refused:
                self.published(topic, [body], 0, self.position)

    def model_topic(self, name: str) -> ModelTopic | None:
        if name not in self.topics:
            if self.refused(lambda: self.broker.topic(name)):
                assert name not in self.broker.topics
                return None
            id = self.broker.topics[name].id
            self.topics[name] = ModelTopic(name, id, self.position, retention_ms=self.retention_ms)
        return self.topics[name]

    # topics and channels

    @rule(name=names)
    def create_topic(self, name: str) -> None:
        self.model_topic(name)

    @rule(pick=picks, name=st.sampled_from(CHANNELS))
    def create_channel(self, pick: int, name: str) -> None:
        if not self.topics:
            return
        topic = list(self.topics.values())[pick % len(self.topics)]
        if name in topic.channels or self.refused(lambda: self.real_topic(topic).channel(name)):
            assert (name in self.real_topic(topic).channels) == (name in topic.channels)
            if name not in topic.channels:
                self.unmade.add((topic.name, name))
            return
        id = self.real_topic(topic).channels[name].id
        for part in topic.at_queues:
            part.create_channel(name, id, self.position, self.clock.now_ns)

    @rule(name=names, more=st.integers(0, 2))
    def create_queues(self, name: str, more: int) -> None:
        topic = self.model_topic(name)
        if topic is None:
            return
        count = min(3, len(topic.at_queues) + more)
        if self.refused(lambda: self.broker.set_queues(name, count)):
            assert len(self.real_topic(topic).at_queues) == len(topic.at_queues)
            self.ungrown.add(name)
            return
        for part in self.real_topic(topic).at_queues[len(topic.at_queues) :]:
            topic.grow(part.id, self.position)
        for consumer in self.consumers():
            if consumer.channel.topic is topic and count > 1:
                self.real[consumer] = consumer.grown or self.real[consumer]

    @rule(name=names, rarely=st.integers(0, 3))
    def delete_topic(self, name: str, rarely: int) -> None:
        topic = self.topics.get(name)
        if topic is None or rarely:
            return
        gone = [consumer for channel in topic.channels.values() for consumer in channel.consumers]
        real = {consumer: self.real.get(consumer) for consumer in gone}
        channels = {consumer: self.real_all_queues(consumer.channel) for consumer in gone}
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
        topic = self.real_topic(channel.topic.at_queues[0])
        real_channel = self.real_all_queues(channel)
        if self.refused(lambda: topic.delete_channel(channel.name)):
            assert channel.name in topic.channels
            return
        for part in channel.topic.at_queues:
            part.delete_channel(channel.name, self.position)
        self.deleted.append((channel.topic.name, channel.name, self.position))
        for consumer in channel.consumers:
            self._leave(consumer, self.real.get(consumer), real_channel)

    def _leave(self, consumer: ModelConsumer, real: Any, channel: Any) -> None:
        """The client of a deleted channel goes, as it was closed."""
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
            for part in topic.at_queues:
                part.pause(paused, self.position, self.clock.now_ns)

    @rule(pick=picks, paused=st.booleans())
    def pause_channel(self, pick: int, paused: bool) -> None:
        channel = self.pick_channel(pick)
        if channel is None:
            return
        topic = self.real_topic(channel.topic.at_queues[0])
        if not self.refused(lambda: topic.pause_channel(channel.name, paused)):
            for part in channel.at_queues:
                if part.paused != paused:
                    part.paused_position = self.position
                part.paused = paused

    @rule(name=names)
    def empty_topic(self, name: str) -> None:
        topic = self.topics.get(name)
        if topic is not None and not self.refused(self.real_topic(topic).empty):
            for part in topic.at_queues:
                part.empty(self.position)

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

    # time

    @rule(duration_ms=st.sampled_from([0, 1, 49, 99, 100, 400, 1000, 3500, 20_000]))
    def wait(self, duration_ms: int) -> None:
        end_ns = self.clock.now_ns + duration_ms * MILLISECOND_NS
        stops_ns = {end_ns}
        if self.dropping:
            # Forwarded messages may push out those in flight, which would have timed out later.
            stops_ns |= {due_ns for due_ns in self.due_times_ns() if due_ns < end_ns}
        for stop_ns in sorted(stops_ns):
            self.clock.advance(max(0, stop_ns - self.clock.now_ns))
            for channel in self.channels():
                channel.expire(self.clock.now_ns)
            self.run()

    @rule(step_ms=steps_ms)
    def set_wall(self, step_ms: int) -> None:
        """Dates follow the wall clock, and nothing else does."""
        self.shift_dates(step_ms * MILLISECOND_NS)
        self.broker.follow_wall()
        self.run()

    @rule(step_ms=steps_ms)
    def start_with_another_clock(self, step_ms: int) -> None:
        self.shift_dates(step_ms * MILLISECOND_NS)
        self.kill()

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
            self.flush(self.flushes.pop(0))

    @rule(steps=st.integers(1, 6))
    def count_some(self, steps: int) -> None:
        """Begin to count needed records, and do not come to the end."""
        for _ in islice(count_needs(self.broker), steps):
            pass

    @rule()
    def begin_checkpoint(self) -> None:
        while self.flushes:
            self.flush(self.flushes.pop(0))
        if self.checkpoint is not None or self.broker.log.failed is not None:
            return
        try:
            self.checkpoint = begin_checkpoint(self.broker)
        except OSError:
            assert self.storage.capacity_bytes is not None
            return
        self.checkpoint_saved = False
        finished = [
            [message for message in channel.messages.values() if message.state is MessageState.DONE]
            for channel in self.channels()
        ]
        replayed = [
            message
            for channel in self.channels()
            for message in channel.messages.values()
            if message.replayed_position
        ]
        topics = [(topic, topic.changed_position) for topic in self.parts()]
        channels = [(channel, channel.paused_position) for channel in self.channels()]
        position = self.checkpoint.flush.position

        def take_down() -> None:
            for messages in finished:
                for message in messages:
                    message.done_position = 0
            for message in replayed:
                message.replayed_position = 0
            for topic, changed in topics:
                topic.created_position = 0
                topic.changed_position = 0 if topic.changed_position == changed else NEVER
            for channel, changed in channels:
                channel.created_position = 0
                channel.paused_position = 0 if channel.paused_position == changed else NEVER
            self.deleted = [entry for entry in self.deleted if entry[2] > position]
            self.unmade.clear()
            self.ungrown.clear()

        self.at_checkpoint = take_down

    @rule()
    def save_checkpoint(self) -> None:
        job = self.checkpoint
        if job is None or self.checkpoint_saved:
            return
        if not self.flush(job.flush):
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

    @precondition(lambda self: self.retention_ms)
    @rule()
    def be_done_with_all(self) -> None:
        """Nothing is needed any more, and all that is kept is history."""
        for pick in range(len(self.channels())):
            self.empty_channel(pick)
            self.settle()  # consumers of messages at this queue have capacity for the next one's
        self.whole_checkpoint()

    # trouble

    @rule(more_segments=st.integers(0, 3), rarely=st.booleans())
    def fill_disk(self, more_segments: int, rarely: bool) -> None:
        if rarely:
            more = more_segments * SEGMENT_BYTES + SEGMENT_BYTES // 2
            self.storage.capacity_bytes = self.storage.used_bytes + more
            self.storage.keep_free_bytes = SEGMENT_BYTES // 4

    @rule()
    def make_room(self) -> None:
        self.storage.capacity_bytes = SMALL_DISK_BYTES if self.dropping else None
        self.storage.keep_free_bytes = 0

    def _make_all_room(self) -> None:
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
        """A clean stop, with space for the checkpoint."""
        self._make_all_room()
        self._mend_disk()
        self.checkpoint = None
        self.write_journal()
        self.whole_checkpoint()
        if self.broker.log.failed is not None:
            return
        self.storage.close()
        position = self.position
        self.storage = self.storage.crash()
        restored = self.restore()
        assert restored.checkpoint_position is not None
        assert all(note.startswith("the clock is ") for note in restored.notes)
        if not self.torn:
            assert restored.report.cut is None
            assert not restored.report.damaged
        self.make_room()
        assert restored.report.records == 0 or position > restored.checkpoint_position
        self.compare_after_restart(power=False, durable=NEVER)
        self.run()

    @rule()
    def kill(self) -> None:
        self.storage = self.storage.crash()
        self._mend_disk()
        restored = self.restore()
        if not self.torn:
            assert not restored.report.damaged
            assert restored.report.cut is None
        self.compare_after_restart(power=False, durable=NEVER - 1)
        self.run()

    @rule(seed=st.integers(0, 1 << 20))
    def cut_power(self, seed: int) -> None:
        durable = self.broker.log.durable_position
        self.torn = True
        self.storage.random.seed(seed)
        self.storage = self.storage.crash(power=True)
        self._mend_disk()
        self.restore()
        self.compare_after_restart(power=True, durable=durable)
        self.run()

    def teardown(self) -> None:
        """In the end every message that was not finished is delivered, once to each channel."""
        if not self.holds:
            return
        self._mend_disk()
        self._make_all_room()
        if self.broker.log.failed is not None:
            self.kill()
        for topic in list(self.topics.values()):
            self.pause_topic(topic.name, False)
            self.settle()
            if not topic.channels and any(part.messages for part in topic.at_queues):
                id = self.real_topic(topic).channel("last").id
                for part in topic.at_queues:
                    part.create_channel("last", id, self.position, self.clock.now_ns)
        self.shift_dates(max(0, self.last_date_ns() - self.clock.now_ns))
        self.broker.follow_wall()
        self.wait(4_000_000)
        assert self.broker.delays.pending_count == 0
        for channel in self.channels():
            if not channel.topic.number:
                self._drain(channel)
        self.stands_where_the_model_stands()

    def _drain(self, channel: ModelChannel) -> None:
        topic = self.real_topic(channel.topic)
        real_channel = self.real_all_queues(channel)
        for consumer in list(channel.consumers):
            for position in consumer.in_flight:
                part, offset = consumer.at(position)
                part.put_back(offset)
            channel.consumers.remove(consumer)
            real_channel.remove_consumer(self.real.pop(consumer))
            self.settle()
        assert not self.refused(lambda: topic.pause_channel(channel.name, False))
        for part in channel.at_queues:
            part.paused = False
        consumer = ModelConsumer(channel, 10**15, self.sent)
        channel.consumers.append(consumer)
        self.real[consumer] = real_channel.add_consumer(consumer, 10**15)
        consumer.ready_count = 1 << 20
        real_channel.set_ready(self.real[consumer], 1 << 20)
        self.settle()
        self.settle()
        left = {
            part.position(offset)
            for part in channel.at_queues
            for offset, message in part.messages.items()
            if message.state not in (MessageState.DONE, MessageState.IN_FLIGHT)
            and not part.topic.messages[offset].lost
        }
        assert not left, f"never delivered: {sorted(left)}"
        assert real_channel.depth == real_channel.deferred_count == 0


@pytest.fixture(autouse=True)
def everything_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few dozen messages do what takes millions else."""
    monkeypatch.setattr(window_module, "FIRST_CAPACITY", 4)
    monkeypatch.setattr(window_module, "COMFORTABLE_SPAN", 16)
    monkeypatch.setattr(delivery_module, "COMFORTABLE_SPAN", 16)
    monkeypatch.setattr(window_module, "_SCAN", 4)
    for size in ("_HELD_AT_ONCE", "_ROWS_AT_ONCE"):
        monkeypatch.setattr(peek_module, size, 3)
    monkeypatch.setattr(pending_module, "_RISING_AT_ONCE", 3)
    monkeypatch.setattr(cursor_module, "MAX_GRANT_BYTES", 700)
    monkeypatch.setattr(cursor_module, "_SCHEDULE_ROWS", 3)
    monkeypatch.setattr(retained, "MAX_BATCH_BYTES", 1500)
    monkeypatch.setattr(upkeep_module, "_DROP_ROWS", 2)
    monkeypatch.setattr(upkeep_module, "_ROWS_AT_ONCE", 3)
    monkeypatch.setattr(queue_module, "_ROWS_AT_ONCE", 3)
    monkeypatch.setattr(retention_module, "_ROWS_AT_ONCE", 3)
    monkeypatch.setattr(retention_module, "_MOVED_AT_ONCE", 1)
    monkeypatch.setattr(delays_module, "WIDTHS_NS", ((10**9, 4 * 10**8), (10**10, 2 * 10**9)))
    monkeypatch.setattr(delays_module, "DAY_NS", 10**12)
    monkeypatch.setattr(delays_module, "_PIECE_ROWS", 3)
    monkeypatch.setattr(upcoming_module, "MIN_ROWS", 4)
    monkeypatch.setattr(upcoming_module, "MAX_FRESH", 2)
    monkeypatch.setattr(upcoming_module, "_PIECE_ROWS", 3)
    monkeypatch.setattr(upcoming_module, "AHEAD_NS", 10**9)
    monkeypatch.setattr(upcoming_module, "_BEFORE_NS", 5 * 10**8)
    monkeypatch.setattr(bucket_module, "MAX_ROWS", 3)
    monkeypatch.setattr(bucket_module, "MAX_BYTES", 400)
    monkeypatch.setattr(marks_module, "OLDEST", 3)
    monkeypatch.setattr(marks_module, "_PIECE", 4)
    monkeypatch.setattr(index_module, "MAX_ROWS_IN_MEMORY", 6)
    monkeypatch.setattr(index_module, "_KEPT_ROWS", 2)


LIFE = settings(
    max_examples=150,
    stateful_step_count=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(600)  # when it fails: to find the shortest life in which it does
def test_the_core_keeps_its_promises() -> None:
    """The same lives each time; the long run looks for new ones."""
    run_state_machine_as_test(BrokerMachine, settings=settings(LIFE, derandomize=True))


def test_delayed_messages_that_a_power_cut_takes_may_be_reported_as_lost() -> None:
    state = BrokerMachine()
    state.open(seed=0, dropping=False, retention_ms=4000)
    state.be_done_with_all()
    state.kill()
    state.publish_for_later(delay_ms=1, name="a", sizes=[1], times=1)
    state.publish_for_later(delay_ms=1, name="a", sizes=[1], times=5)
    state.cut_power(seed=0)
    assert state.lost
    state.stands_where_the_model_stands()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_core_keeps_its_promises_for_long() -> None:
    run_state_machine_as_test(
        BrokerMachine, settings=settings(LIFE, max_examples=2000, stateful_step_count=120)
    )
