"""A log on its way to another replica."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from tests.property.log.feed import flushed
from tests.unit.replica.test_primary import FakeLink

from martlet.log.commit_log import CommitLog
from martlet.log.copy import CopiedLog, open_copy
from martlet.log.epochs import EpochRange
from martlet.log.record import RecordKind
from martlet.replica import shipping
from martlet.replica.frames import Frame, FrameKind
from martlet.replica.shipping import (
    NO_SEGMENT,
    LogsDiverged,
    LogSender,
    RepairPieces,
    SegmentRemoved,
    greeting,
    join,
    piece,
    take,
)
from martlet.testing import SimulatedStorage

SEGMENT_BYTES = 1024


def log_of(count: int) -> CommitLog:
    """A log with records of 160 bytes: six fill a segment."""
    log = CommitLog(SimulatedStorage(Random(1)), [], 0, 1, SEGMENT_BYTES)
    log.condemned = []
    append(log, count)
    return log


def append(log: CommitLog, count: int) -> None:
    for number in range(count):
        log.append_journal(RecordKind.TOPOLOGY, b"%d" % (number % 10) * 80, topic=1, stored_at_ns=1)


def empty() -> CopiedLog:
    return open_copy(SimulatedStorage(Random(2)))[0]


def ship(sender: LogSender, copy: CopiedLog, max_bytes: int = 1 << 30) -> list[FrameKind]:
    link = FakeLink()
    sender.pump(link, 1, 0, max_bytes)
    for frame in link.sent:
        take(copy, frame)
    return link.kinds


class FillingLink(FakeLink):
    """It takes one frame of data, and then no more."""

    def send(self, frame: Frame) -> None:
        super().send(frame)
        self.is_full = frame.kind == FrameKind.DATA


def test_what_a_full_link_does_not_take_stays_in_the_log() -> None:
    """It is sent in one frame later, with what was appended meanwhile, and not copied before."""
    log = log_of(2)
    link = FillingLink()
    sender = LogSender(log, 0, 0)
    sender.pump(link, 1, 0, 1 << 20)
    for _ in range(3):
        append(log, 1)
        sender.pump(link, 1, 0, 1 << 20)
    assert [(frame.position, len(frame.body)) for frame in link.sent] == [(0, 320)]
    link.is_full = False
    sender.pump(link, 1, 0, 1 << 20)
    assert [(frame.position, len(frame.body)) for frame in link.sent[1:]] == [(320, 480)]


def test_a_log_arrives_whole_and_goes_on() -> None:
    log, copy = log_of(15), empty()
    sender = LogSender(log, 0, NO_SEGMENT)
    while copy.position < log.position:
        ship(sender, copy, 100)
    append(log, 3)
    ship(sender, copy)
    assert copy.position == log.position
    assert [s.base for s in copy.segments] == [s.base for s in log.segments]
    sender.acknowledged(copy.end_position)
    assert sender.unacknowledged_bytes == 0


def test_a_sender_goes_on_behind_retired_segments() -> None:
    """What it sent is counted in bytes: the positions in between were never sent."""
    log, copy = flushed(log_of(20)), empty()
    sender = LogSender(log, 0, NO_SEGMENT)
    ship(sender, copy, 960)
    second = log.segments[1]
    log.retire(second)
    assert log.following(1) is second, "its file is kept until all replicas may remove theirs"
    log.remove(second)
    ship(sender, copy)
    assert copy.position == log.position
    assert copy.gap_count == 1
    sender.acknowledged(copy.end_position)
    assert sender.unacknowledged_bytes == 0


def test_a_segment_that_is_removed_while_it_is_sent() -> None:
    log, copy = flushed(log_of(20)), empty()
    sender = LogSender(log, 0, NO_SEGMENT)
    ship(sender, copy, 200)
    first = log.segments[0]
    log.retire(first)
    log.remove(first)
    with pytest.raises(SegmentRemoved, match="the segment at 0 was removed"):
        ship(sender, copy)
    with pytest.raises(SegmentRemoved, match="no segment with position 0"):
        piece(log, Frame(FrameKind.REPAIR, 1, 0, 160))
    # It is skipped once the two have greeted anew.
    theirs = greeting("id", "a", log, [EpochRange(1, 0, log.position)], is_whole=True)
    fetch = join(copy, theirs, 1, 0, list)
    assert copy.segments == []
    ship(LogSender(log, fetch.position, fetch.second), copy)
    assert copy.position == log.position


@pytest.mark.parametrize("damaged", [[(160, 320)], [(640, 1024)], [(800, 1024), (1024, 1184)]])
def test_what_no_replica_has_undamaged_is_copied_as_it_is(damaged: list[tuple[int, int]]) -> None:
    log, copy = log_of(10), empty()
    storage = log.storage
    assert isinstance(storage, SimulatedStorage)
    for start, end in damaged:
        for at in range(start, min(end, start // 1024 * 1024 + 960), 160):
            storage.segment_bytes_of(start // SEGMENT_BYTES * SEGMENT_BYTES)[at % 1024 + 90] ^= 1
    log.damaged = damaged
    kinds = ship(LogSender(log, 0, NO_SEGMENT), copy)
    assert kinds.count(FrameKind.DAMAGED) == len(damaged)
    assert copy.damaged == damaged
    assert copy.position == log.position
    assert piece(log, Frame(FrameKind.REPAIR, 1, *damaged[0])).body == b""


def test_a_damaged_range_that_fits_into_no_frame_is_repaired_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transaction of more than 64 MiB is one record, and one flipped bit damages all of it."""
    monkeypatch.setattr(shipping, "MAX_PIECE_BYTES", 200)
    log, copy, start, end = log_of(6), empty(), 160, 800
    ship(LogSender(log, 0, NO_SEGMENT), copy)
    assert isinstance(copy.storage, SimulatedStorage)
    for at in range(start, end, 160):
        copy.storage.segment_bytes_of(0)[at + 90] ^= 1
    copy, report = open_copy(copy.storage)
    assert [(span.start, span.end) for span in report.damaged] == [(start, end)]

    pieces, link, data = RepairPieces(), FakeLink(), b""
    repair = Frame(FrameKind.REPAIR, 1, start, end)
    link.send(repair)
    while not data:
        answer = piece(log, link.sent[-1])
        assert len(answer.body) <= 200
        data = pieces.add(link, answer)
        assert pieces.are_coming is not bool(data)
        if not data:
            assert pieces.add(link, piece(log, repair)) == b"", "an answer that came twice"
    assert len(link.sent) == 4
    copy.repair(start, data)
    assert open_copy(copy.storage)[1].damaged == []

    # What the other replica has not good ends it, also in the middle.
    assert pieces.add(link, piece(log, repair)) == b""
    log.damaged = [(480, 640)]
    assert pieces.add(link, piece(log, link.sent[-1])) == b""
    assert not pieces.are_coming

    # What no replica has good comes in pieces, too.
    log.damaged = [(160, 640)]
    other = empty()
    monkeypatch.setattr(shipping, "MAX_PIECE_BYTES", 240)
    kinds = ship(LogSender(log, 0, NO_SEGMENT), other)
    assert kinds.count(FrameKind.DAMAGED) == 2
    assert other.damaged == [(160, 400), (400, 640)]
    assert other.position == log.position


def test_a_log_without_what_is_confirmed_is_not_followed() -> None:
    log, copy = log_of(5), empty()
    ship(LogSender(log, 0, NO_SEGMENT), copy)
    theirs = greeting("id", "b", log_of(3), [EpochRange(1, 0, 480)], is_whole=True)
    with pytest.raises(LogsDiverged, match="b has this log only up to position 480, and 800 was"):
        join(copy, theirs, 2, 800, list)
    assert copy.position == 800
    join(copy, theirs, 2, 480, list)
    assert copy.position == 480


def test_the_end_of_the_log_is_noted_before_segments_are_removed() -> None:
    """A replica whose disk failed in between took itself for whole, and ended before what it had
    acknowledged.
    """
    log, copy = flushed(log_of(20)), empty()
    ship(LogSender(log, 0, NO_SEGMENT), copy, 1900)
    last = log.segments[1]
    assert copy.segments[-1].base == last.base
    log.retire(last)
    log.remove(last)
    theirs = greeting("id", "a", log, [EpochRange(1, 0, log.position)], is_whole=True)
    noted: list[int] = []

    def note(ranges: Sequence[EpochRange]) -> None:
        noted.append(ranges[-1].end)
        raise OSError("the disk failed")

    bases = [segment.base for segment in copy.segments]
    with pytest.raises(OSError, match="the disk failed"):
        join(copy, theirs, 1, 0, note)
    assert [segment.base for segment in copy.segments] == bases
    assert noted == [copy.position] > [last.base]
    join(copy, theirs, 1, 0, list)
    assert [segment.base for segment in copy.segments] == bases[:-1]
