"""A replica and its process: what it asks for, and what it believes."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from tests.property.log.feed import flushed
from tests.unit.replica.test_primary import FakeLink

from martlet.broker.recovery.restore import BrokerRecovery, promote
from martlet.broker.recovery.standby import StandbyCheckpoint
from martlet.log.commit_log import CommitLog
from martlet.log.copy import CopiedLog, open_copy
from martlet.log.epochs import EpochRange
from martlet.log.storage import Segment, StorageFull
from martlet.replica.candidate import Candidate
from martlet.replica.frames import Frame, FrameKind, ReplicaGreeting
from martlet.replica.note import Life, ReplicaFailed, ReplicaNote
from martlet.replica.primary import Primary, ReplicaSettings
from martlet.replica.replica import Replica
from martlet.replica.replica_set import Presence, ReplicaSet, Seen
from martlet.replica.shipping import NO_SEGMENT, LogSender, greeting
from martlet.replica.standby import Standby, StandbyState
from martlet.testing import SimulatedClock, SimulatedStorage

SEGMENT_BYTES = 4096
SECOND_NS = 10**9
FIRST = ReplicaSet.first("a", dict.fromkeys("abc", "10.0.0.1:4153"), broker="id")
ALL = FIRST.elected("a").with_in_sync(frozenset("abc"))

PROCESSES = count()


class FakeHost:
    """A process that remembers what it was asked for."""

    def __init__(
        self, name: str, storage: SimulatedStorage | None = None, *, is_copied: bool = False
    ) -> None:
        self.is_copied = is_copied
        self.storage = storage or SimulatedStorage(Random(1))
        self.connects: list[tuple[int, str]] = []
        self.swaps: list[tuple[ReplicaSet, int]] = []
        self.confirmed_position = self.lacks_count = 0
        self.folders_of: list[str] = []
        self.now_ns = 0
        self.instance = f"process-{next(PROCESSES)}"
        self.address = "10.0.0.1:4153"
        chance = Random(self.instance)
        self.replica = Replica(name, "id", self.storage, self, chance, ReplicaSettings(), 0)

    def connect(self, attempt: int, name: str, address: str) -> None:
        self.connects.append((attempt, name))

    def poll(self) -> None: ...

    def swap(self, replica_set: ReplicaSet, version: int) -> None:
        self.swaps.append((replica_set, version))

    def confirmed(self, position: int) -> None:
        self.confirmed_position = position

    def open_copy(self, epochs: Sequence[EpochRange]) -> CopiedLog:
        return open_copy(self.storage, epochs=epochs)[0]

    def folder_is_of(self, replica: str) -> None:
        self.folders_of.append(replica)

    def lacks_acknowledged(self) -> None:
        self.lacks_count += 1

    def recover(self, copy: CopiedLog) -> BrokerRecovery:
        return BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)

    def promote(
        self, copy: CopiedLog, recovery: BrokerRecovery, epoch: int, confirmed: int
    ) -> CommitLog:
        broker, _ = promote(
            copy, recovery, epoch, SimulatedClock(), Random(1), segment_bytes=SEGMENT_BYTES
        )
        broker.await_confirmation(confirmed)
        return broker.log

    def sees(self, document: ReplicaSet, version: int = 1, **presences: Presence) -> None:
        """See a document, in which this process has claimed its name."""
        if self.replica.name in document.replicas and document.broker == "id":
            document = self.claims(document)
        self.polls(document, version, **presences)

    def claims(self, document: ReplicaSet) -> ReplicaSet:
        """Return the document in which this process is the replica, as of the epoch, too."""
        name, note = self.replica.name, self.replica.note
        number = max(document.last_life + 1, note.life.number)
        life = Life(number, self.instance, note.life.incarnation)
        document = document.claimed(name, life, document.replicas[name])
        return replace(document, primary_instance="")

    def polls(self, document: ReplicaSet, version: int = 1, **presences: Presence) -> None:
        self.replica.polled(Seen(document, version, presences), self.now_ns)

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)
        self.replica.tick(self.now_ns)

    def elects(self) -> ReplicaSet:
        """Let it propose a primary. Returns the document that it proposes."""
        self.wait(0)
        self.wait(0.2)
        ((swapped, _),) = self.swaps
        self.swaps.clear()
        return swapped

    def wins(self, swapped: ReplicaSet, version: int) -> None:
        """Let its proposal be the document."""
        self.replica.swapped(swapped, version, self.now_ns)
        self.polls(swapped, version)

    def joins(self, document: ReplicaSet) -> FakeLink:
        """See a document, and connect to its primary."""
        self.sees(document)
        self.wait(0)
        link = FakeLink()
        self.replica.connected(self.connects[0][0], link, 0)
        return link

    def welcomed(self, link: FakeLink, *, is_whole: bool = True) -> tuple[CommitLog, list[Frame]]:
        """Be welcomed by a primary. Returns its log, and what it sends of that."""
        first = primary().leading
        body = greeting("id", "a", first.log, first.epochs, is_whole=True).pack()
        end, sent = first.log.position, FakeLink()
        welcome = Frame(FrameKind.WELCOME, 1, end, 0, body, is_whole=is_whole)
        self.replica.received(link, welcome, 0)
        LogSender(first.log, 0, NO_SEGMENT).pump(sent, 1, 0, 1 << 20)
        return first.log, sent.sent

    def greeted(self, name: str, epoch: int = 1, **fields: Any) -> FakeLink:
        """A replica of some name connects to it."""
        link = FakeLink()
        hello = ReplicaGreeting("id", name, [], [])
        body = replace(hello, **fields).pack()
        self.replica.received(link, Frame(FrameKind.HELLO, epoch, body=body), self.now_ns)
        return link

    @property
    def leading(self) -> Primary:
        assert isinstance(self.replica.role, Primary)
        return self.replica.role

    @property
    def noted(self) -> tuple[int, bool, str]:
        """What the replica has pledged to, whether it counts, and its name."""
        return self.replica.note.pledged, self.replica.note.is_whole, self.replica.note.replica

    @property
    def standby(self) -> Standby:
        assert isinstance(self.replica.role, Standby)
        return self.replica.role


def primary() -> FakeHost:
    """The first replica of a set, as primary of epoch 1."""
    host = FakeHost("a")
    host.sees(FIRST)
    swapped = host.elects()
    host.replica.swapped(swapped, 2, host.now_ns)
    host.sees(swapped, 2)
    assert isinstance(host.replica.role, Primary)
    return host


def test_the_first_replica_elects_itself() -> None:
    host = primary()
    assert host.noted == (1, True, "a")
    assert ReplicaNote.load(host.storage).pledged == 1


def test_a_new_process_never_resumes_an_epoch() -> None:
    host = primary()
    again = FakeHost("a", host.storage.crash())
    again.sees(FIRST.elected("a"), 2)
    assert isinstance(again.replica.role, Standby)
    assert again.elects().epoch == 2


def test_nor_does_one_whose_disk_was_replaced() -> None:
    again = FakeHost("a")
    again.sees(ALL, 2)
    assert isinstance(again.replica.role, Standby)
    assert again.noted == (1, False, "a")


def test_one_that_has_the_folder_of_another_does_not_count_until_it_has_the_log() -> None:
    """It may have acknowledged what was written after the copy was made."""
    host = primary()
    again = FakeHost("b", host.storage.crash())
    assert again.folders_of == ["a"]
    assert again.noted == (host.replica.note.pledged, False, "b")
    assert again.replica.note.epochs == host.replica.note.epochs
    assert again.replica.note.life.incarnation != host.replica.note.life.incarnation
    assert FakeHost("b", again.storage.crash()).folders_of == []


def test_one_whose_disk_was_replaced_does_not_believe_an_old_document() -> None:
    again = FakeHost("a")
    again.sees(FIRST)
    again.replica.swapped(again.elects(), None, again.now_ns)
    again.sees(ALL, 2)
    assert isinstance(again.replica.role, Standby)
    assert again.noted == (1, False, "a")


def test_one_whose_disk_was_replaced_does_not_resume_an_epoch_after_an_old_document() -> None:
    again = FakeHost("a")
    again.sees(ALL.elected("b"), 3)
    assert again.noted == (2, False, "a")
    again.sees(ALL.elected("b").elected("a"), 4)
    assert isinstance(again.replica.role, Standby)


def test_an_operator_forces_a_replica_that_lacks_something() -> None:
    host = FakeHost("b")
    host.sees(ALL)
    assert not host.replica.note.is_whole
    host.sees(ALL.forced("b"), 2)
    assert isinstance(host.replica.role, Primary)
    assert host.noted == (2, True, "b")


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (None, "create one"),
        (ReplicaSet.first("b", {"b": "10.0.0.1:4153"}, broker="id"), "replicas add a"),
        (replace(FIRST, broker="other"), "give this replica an empty --data-path"),
    ],
)
def test_a_replica_that_is_no_member_says_why(document: ReplicaSet | None, problem: str) -> None:
    host = FakeHost("a")
    host.replica.polled(Seen(document, 1, {}), 0)
    assert problem in host.replica.problem
    host.wait(0)
    host.wait(0.2)
    assert not host.swaps


def test_a_store_that_lost_the_replica_set_is_a_problem() -> None:
    host = primary()
    host.replica.polled(Seen(None, 0, {}), host.now_ns)
    assert "martlet replicas recreate" in host.replica.problem
    assert isinstance(host.replica.role, Primary)


def test_a_replica_without_a_note_may_have_had_another_disk() -> None:
    host = FakeHost("b")
    link = host.joins(ALL)
    assert not host.replica.note.is_whole
    assert not host.replica.presence(0).is_whole
    assert not ReplicaGreeting.unpack(link.sent[0].body).is_whole


def test_a_refused_connection_to_an_older_primary_says_nothing_of_the_new_one() -> None:
    host = FakeHost("c")
    host.sees(ALL)
    host.wait(0)
    ((old, _),) = host.connects
    host.sees(ALL.elected("b"), 2)
    host.wait(0)
    new, name = host.connects[-1]
    assert (name, new > old) == ("b", True)
    host.replica.connect_failed(old, is_refused=True, now_ns=0)
    assert host.standby.state is StandbyState.CONNECTING
    stale, good = FakeLink(), FakeLink()
    host.replica.connected(old, stale, 0)
    assert stale.is_closed
    host.replica.connected(new, good, 0)
    assert not good.is_closed
    assert good.kinds == [FrameKind.HELLO]
    host.wait(1)
    assert host.swaps == []


def test_a_dead_primary_is_replaced_at_once_and_a_silent_one_when_it_is_gone() -> None:
    host = FakeHost("b")
    host.sees(ALL, a=Presence())
    host.wait(0)
    host.replica.connect_failed(host.connects[0][0], is_refused=False, now_ns=host.now_ns)
    host.wait(3)
    host.wait(0.2)
    assert host.swaps == [], "it is alive"
    host.replica.connect_failed(host.connects[-1][0], is_refused=True, now_ns=host.now_ns)
    swapped = host.elects()
    assert (swapped.primary, swapped.epoch) == ("b", 2)


def test_frames_of_strangers_depose_nobody() -> None:
    host = primary()
    assert host.greeted("b", 99, broker="another broker").is_closed
    for kind in set(FrameKind) - {FrameKind.HELLO}:
        stranger = FakeLink()
        host.replica.received(stranger, Frame(kind, 99), 0)
        assert stranger.is_closed
    assert isinstance(host.replica.role, Primary)
    deep = Frame(FrameKind.HELLO, 99, body=b"[" * 100_000)
    host.replica.received(FakeLink(), deep, 0)
    assert isinstance(host.replica.role, Primary)


def test_a_primary_steps_down_for_a_replica_of_a_later_epoch() -> None:
    host = primary()
    host.greeted("b", 2)
    assert isinstance(host.replica.role, Standby)


def test_a_fetch_below_its_segment_is_refused() -> None:
    host = primary()
    link = host.greeted("b")
    assert link.kinds == [FrameKind.WELCOME]
    last = host.leading.log.segments[-1].base
    host.replica.received(link, Frame(FrameKind.FETCH, 1, 0, last + 8), 0)
    assert link.is_closed
    host.replica.end_turn(0)


def test_a_standby_with_an_older_folder_does_not_count_until_it_has_all_again() -> None:
    """It was whole when the backup was made, and would have elected a primary without the rest."""
    storage = SimulatedStorage(Random(1))
    ReplicaNote().save(storage)
    host = FakeHost("b", storage)
    link = host.joins(ALL)
    assert host.replica.note.is_whole
    log, frames = host.welcomed(link, is_whole=False)
    assert link.kinds[-1] == FrameKind.FETCH
    assert not ReplicaNote.load(storage).is_whole
    assert not host.replica.presence(0).is_whole
    assert host.lacks_count == 1
    for frame in frames:
        host.replica.received(link, frame, 0)
    host.replica.end_turn(0)
    assert (link.sent[-1].position, link.sent[-1].is_whole) == (log.position, True)
    assert ReplicaNote.load(storage).is_whole


def test_a_candidate_writes_down_what_it_cut_before_it_fetches() -> None:
    """Else a later start would believe that the cut epoch is still there."""
    host = primary()
    storage = host.storage.crash()
    note = replace(ReplicaNote.load(storage), pledged=4, epochs=((1, 0, 1 << 20),))
    note.save(storage)
    again = FakeHost("a", storage)
    again.replica._won_epoch = 5
    again.sees(replace(ALL, epoch=5, primary="a"), 9)
    assert isinstance(again.replica.role, Candidate)
    copy = again.replica.role.copy
    (mine,) = copy.epochs.ranges
    header, _ = next(copy.records(mine.start, mine.end))
    end = header.next_position
    assert mine.start < end < mine.end
    theirs = [EpochRange(1, mine.start, end), EpochRange(4, 8192, 9000)]
    segments = [(base, SEGMENT_BYTES) for base in (0, 4096, 8192)]
    link = again.greeted("b", 5, epochs=theirs, segments=segments)
    again.greeted("c", 5)
    assert link.kinds == [FrameKind.FETCH]
    assert ReplicaNote.load(storage).epochs == ((1, mine.start, end),)


def test_a_replica_whose_disk_fails_ends() -> None:
    host = FakeHost("b")
    host.standby.copy.flush_failed(OSError("Input/output error"))
    with pytest.raises(ReplicaFailed, match="flushing the log failed"):
        host.wait(1)


def test_a_standby_whose_disk_is_full_connects_again_once_it_has_space() -> None:
    host = FakeHost("b", primary().storage.crash())
    copy = host.standby.copy
    link = host.joins(ALL)
    copy.flush_failed(OSError(errno.ENOSPC, "no space"))
    for _ in range(3):
        host.wait(1)
    assert link.is_closed
    assert len(host.connects) == 1
    assert "make room on the disk" in host.replica.problem
    flushed(copy)
    host.wait(1)
    assert len(host.connects) == 2


def test_the_full_disk_of_a_standby_is_named_without_the_number_of_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def create(base: int, capacity: int) -> Segment:
        raise StorageFull(errno.ENOSPC, "no room for a segment")

    host = FakeHost("b")
    link = host.joins(ALL)
    _, frames = host.welcomed(link)
    monkeypatch.setattr(host.storage, "create", create)
    host.replica.received(link, frames[0], 0)
    assert host.replica.problem == "no room for a segment"


def test_a_standby_writes_down_the_end_of_an_epoch_before_its_segments_go() -> None:
    """Else it knew, after a restart, a lower end than other replicas do, and none could join it."""
    host = FakeHost("b", primary().storage.crash())
    standby = host.standby
    standby.recovery = host.recover(standby.copy)
    (first,) = standby.copy.epochs.ranges
    standby.copy.epochs.add(2, 8192, 9000)
    checkpoint = StandbyCheckpoint(8192, 9000, {}, b"")
    host.replica.checkpoint_saved(checkpoint)
    noted = ((1, first.start, first.end), (2, 8192, 9000))
    assert ReplicaNote.load(host.storage).epochs == noted
    standby.copy.epochs.add(2, 9000, 9100)
    host.replica.checkpoint_saved(checkpoint)
    assert ReplicaNote.load(host.storage).epochs == noted, "written once for each epoch"
