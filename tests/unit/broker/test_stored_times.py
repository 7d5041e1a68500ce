"""Stored times never go back: readers search by them, and retention goes by them."""

from __future__ import annotations

from random import Random

import pytest
from tests.property.log.feed import feed
from tests.unit.broker.core import SEGMENT_BYTES, Core

from martlet.broker.broker import BrokerCore
from martlet.broker.recovery.restore import BrokerRecovery, promote
from martlet.broker.retention.history import Retention
from martlet.broker.topic.rewind import offset_at
from martlet.log import checkpoint_file
from martlet.log.copy import open_copy
from martlet.log.record import RecordKind
from martlet.log.recovery import heads, segments_since
from martlet.testing import SimulatedClock, SimulatedStorage

DAY_NS = 24 * 3600 * 10**9
YEARS_NS = 6 * 365 * DAY_NS


def set_clock(core: Core, step_ns: int) -> None:
    core.clock = SimulatedClock(core.clock.now_ns + step_ns)


def times_of(broker: BrokerCore, topic: str = "t") -> list[int]:
    index = broker.topics[topic].queue.index
    return [row.stored_at_ns for row in index.rows(index.first_row, index.end_row)]


@pytest.mark.parametrize("start", ["kill", "power", "stop", "no checkpoint"])
def test_a_start_with_a_clock_that_is_behind_goes_on_from_the_newest_record(start: str) -> None:
    core = Core()
    core.publish("t", b"good")
    before_ns = core.clock.now_ns
    core.flush()
    set_clock(core, -YEARS_NS)
    if start == "stop":
        core.stop()
    elif start == "no checkpoint":
        core.checkpoint()
        core.storage.replace(checkpoint_file.NAME, b"damaged")
        core.kill()
    else:
        core.kill(power=start == "power")
    assert (
        "behind the newest record of the log, of 2023-11-14 22:13:20 UTC" in core.restored.notes[-1]
    )
    core.publish("t", b"past")
    core.broker.append(core.broker.topic("t"), b"alone")
    assert times_of(core.broker) == [before_ns] * 3
    assert offset_at(core.topic(), before_ns) == 0
    set_clock(core, YEARS_NS + 10**9)
    core.kill()
    core.publish("t", b"after")
    assert times_of(core.broker)[-1] == before_ns + 10**9
    assert offset_at(core.topic(), before_ns + 1) == 3


def test_a_start_says_nothing_of_a_clock_that_is_right(core: Core) -> None:
    core.publish("t", b"one")
    core.kill()
    assert not [note for note in core.restored.notes if "clock" in note]


def test_other_records_than_messages_tell_the_time_too(core: Core) -> None:
    """The messages may have gone with their segments."""
    core.channel("t")
    core.clock.advance(DAY_NS)
    core.broker.topic("u")
    newest_ns = core.clock.now_ns
    core.checkpoint()
    set_clock(core, -YEARS_NS)
    core.kill()
    core.publish("t", b"past")
    assert times_of(core.broker) == [newest_ns]
    records = [
        header.stored_at_ns for header, _ in heads(core.broker.log.segments, 0, list(RecordKind))
    ]
    assert records == sorted(records)


def test_a_standby_that_is_promoted_with_a_clock_behind_goes_on_from_the_newest_record() -> None:
    core = Core()
    core.publish("t", b"one")
    copy, _ = open_copy(SimulatedStorage(Random(1)))
    feed(core.broker.log, copy, Random(1))
    recovery = BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)
    clock = SimulatedClock(core.clock.now_ns - YEARS_NS)
    broker, restored = promote(copy, recovery, 2, clock, Random(1), segment_bytes=SEGMENT_BYTES)
    broker.topic("t").stage([b"two"])
    broker.commit()
    assert times_of(broker) == [core.clock.now_ns] * 2
    assert any("the clock is" in note for note in restored.notes)


def test_retention_keeps_young_messages_over_a_start_with_a_clock_that_is_behind() -> None:
    core = Core(retention=Retention(3 * DAY_NS))
    bodies = core.fill("t", 1)
    right_ns = core.clock.now_ns
    set_clock(core, -YEARS_NS)
    core.kill()
    core.fill("t", 2)
    core.clock = SimulatedClock(right_ns + 10**9)
    core.kill()
    core.fill("t", 1)
    core.channel("t")
    core.broker.empty_channel(core.topic(), "c")
    core.checkpoint(3)
    assert core.topic().queue.first_stored_offset == 0
    assert bodies


def test_messages_of_an_earlier_version_whose_times_went_back_stay_as_long_as_younger_ones() -> (
    None
):
    core = Core(retention=Retention(3 * DAY_NS))
    core.fill("t", 1)
    set_clock(core, -YEARS_NS)
    core.kill()
    core.broker.last_stored_ns = 0  # as earlier versions began
    core.fill("t", 1)
    set_clock(core, YEARS_NS)
    core.kill()
    core.channel("t")
    core.broker.empty_channel(core.topic(), "c")
    times = times_of(core.broker)
    assert times != sorted(times)
    core.checkpoint()
    assert core.topic().queue.first_stored_offset == 0
    assert offset_at(core.topic(), core.clock.now_ns - DAY_NS) == 0
    segments = core.broker.log.segments
    assert segments_since(segments, core.clock.now_ns - 2 * DAY_NS)[0] is segments[0]
