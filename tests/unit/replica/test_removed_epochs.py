"""Replicas that copied a log after segments of it were removed: they know of those epochs, too.

Else none of them, as primary, could be followed by a standby that was away since such an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.property.log.feed import flushed
from tests.unit.replica.test_primary import FakeLink
from tests.unit.replica.test_replica import ALL, SEGMENT_BYTES
from tests.unit.replica.test_shipping import append, empty, log_of, ship

from martlet.broker.recovery.restore import BrokerRecovery
from martlet.log.copy import CopiedLog
from martlet.log.epochs import EpochRange
from martlet.replica.candidate import Candidate, CandidateState
from martlet.replica.frames import Frame, FrameKind, ReplicaGreeting
from martlet.replica.shipping import NO_SEGMENT, LogSender, greeting, join
from martlet.replica.standby import Standby, StandbyState

EPOCH = 4
"""The epoch that begins with the log."""


class Log:
    """A log of epochs 1 to 3, and two replicas that were connected until some time in epoch 2."""

    def __init__(self) -> None:
        self.log = log_of(12)
        self.ranges: list[EpochRange] = []
        self.behind, self.away = empty(), empty()
        """The first lacks some of what the second has, and knows as confirmed."""
        self.begin(2)
        for copy in (self.behind, self.away):
            append(self.log, 7)
            ship(LogSender(self.log, 0, NO_SEGMENT), copy)
        append(self.log, 1)
        self.begin(3)
        append(self.log, 15)
        self.end()

    def begin(self, epoch: int) -> None:
        """Begin an epoch, in a segment of its own."""
        self.end()
        self.log.epoch = epoch
        self.log.end_segment()

    def end(self) -> None:
        """Note the epoch that ends."""
        before = self.ranges[-1].end if self.ranges else 0
        start = next(segment.base for segment in self.log.segments if segment.base >= before)
        self.ranges.append(EpochRange(self.log.epoch, start, self.log.position))

    def remove(self, first: int) -> None:
        """Remove the segments before epoch 3, from one of them on."""
        flushed(self.log)
        old = [segment for segment in self.log.segments if segment.base < self.ranges[-1].start]
        for segment in old[first:]:
            self.log.retire(segment)
            self.log.remove(segment)

    @property
    def greeting(self) -> ReplicaGreeting:
        return greeting("id", "b", self.log, self.ranges, is_whole=True)

    def send(self, fetch: Frame, receive: Callable[[Frame], None]) -> None:
        """Send the log from where a replica asks for it."""
        assert fetch.kind == FrameKind.FETCH
        link = FakeLink()
        LogSender(self.log, fetch.position, fetch.second).pump(link, EPOCH, 0, 1 << 30)
        for frame in link.sent:
            receive(frame)

    def is_followed(self, copy: CopiedLog) -> None:
        """The replica that was away follows a primary with a copy of this log."""
        assert copy.end_position == self.log.position
        away = self.away
        theirs = greeting("id", "a", copy, copy.epochs.ranges, is_whole=True)
        fetch = join(away, theirs, EPOCH, away.end_position, list)
        ship(LogSender(copy, fetch.position, fetch.second), away)
        assert away.end_position == self.log.position
        assert [segment.base for segment in away.segments] == [
            segment.base for segment in copy.segments
        ]


@pytest.fixture(params=[0, 1], ids=["all old segments are gone", "the first one is there"])
def log(request: pytest.FixtureRequest) -> Log:
    made = Log()
    made.remove(request.param)
    return made


@pytest.mark.parametrize("is_new", [True, False], ids=["on a new disk", "behind"])
def test_a_candidate_that_copied_the_log(log: Log, is_new: bool) -> None:
    noted: list[EpochRange] = []
    copy = empty() if is_new else log.behind

    def note(ranges: object) -> None:
        noted[:] = [replace(epoch) for epoch in copy.epochs.ranges]

    candidate = Candidate(
        "a", "id", replace(ALL, epoch=EPOCH, primary="a"), 9, copy, lambda: copy, note,
        not is_new, 0, 0,
    )  # fmt: skip
    links = {name: FakeLink() for name in "bc"}
    lagging = greeting("id", "c", log.away, log.away.epochs.ranges, is_whole=True)
    candidate.greeted(links["b"], log.greeting)
    candidate.greeted(links["c"], lagging)
    log.send(links["b"].sent[-1], lambda frame: candidate.received(links["b"], frame))
    assert candidate.state is CandidateState.DONE
    assert noted == copy.epochs.ranges
    log.is_followed(copy)


@pytest.mark.parametrize("is_new", [True, False], ids=["on a new disk", "behind"])
def test_a_standby_that_copied_the_log(log: Log, is_new: bool) -> None:
    noted: list[EpochRange] = []
    copy = empty() if is_new else log.behind

    def note(ranges: object) -> None:
        noted[:] = [replace(epoch) for epoch in copy.epochs.ranges]

    def recover(copy: CopiedLog) -> BrokerRecovery:
        return BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)

    standby = Standby(
        "a", "id", EPOCH, copy, None, not is_new, 0, recover, lambda: copy, lambda _: None, note, 0
    )
    link = FakeLink()
    standby.state = StandbyState.CONNECTING
    standby.connected(link)
    welcome = Frame(FrameKind.WELCOME, EPOCH, log.log.position, 0, log.greeting.pack())
    standby.received(welcome, 0)
    fetch = link.sent[-1]
    standby.end_turn()

    def receive(frame: Frame) -> None:
        standby.received(frame, 0)
        standby.end_turn()

    log.send(fetch, receive)
    standby.received(Frame(FrameKind.BEAT, EPOCH, log.log.position, 0), 0)
    standby.end_turn()
    assert standby.is_whole
    assert [(epoch.epoch, epoch.start) for epoch in noted][:2] == [(1, 0), (2, log.ranges[1].start)]
    log.is_followed(copy)
