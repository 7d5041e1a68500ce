"""The log of a flood."""

from __future__ import annotations

import logging
from random import Random

import pytest

from martlet.broker.errors import WritesRefused
from martlet.broker.recovery.restore import restore
from martlet.protocol.nsq.v2 import ProtocolError
from martlet.server.observability.event_log import MAX_REFUSALS, EventLog
from martlet.testing import SimulatedClock, SimulatedStorage
from martlet.text import SECOND_NS

LATE = ProtocolError("E_FIN_FAILED", "FIN 0 failed ID not in flight", fatal=False)
ONE, OTHER = "127.0.0.1:1", "127.0.0.1:2"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def events(clock: SimulatedClock) -> EventLog:
    broker, _ = restore(SimulatedStorage(Random(2)), clock, Random(1), segment_bytes=1 << 16)
    return EventLog(broker, logging.getLogger("flood"))


def test_of_late_answers_a_hundred_a_second_of_each_client_are_logged(
    events: EventLog, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A line costs ten times as much as the refusal: thousands of them held up all clients."""
    for _ in range(3 * MAX_REFUSALS):
        events.refused(ONE, LATE)
    events.refused(OTHER, LATE)
    expected = [f"[{ONE}] - {LATE}"] * MAX_REFUSALS + [f"[{OTHER}] - {LATE}"]
    assert caplog.messages == expected
    clock.advance(SECOND_NS)
    events.refused(ONE, LATE)
    summary = f"[{ONE}] - {2 * MAX_REFUSALS} more lines like these, not logged each"
    expected += [summary, f"[{ONE}] - {LATE}"]
    assert caplog.messages == expected


def test_unlogged_lines_are_counted_when_the_client_goes(
    events: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(MAX_REFUSALS + 1):
        events.refused(ONE, LATE)
    events.closed(ONE, None)
    assert caplog.messages[-1] == f"[{ONE}] - 1 more lines like these, not logged each"
    events.closed(ONE, None)
    assert caplog.messages[-1] == f"[{ONE}] - 1 more lines like these, not logged each"


def test_the_error_that_ends_a_connection_is_always_logged(
    events: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2 * MAX_REFUSALS):
        events.refused(ONE, LATE)
    fatal = ProtocolError("E_INVALID", "invalid command BAD")
    events.refused(ONE, fatal)
    assert caplog.messages[-2:] == [f"[{ONE}] - {fatal}", f"client({ONE}) - {fatal}"]


def test_writes_that_a_replica_refuses_are_no_error_of_the_log(
    clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A planned hand-over was logged as an error; a replica logs itself why it refuses writes."""
    broker, _ = restore(SimulatedStorage(Random(2)), clock, Random(1), segment_bytes=1 << 16)
    events = EventLog(broker, logging.getLogger("refusing"))
    broker.log.on_refused = events.write_refused
    broker.log.refuse_writes("replica b becomes primary: publish again")
    with pytest.raises(WritesRefused):
        broker.topic("t")
    assert not caplog.messages
    broker.log.accept_writes()
    broker.log.failed = "the disk failed"
    with pytest.raises(WritesRefused):
        broker.topic("t")
    assert caplog.messages == ["LOG: messages are refused: the disk failed"]
