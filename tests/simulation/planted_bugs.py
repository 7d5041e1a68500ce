"""Mistakes that a protocol like this one invites, each planted by a patch of the real code.

The simulation must find each of them. Most were made in real systems: see the comments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.property.log import test_log_copy
from tests.simulation import node as node_module
from tests.simulation.cluster import Faults
from tests.simulation.node import Node
from tests.unit.log import test_copy
from tests.unit.replica import test_confirmation, test_primary, test_replaced

from martlet.broker.broker import BrokerCore
from martlet.broker.recovery.restore import BrokerRecovery, promote
from martlet.broker.retention.checkpoint import begin_checkpoint, end_checkpoint
from martlet.log import copy as copy_module
from martlet.log import cut
from martlet.log.commit_log import CommitLog
from martlet.log.copy import CopiedLog
from martlet.log.storage import Segment, Storage
from martlet.replica import replica as replica_module
from martlet.replica.candidate import Candidate, CandidateState
from martlet.replica.confirmation import Confirmation
from martlet.replica.note import Entitlement, Life, ReplicaNote
from martlet.replica.primary import Primary, SwapState
from martlet.replica.replica import Replica
from martlet.replica.replica_set import Quorum, ReplicaSet
from martlet.replica.shipping import LogSender
from martlet.replica.standby import Standby
from martlet.testing import SimulatedStorage


@dataclass(frozen=True)
class PlantedBug:
    """A mistake.

    Attributes:
        plant: makes it.
        faults: those that show it soonest.
        options: of the cluster.
        test: the test that finds it, where that is not the simulation.
        seed: one that found it, and so is run first.
    """

    plant: Callable[[pytest.MonkeyPatch], None]
    faults: Faults = field(default_factory=Faults)
    options: dict[str, Any] = field(default_factory=dict)
    test: Callable[[], None] | None = None
    seed: int = 0


KILLS = Faults(kill=10, power=0, power_all=0, interval_ms=400, lost_answers=0.1)
POWER = Faults(kill=3, power=10, power_all=3, interval_ms=400)
NETWORK = Faults(kill=3, power=0, one_way=5, isolate=8, reset=8, interval_ms=400)
TWINS = Faults(replace=8, copy=8, power=0, pause=5, isolate=5, reset=8, interval_ms=300)
STALE = Faults(kill=20, power=0, isolate=8, stale_looks=0.4, interval_ms=250)


def pledge_in_memory(patch: pytest.MonkeyPatch) -> None:
    save = ReplicaNote.save

    def forgets(self: ReplicaNote, storage: Storage) -> None:
        save(replace(self, pledged=ReplicaNote.load(storage).pledged), storage)

    patch.setattr(ReplicaNote, "save", forgets)
    epoch_begun_by_another_process(patch)  # Else a process begins no epoch that one before won.


def confirmed_before_the_epochs_record(patch: pytest.MonkeyPatch) -> None:
    """Raft's figure 8."""
    init = Confirmation.__init__

    def begins_at_0(self: Confirmation, quorum: Quorum, min_in_sync: int, begun: int) -> None:
        init(self, quorum, min_in_sync, 0)

    patch.setattr(Confirmation, "__init__", begins_at_0)


def smaller_set_used_before_the_swap(patch: pytest.MonkeyPatch) -> None:
    begin = Confirmation.begin_change

    def at_once(self: Confirmation, quorum: Quorum) -> None:
        begin(self, quorum)
        if quorum.in_sync < self.quorums[0].in_sync:
            self.quorums = [quorum]

    patch.setattr(Confirmation, "begin_change", at_once)


def larger_set_counted_only_after_the_swap(patch: pytest.MonkeyPatch) -> None:
    """RocketMQ #5663."""
    begin = Confirmation.begin_change

    def later(self: Confirmation, quorum: Quorum) -> None:
        begin(self, quorum)
        if quorum.in_sync > self.quorums[0].in_sync:
            self.quorums = self.quorums[:1]

    patch.setattr(Confirmation, "begin_change", later)


def unclear_swap_taken_for_failed(patch: pytest.MonkeyPatch) -> None:
    def failed(self: Primary, swapping: ReplicaSet) -> None:
        if swapping is self._swapping:
            self.swap_state = SwapState.SETTLED
            self.confirmation.end_change(self.confirmation.quorums[0])

    patch.setattr(Primary, "swap_unclear", failed)


def set_changed_before_the_epochs_record(patch: pytest.MonkeyPatch) -> None:
    """Raft's membership change had this until 2015."""

    def allows(self: Confirmation, quorum: Quorum) -> bool:
        return len(self.quorums) == 1 and self.reached_by(quorum) >= self.position

    patch.setattr(Confirmation, "allows", allows)


def one_answer_too_few(patch: pytest.MonkeyPatch) -> None:
    needed = property(lambda self: max(1, len(self.in_sync) - self.copies))
    patch.setattr(Quorum, "answers_needed", needed)


def own_log_instead_of_the_greatest(patch: pytest.MonkeyPatch) -> None:
    decide = Candidate.decide

    def own(self: Candidate) -> None:
        answers = self.answers
        decide(self)
        if self._best not in ("", self.name):
            self.answers = {}
            self._best = self.name
            self._ask_for_repairs()
            self.answers = answers

    patch.setattr(Candidate, "decide", own)


def epoch_resumed(patch: pytest.MonkeyPatch) -> None:
    polled = Replica.polled

    def resumes(self: Replica, seen: Any, now_ns: int) -> None:
        found = seen.replica_set
        is_own = found.primary == self.name and found.epoch == self.note.pledged
        if is_own and isinstance(self.role, Standby):
            self.note = replace(self.note, pledged=found.epoch - 1)
        polled(self, seen, now_ns)

    patch.setattr(Replica, "polled", resumes)
    epoch_begun_by_another_process(patch)  # A second fence.


def forgetful_replica_counted(patch: pytest.MonkeyPatch) -> None:
    """KIP-966."""
    init = Replica.__init__

    def forgets(self: Replica, *args: Any, **options: Any) -> None:
        init(self, *args, **options | {"may_be_incomplete": False})

    patch.setattr(Replica, "__init__", forgets)


def counted_again_too_soon(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Standby, "_is_complete", property(lambda self: True))


def damaged_replica_elected(patch: pytest.MonkeyPatch) -> None:
    def done(self: Candidate) -> None:
        self.state = CandidateState.DONE

    opened = Replica._open_copy

    def hides(self: Replica) -> CopiedLog:
        is_whole = self.note.is_whole
        copy = opened(self)
        self._note(replace(self.note, is_whole=is_whole))
        return copy

    patch.setattr(Replica, "_open_copy", hides)
    patch.setattr(Candidate, "_ask_for_repairs", done)


def cut_without_zeros(patch: pytest.MonkeyPatch) -> None:
    """RocketMQ #10666."""
    patch.setattr(cut, "_clear", lambda segment, start, end: None)
    patch.setattr(CopiedLog, "restart", CopiedLog._begin_at_position)


def cut_segment_kept_as_spare(patch: pytest.MonkeyPatch) -> None:
    """It would be used again in the same place. Its records have lower epochs: a second fence."""
    patch.setattr(SimulatedStorage, "discard", SimulatedStorage.retire)


def checkpoint_beyond_confirmation(patch: pytest.MonkeyPatch) -> None:
    def at_once(self: Node, broker: BrokerCore) -> None:
        job = begin_checkpoint(broker)
        job.flush.run()
        broker.log.flushed(job.flush)
        job.save()
        end_checkpoint(broker, job)

    patch.setattr(Node, "checkpoint", at_once)


def segments_removed_at_once(patch: pytest.MonkeyPatch) -> None:
    retire = CommitLog.retire

    def removes(self: CommitLog, segment: Segment) -> None:
        retire(self, segment)
        if self.condemned is not None:
            self._kept.remove(segment)
            self.storage.retire(segment)

    patch.setattr(CommitLog, "retire", removes)
    patch.setattr(CommitLog, "remove", lambda self, segment: None)


def acknowledged_before_the_checksum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(copy_module, "check_checksum", lambda header, found: None)


def acknowledgements_outlive_connections(patch: pytest.MonkeyPatch) -> None:
    def keeps(self: Confirmation, name: str, position: int) -> None:
        self._acknowledged[name] = max(position, self._acknowledged.get(name, 0))

    patch.setattr(Confirmation, "forget", lambda self, name: None)
    patch.setattr(Confirmation, "acknowledge", keeps)


def end_of_segment_acknowledged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CopiedLog, "end_position", property(lambda self: self.received_position))


def seen_before_it_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    def stored(self: BrokerCore, topic: Any, first: int, deferred: bool) -> None:
        topic.stored(first, topic.queue.end_offset, deferred)

    patch.setattr(BrokerCore, "stored", stored)


def shown_by_a_standby_before_it_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BrokerRecovery, "is_confirmed", lambda self, position: True)


def offsets_from_the_confirmed_end(patch: pytest.MonkeyPatch) -> None:
    """RocketMQ #7689."""

    def ignores_the_rest(copy: Any, recovery: Any, *args: Any, **options: Any) -> Any:
        recovery.follow = lambda position: None
        return promote(copy, recovery, *args, **options)

    patch.setattr(node_module, "promote", ignores_the_rest)


def full_connections_filled_further(patch: pytest.MonkeyPatch) -> None:
    """What waits would fill the primary's memory, where the log has it anyway."""
    pump = LogSender.pump

    def pumps(self: LogSender, link: Any, *args: int) -> None:
        pump(self, SimpleNamespace(is_full=False, send=link.send), *args)

    patch.setattr(LogSender, "pump", pumps)


def room_in_a_connection_ignored(patch: pytest.MonkeyPatch) -> None:
    """The log would go on with the next tick only."""
    patch.setattr(Node, "drained", lambda self: None)


def name_taken_back(patch: pytest.MonkeyPatch) -> None:
    """A process that was replaced writes itself into the document again."""

    def takes(
        named: Life | None, own: Life, runs: Sequence[str], instance: str, *, has_pledged: bool
    ) -> Entitlement:
        is_own = named is not None and named.instance == instance
        return Entitlement.NAMED if is_own else Entitlement.SUCCEEDS

    patch.setattr(replica_module, "entitlement", takes)


def copied_folder_counted(patch: pytest.MonkeyPatch) -> None:
    """What its original acknowledged after the copy was made is not in it."""
    unknown = property(lambda self: False, lambda self, value: None)
    patch.setattr(Node, "is_copied", unknown, raising=False)


def any_process_of_the_name_counted(patch: pytest.MonkeyPatch) -> None:
    """Identity was the name alone."""
    greeted = Replica._greeted

    def counts(self: Replica, link: Any, frame: Any, hello: Any, now_ns: int) -> None:
        if not isinstance(self.role, Standby):
            named = self.role.replica_set.instance_of(hello.replica)
            hello = replace(hello, instance=named)
        greeted(self, link, frame, hello, now_ns)

    patch.setattr(Replica, "_greeted", counts)
    patch.setattr(Replica, "_stand_down", lambda self, found, now_ns: None)
    patch.setattr(Replica, "is_member", Replica._is_listed)


def epoch_begun_by_another_process(patch: pytest.MonkeyPatch) -> None:
    """One that has the name of the process that was elected."""
    elected = ReplicaSet.elected

    def unbound(self: ReplicaSet, name: str) -> ReplicaSet:
        return replace(elected(self, name), primary_instance="")

    patch.setattr(ReplicaSet, "elected", unbound)


ASYNC = {"flush_sync": False}
SYNC = {"flush_sync": True}
PLANTED_BUGS = {
    "pledge in memory": PlantedBug(pledge_in_memory, STALE, {"size": 3}),
    "confirmed before the epoch's record": PlantedBug(
        confirmed_before_the_epochs_record, NETWORK, seed=19
    ),
    "smaller set used before the swap": PlantedBug(
        smaller_set_used_before_the_swap,
        test=test_primary.test_both_sets_count_until_the_swaps_outcome_is_known,
    ),
    "larger set counted after the swap": PlantedBug(
        larger_set_counted_only_after_the_swap,
        test=test_primary.test_a_larger_set_counts_from_before_its_swap,
    ),
    "unclear swap taken for failed": PlantedBug(
        unclear_swap_taken_for_failed,
        test=test_primary.test_an_unclear_swap_counts_until_another_settles_it,
    ),
    "set changed before the epoch's record": PlantedBug(
        set_changed_before_the_epochs_record,
        test=test_confirmation.test_a_new_quorum_has_the_epochs_first_record,
    ),
    "one answer too few": PlantedBug(one_answer_too_few, NETWORK, {"size": 3}, seed=4),
    "own log instead of the greatest": PlantedBug(
        own_log_instead_of_the_greatest, NETWORK, seed=10
    ),
    "epoch resumed": PlantedBug(epoch_resumed, KILLS),
    "forgetful replica counted": PlantedBug(forgetful_replica_counted, POWER, ASYNC),
    "counted again too soon": PlantedBug(counted_again_too_soon, POWER, ASYNC),
    "damaged replica elected": PlantedBug(damaged_replica_elected, replace(KILLS, flips=0.9), SYNC),
    "cut without zeros": PlantedBug(
        cut_without_zeros, test=test_log_copy.test_three_replicas_of_a_log_are_the_same
    ),
    "cut segment kept as spare": PlantedBug(
        cut_segment_kept_as_spare, test=test_copy.test_a_segment_that_is_cut_off_is_not_used_again
    ),
    "checkpoint beyond confirmation": PlantedBug(checkpoint_beyond_confirmation, NETWORK, seed=12),
    "segments removed at once": PlantedBug(segments_removed_at_once, NETWORK),
    "acknowledged before the checksum": PlantedBug(
        acknowledged_before_the_checksum, Faults(corrupt=0.05)
    ),
    "acknowledgements outlive connections": PlantedBug(
        acknowledgements_outlive_connections,
        test=test_confirmation.test_a_connection_that_ended_does_not_count,
    ),
    "end of segment acknowledged": PlantedBug(end_of_segment_acknowledged, KILLS),
    "seen before it is confirmed": PlantedBug(seen_before_it_is_confirmed, NETWORK),
    "shown by a standby before it is confirmed": PlantedBug(
        shown_by_a_standby_before_it_is_confirmed, NETWORK
    ),
    "full connections filled further": PlantedBug(full_connections_filled_further),
    "room in a connection ignored": PlantedBug(room_in_a_connection_ignored),
    "name taken back": PlantedBug(name_taken_back, TWINS),
    "copied folder counted": PlantedBug(copied_folder_counted, TWINS),
    "any process of the name counted": PlantedBug(any_process_of_the_name_counted, TWINS),
    "epoch begun by another process": PlantedBug(
        epoch_begun_by_another_process,
        test=test_replaced.test_an_epoch_is_begun_by_the_process_that_was_elected,
    ),
    "offsets from the confirmed end": PlantedBug(offsets_from_the_confirmed_end, NETWORK),
}
