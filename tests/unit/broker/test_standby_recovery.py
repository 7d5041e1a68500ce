"""Starts of a standby on what it finds."""

from __future__ import annotations

from random import Random

import pytest
from tests.property.log.feed import feed
from tests.unit.broker.core import SEGMENT_BYTES, Core

from martlet.broker.recovery.restore import BrokerRecovery, promote
from martlet.broker.retention import checkpoint as checkpoint_module
from martlet.log.copy import CopiedLog, open_copy
from martlet.log.recovery import RecoveryReport, scan
from martlet.testing import SimulatedClock, SimulatedStorage


def test_a_checkpoint_ahead_of_the_log_is_not_used(core: Core) -> None:
    """Its position was cut off."""
    core.publish("t", b"one")
    position = core.broker.log.position
    core.publish("t", b"two")
    core.checkpoint()
    copy, _ = open_copy(core.storage.crash())
    copy.cut(position, 2)
    recovery = BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)
    assert recovery.checkpoint_position is None
    assert recovery.notes == [
        "the checkpoint is ahead of the log, or segments behind it were retired;"
        " reading the whole log"
    ]
    broker, _ = promote(copy, recovery, 2, SimulatedClock(), Random(1), segment_bytes=SEGMENT_BYTES)
    assert broker.topics["t"].queue.end_offset == 1


def test_a_checkpoint_is_saved_once_the_record_at_its_position_is_durable(core: Core) -> None:
    """Without it the log would end before the checkpoint."""
    copy, _ = open_copy(SimulatedStorage(Random(1)))
    feed(core.broker.log, copy, Random(1))
    recovery = BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)
    recovery.follow(copy.end_position)
    core.fill("t", 1)
    feed(core.broker.log, copy, Random(1))
    recovery.follow(copy.end_position)
    base = copy.segments[-1].base
    assert recovery.take_checkpoint(base) is None
    checkpoint = recovery.take_checkpoint(copy.end_position)
    assert checkpoint is not None
    assert checkpoint.position == base
    assert recovery.take_checkpoint(copy.end_position) is None
    checkpoint.save(copy.storage)
    recovery.saved(checkpoint)
    again, _ = open_copy(copy.storage.crash())  # type: ignore[attr-defined]
    resumed = BrokerRecovery(again.storage, again.segments, SEGMENT_BYTES, copy=again)
    assert (resumed.checkpoint_position, resumed.notes) == (base, [])


def test_a_state_is_built_without_a_search_of_the_unwritten_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A standby builds it while it is in sync. The search for records behind the end of a segment
    took more than a second of a busy processor for 100 MiB, in which it was silent.
    """
    core = Core()
    for number in range(3):
        core.publish("t", b"%d" % number)
        core.broker.log.end_segment()
    copy, _ = open_copy(SimulatedStorage(Random(1)))
    feed(core.broker.log, copy, Random(1))
    assert len(copy.segments) >= 3

    def fail(*_: object) -> None:
        raise AssertionError("the rest of a segment is searched")

    monkeypatch.setattr("martlet.log.recovery.next_good", fail)
    recovery = BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)
    recovery.follow(copy.end_position)
    broker, _ = promote(copy, recovery, 2, SimulatedClock(), Random(1), segment_bytes=SEGMENT_BYTES)
    assert broker.topics["t"].queue.end_offset == 3


def test_a_promoted_broker_reports_what_no_replica_has_undamaged(core: Core) -> None:
    core.publish("t", b"one")
    first = core.broker.log.position
    core.publish("t", b"two")
    second = core.broker.log.position
    core.publish("t", b"three")
    core.storage.segment_bytes_of(0)[first + 90] ^= 1
    copy, _ = open_copy(core.storage.crash())
    assert copy.damaged == [(first, second)]
    recovery = BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)
    broker, restored = promote(
        copy, recovery, 2, SimulatedClock(), Random(1), segment_bytes=SEGMENT_BYTES
    )
    assert [(damage.start, damage.end) for damage in restored.report.damaged] == [(first, second)]
    report = RecoveryReport()
    assert sum(1 for _ in scan(list(broker.log.segments), 0, report))
    assert broker.topics["t"].queue.end_offset == 3


def keep_up(core: Core, copy: CopiedLog, recovery: BrokerRecovery) -> None:
    """The primary frees what is finished, and the standby takes that in and saves it."""
    core.broker.write_journal()
    core.checkpoint()
    core.broker.write_journal()
    core.broker.confirm(core.broker.log.position)
    feed(core.broker.log, copy, Random(1))
    recovery.follow(copy.end_position)
    job = copy.flush_job()
    job.run()
    copy.flushed(job)
    checkpoint = recovery.take_checkpoint(copy.durable_position)
    if checkpoint is not None:
        checkpoint.save(copy.storage)
        recovery.saved(checkpoint)


def test_what_is_retired_leaves_the_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_module, "_DROP_ROWS", 8)
    core = Core()
    core.broker.await_confirmation(core.broker.log.position)
    copy, _ = open_copy(SimulatedStorage(Random(1)))
    feed(core.broker.log, copy, Random(1))
    recovery = BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)
    channel = core.channel("t")
    core.publish("kept", b"x" * 100)
    for _ in range(20):
        core.fill("t", 2)
        keep_up(core, copy, recovery)
        channel.advance(channel.cursor.queue.visible_end)
        assert len(copy.segments) < 15
    index = recovery.find_topic("t").queue.index
    assert index.first_row > 100
    assert index.end_row - index.first_row < 100
    assert len(copy.storage.names("index")) == 2
    again, _ = open_copy(copy.storage.crash())  # type: ignore[attr-defined]
    resumed = BrokerRecovery(again.storage, again.segments, SEGMENT_BYTES, copy=again)
    assert (resumed.checkpoint_position, resumed.notes) == (recovery.checkpoint_position, [])
    resumed.follow(again.end_position)
    for name in ("t", "kept"):
        ours, theirs = recovery.find_topic(name).queue, resumed.find_topic(name).queue
        assert theirs.start_offset == ours.start_offset
        assert theirs.end_offset == ours.end_offset
        rows = (ours.index.array(0, 1 << 40), theirs.index.array(0, 1 << 40))
        assert rows[0].tobytes() == rows[1].tobytes()


def test_the_index_of_a_deleted_topic_is_removed(core: Core) -> None:
    core.broker.await_confirmation(core.broker.log.position)
    copy, _ = open_copy(SimulatedStorage(Random(1)))
    feed(core.broker.log, copy, Random(1))
    recovery = BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)
    core.publish("t", b"one")
    core.fill("u", 1)
    keep_up(core, copy, recovery)
    assert len(copy.storage.names("index")) == 2
    core.broker.delete_topic("t")
    core.fill("u", 1)
    keep_up(core, copy, recovery)
    assert len(copy.storage.names("index")) == 1
