"""A candidate: which log counts, and what it repairs before its epoch begins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.replica.test_primary import FakeLink
from tests.unit.replica.test_replica import ALL, SEGMENT_BYTES, primary

from martlet.log.copy import open_copy
from martlet.log.epochs import EpochRange
from martlet.replica.candidate import Candidate, CandidateState
from martlet.replica.frames import Frame, FrameKind, ReplicaGreeting


class Election:
    """An election of epoch 5, in which `a` has a damaged range that others may have good."""

    def __init__(self) -> None:
        copy, _ = open_copy(primary().storage.crash())
        (self.mine,) = copy.epochs.ranges
        copy.damaged.append((self.mine.start, self.mine.start + 64))
        self.links = {name: FakeLink() for name in "bc"}
        self.candidate = Candidate(
            "a", "id", replace(ALL, epoch=5, primary="a"), 9, copy, lambda: copy,
            lambda ranges: None, False, 0, 0,
        )  # fmt: skip

    def state(self) -> CandidateState:
        return self.candidate.state

    def greeted(self, name: str) -> None:
        ranges = [EpochRange(1, self.mine.start, self.mine.end)]
        segments = [(segment.base, SEGMENT_BYTES) for segment in self.candidate.copy.segments]
        link = self.links[name] = FakeLink()
        self.candidate.greeted(link, ReplicaGreeting("id", name, ranges, segments))

    def has_none(self, name: str) -> None:
        """A replica answers that it does not have the range good."""
        start, end = self.candidate.copy.damaged[0]
        self.candidate.received(self.links[name], Frame(FrameKind.PIECE, 5, start, end))


@pytest.fixture
def election() -> Election:
    made = Election()
    made.greeted("b")
    made.greeted("c")
    assert made.state() is CandidateState.REPAIRING
    return made


def test_an_epoch_begins_with_damage_that_all_answers_have(election: Election) -> None:
    election.has_none("b")
    assert election.links["c"].kinds[-1] == FrameKind.REPAIR
    election.has_none("c")
    assert election.state() is CandidateState.DONE


@pytest.mark.parametrize("gone", ["b", "c"])
def test_a_repair_waits_for_a_replica_that_may_have_the_range_good(
    election: Election, gone: str
) -> None:
    """Whether it was asked last or not: else the epoch began without confirmed messages."""
    other = "c" if gone == "b" else "b"
    election.candidate.disconnected(election.links[gone])
    assert election.state() is CandidateState.COLLECTING
    election.greeted(gone)
    assert election.state() is CandidateState.REPAIRING
    assert FrameKind.REPAIR in [*election.links[gone].kinds, *election.links[other].kinds]
    election.has_none(other)
    assert election.state() is CandidateState.REPAIRING


def test_a_replica_that_still_sends_its_log_is_not_refused(election: Election) -> None:
    """It was, greeted again and again, and its answer was missing when it was needed."""
    end = election.mine.end
    for link in election.links.values():
        election.candidate.received(link, Frame(FrameKind.DATA, 5, end, 0, b"more"))
        assert not link.is_closed
    assert election.candidate.copy.end_position == end
