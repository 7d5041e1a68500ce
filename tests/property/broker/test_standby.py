"""A broker and a standby that copies its log: each crash makes the standby the broker.

The lives are those of `test_broker`. The standby lags, is killed and loses power at any moment.
When the broker crashes, the standby gets the rest of the log, takes it in, and must stand where the
model stands.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test
from tests.property.broker.beside_model import SEGMENT_BYTES, EdgeRandom
from tests.property.broker.model import NEVER, MessageState, ModelTopic
from tests.property.broker.test_broker import LIFE, BrokerMachine, everything_small
from tests.property.log.feed import feed, join

from martlet.broker.broker import BrokerCore
from martlet.broker.journal.entries import decode_retired
from martlet.broker.recovery.restore import BrokerRecovery, RestoredBroker, promote
from martlet.log.copy import CopiedLog, open_copy
from martlet.log.epochs import Epochs
from martlet.log.index import IndexEntry
from martlet.log.record import RecordKind, payload
from martlet.log.recovery import RecoveryReport, scan
from martlet.testing import SimulatedStorage

__all__ = ["everything_small"]  # the fixture, which these need too


class FailoverMachine(BrokerMachine):
    """A broker, its model, and its standby."""

    def __init__(self) -> None:
        super().__init__()
        self.dice = Random(0)
        self.copy: CopiedLog = open_copy(SimulatedStorage(self.dice))[0]
        self.recovery: BrokerRecovery | None = None
        self.promoting = False

    def make_broker(self, **options: Any) -> tuple[BrokerCore, RestoredBroker]:
        if not self.promoting:
            return super().make_broker(**options)
        assert self.recovery is not None
        epoch = self.copy.epochs.last + 1
        random = EdgeRandom(self.seed)
        return promote(self.copy, self.recovery, epoch, self.clock, random, **options)

    # the standby

    @rule(max_bytes=st.sampled_from([200, 2000, 1 << 40]))
    def ship(self, max_bytes: int) -> None:
        feed(self.broker.log, self.copy, self.dice, max_bytes)

    @rule()
    def take_in(self) -> None:
        """The standby's state follows what was copied."""
        copy = self.copy
        if self.recovery is not None and not self.recovery.is_usable:
            self.recovery = None
        if self.recovery is None:
            # While segments are missing, copies out of them come behind later batches.
            feed(self.broker.log, copy, self.dice)
            self.recovery = BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)
        self.recovery.follow(copy.end_position)
        # What grows while a log is read must not grow for months.
        state = self.recovery._state
        assert not state.forwarded
        assert not state.transactions._seen

    @rule()
    def flush_standby(self) -> None:
        job = self.copy.flush_job()
        job.run()
        self.copy.flushed(job)

    @rule()
    def save_standby(self) -> None:
        """The standby's own checkpoint, as far as its log is durable."""
        steps = [self.take_in, self.flush_standby]
        self.dice.shuffle(steps)
        for step in steps:
            step()
        assert self.recovery is not None
        checkpoint = self.recovery.take_checkpoint(self.copy.durable_position)
        if checkpoint is not None:
            assert checkpoint.position <= self.copy.durable_position
            checkpoint.save(self.copy.storage)
            self.recovery.saved(checkpoint)
            kept = {topic.index.name for topic in self.recovery._state.topics.values()}
            files = {f"index/{name}" for name in self.copy.storage.names("index")}
            assert files <= kept | checkpoint.indexes.keys()

    @rule(power=st.booleans())
    def restart_standby(self, power: bool) -> None:
        self.follow(self.standby_storage.crash(power=power))

    @rule()
    def replace_standby(self) -> None:
        """Another machine, with an empty disk."""
        self.follow(SimulatedStorage(self.dice))

    @property
    def standby_storage(self) -> SimulatedStorage:
        assert isinstance(self.copy.storage, SimulatedStorage)
        return self.copy.storage

    def follow(self, storage: SimulatedStorage) -> None:
        """Copy the log of the broker to a storage, as far as it is the same from now on."""
        storage.capacity_bytes = storage.write_error = storage.flush_error = None
        storage.keep_free_bytes = 0
        self.recovery = None
        log = self.broker.log
        self.copy = join(log, epochs_of(self.broker), open_copy(storage)[0], log.epoch)

    @rule()
    def begin_checkpoint(self) -> None:
        """A checkpoint frees what is finished, so the log, which the standby has, says it first."""
        refused_count = self.broker.log.refused_count
        self.write_journal()
        if self.broker.log.refused_count == refused_count:
            super().begin_checkpoint()

    # the end of a broker

    @rule()
    def kill(self) -> None:
        if self.dice.randrange(4):
            self.fail_over(power=False)
        else:
            super().kill()
            self.follow(self.standby_storage.crash())

    @rule(seed=st.integers(0, 1 << 20))
    def cut_power(self, seed: int) -> None:
        self.storage.random.seed(seed)
        self.fail_over(power=True)

    @precondition(lambda self: self.broker.log.failed is None)
    @rule()
    def stop_and_start(self) -> None:
        before = self.storage
        super().stop_and_start()
        if self.storage is not before:
            self.follow(self.standby_storage.crash())

    def fail_over(self, *, power: bool) -> None:
        feed(self.broker.log, self.copy, self.dice)
        self.adopt(power=power, lost=False, durable=NEVER - 1)

    def adopt(self, *, power: bool, lost: bool, durable: int) -> None:
        """The standby becomes the broker; whether what is not `durable` may be lost."""
        self.take_in()
        former, self.storage = self.storage, self.standby_storage
        self.storage.capacity_bytes = former.capacity_bytes
        self.storage.keep_free_bytes = former.keep_free_bytes
        self.promoting = True
        self.restore()
        self.promoting = False
        self.compare_after_restart(power=lost, durable=durable)
        self.run()
        self.follow(former.crash(power=power))


class ConfirmingMachine(FailoverMachine):
    """A broker that shows nothing before its standby has it: what it had not is cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: dict[ModelTopic, list[tuple[list[bytes], int, int, int]]] = defaultdict(list)
        """Batches that are not confirmed: bodies, times of delivery and storing, position."""
        self.confirms = True
        self.retired: set[int] = set()
        """The segments that may go."""
        self.bases: tuple[object, set[int]] = (None, set())
        """Those that there were, and where."""

    @initialize(seed=st.integers(0, 1000), retention_ms=st.sampled_from([0, 4000, 10_000_000]))
    def open(self, seed: int, dropping: bool = False, retention_ms: int = 0) -> None:
        # What is dropped for space is not told to the standby yet.
        assert not dropping
        super().open(seed=seed, dropping=False, retention_ms=retention_ms)

    def make_broker(self, **options: Any) -> tuple[BrokerCore, RestoredBroker]:
        broker, restored = super().make_broker(**options)
        if self.confirms:
            broker.await_confirmation(broker.log.position)
        return broker, restored

    def published(
        self, topic: ModelTopic, bodies: list[bytes], deliver_at_ns: int, position: int
    ) -> None:
        self.hidden[topic].append((bodies, deliver_at_ns, self.clock.now_ns, position))
        if not self.confirms:
            self.confirm_all()

    def take_in_confirmed(self, topic: ModelTopic) -> None:
        bodies, deliver_at_ns, stored_at_ns, position = self.hidden[topic].pop(0)
        assert position <= self.broker.confirmed_position, "shown before it is confirmed"
        first = len(topic.messages)
        topic.publish(bodies, deliver_at_ns, position, stored_at_ns)
        if deliver_at_ns <= self.clock.now_ns:
            for channel in topic.channels.values():
                for offset in range(first, len(topic.messages)):
                    if channel.messages[offset].state is MessageState.DEFERRED:
                        channel.messages[offset].state = MessageState.READY

    def shift_dates(self, step_ns: int) -> None:
        super().shift_dates(step_ns)
        for waiting in self.hidden.values():
            waiting[:] = [
                (bodies, at_ns and at_ns - step_ns, stored_at_ns, position)
                for bodies, at_ns, stored_at_ns, position in waiting
            ]

    def grow_older(self, duration_ns: int) -> None:
        super().grow_older(duration_ns)
        for waiting in self.hidden.values():
            waiting[:] = [
                (bodies, at_ns, stored_at_ns - duration_ns, position)
                for bodies, at_ns, stored_at_ns, position in waiting
            ]

    def hidden_rows(self, topic: ModelTopic) -> list[IndexEntry]:
        queue = self.real_topic(topic).queue
        return queue.index.rows(queue.index.find(queue.visible_end), queue.index.end_row)

    def hidden_ids(self) -> set[bytes]:
        rows = [row for topic in self.parts() for row in self.hidden_rows(topic)]
        return {id for row in rows for id, _ in self.forwarded_in(row)}

    @rule(max_bytes=st.sampled_from([200, 2000, 1 << 40]))
    def confirm(self, max_bytes: int) -> None:
        """The standby gets some of the log, and answers."""
        feed(self.broker.log, self.copy, self.dice, max_bytes)
        self.confirm_to(self.copy.end_position)

    def confirm_to(self, position: int) -> None:
        if position > self.broker.confirmed_position:
            self.broker.confirm(position)
            self.settle()

    def confirm_all(self) -> None:
        if self.broker.log.failed is None:
            self.confirm_to(self.position)

    @rule()
    def begin_checkpoint(self) -> None:
        if self.checkpoint is None:
            super().begin_checkpoint()

    @rule()
    def save_checkpoint(self) -> None:
        """None is saved that is ahead of what is confirmed: a cut would have to undo it."""
        job = self.checkpoint
        if job is not None and self.broker.confirmed_position >= job.flush.position:
            super().save_checkpoint()

    def whole_checkpoint(self) -> None:
        self.begin_checkpoint()
        self.confirm_all()
        self.save_checkpoint()
        self.end_checkpoint()

    @invariant()
    def segments_go_when_the_log_says_so(self) -> None:
        """Their files stay until that is confirmed."""
        if not hasattr(self, "broker"):
            return
        for header, record in scan(self.storage.segments(), 0, RecoveryReport()):
            is_confirmed = header.next_position <= self.broker.confirmed_position
            if header.kind == RecordKind.RETIRED and is_confirmed:
                self.retired.update(decode_retired(bytes(payload(header, record))))
        bases = {segment.base for segment in self.storage.segments()}
        before, self.bases = self.bases, (self.storage, bases)
        if before[0] is self.storage:
            assert before[1] - bases <= self.retired

    @rule()
    def kill(self) -> None:
        self.fail_over(power=False)

    @precondition(lambda self: self.broker.log.failed is None)
    @rule()
    def stop_and_start(self) -> None:
        self.write_journal()
        self.confirm_all()
        super().stop_and_start()

    def fail_over(self, *, power: bool) -> None:
        """The standby has what was confirmed, and perhaps more."""
        while self.copy.end_position < self.broker.confirmed_position:
            feed(self.broker.log, self.copy, self.dice)
        self.take_in()
        self.confirm_to(self.copy.end_position)
        self.hidden.clear()
        self.adopt(power=power, lost=True, durable=self.copy.end_position)

    def teardown(self) -> None:
        if self.holds:
            self.confirm_all()
            self.confirms = False
        super().teardown()


def epochs_of(broker: BrokerCore) -> Epochs:
    report = RecoveryReport()
    for _ in scan(list(broker.log.segments), 0, report):
        pass
    return report.epochs


@pytest.mark.timeout(600)  # when it fails: to find the shortest life in which it does
def test_nobody_is_shown_what_a_failover_cuts_off() -> None:
    run_state_machine_as_test(
        ConfirmingMachine, settings=settings(LIFE, derandomize=True, max_examples=80)
    )


@pytest.mark.timeout(600)  # when it fails: to find the shortest life in which it does
def test_a_standby_stands_where_its_broker_stood() -> None:
    run_state_machine_as_test(
        FailoverMachine, settings=settings(LIFE, derandomize=True, max_examples=80)
    )


def test_a_checkpoint_before_retired_segments_is_not_used() -> None:
    """A replica that was the broker once had one. Behind it segments were retired, and what was
    moved out of them came behind later batches.
    """
    state = FailoverMachine()
    state.open(dropping=False, seed=425, retention_ms=10_000_000)
    state.whole_checkpoint()
    state.publish_for_later(delay_ms=400, name="a", sizes=[64], times=5)
    state.fail_over(power=True)
    state.fail_over(power=False)
    state.fail_over(power=True)
    state.stop_and_start()
    state.stop_and_start()
    state.fail_over(power=True)
    state.stands_where_the_model_stands()
    # Nor by a later start on the same folder, without a standby.
    BrokerMachine.kill(state)
    state.stands_where_the_model_stands()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_standby_stands_where_its_broker_stood_for_long() -> None:
    run_state_machine_as_test(
        FailoverMachine, settings=settings(LIFE, max_examples=3000, stateful_step_count=80)
    )
