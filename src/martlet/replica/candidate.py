"""A candidate: the replica that the document names, before it begins its epoch.

::

    COLLECTING   enough HELLOs of replicas in sync, or those of all replicas
        |        its own log is the greatest --------------------------.
        |        another one has the greatest: cut, FETCH              v
    FETCHING     the log has all of it ------------------------------> REPAIRING
    REPAIRING    ask the others for what is damaged; none has more ----->  DONE

Where the replica that sends is gone, it is COLLECTING again.

Each replica that answers has pledged to take nothing of older epochs. What is confirmed is in one
of the answers at least, and so it is in the greatest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from martlet.log.copy import CopiedLog
from martlet.log.epochs import EpochRange
from martlet.replica.frames import Frame, FrameKind, FrameRefused, ReplicaGreeting
from martlet.replica.replica_set import ReplicaSet
from martlet.replica.shipping import (
    BRINGS,
    Link,
    RepairPieces,
    greeting,
    join,
    learn_epochs,
    take,
)


class CandidateState(Enum):
    """Where an election stands."""

    COLLECTING = "collecting"
    FETCHING = "fetching"
    REPAIRING = "repairing"
    DONE = "done"


@dataclass
class Candidate:
    """A candidate."""

    name: str
    broker: str
    replica_set: ReplicaSet
    """The document that names this replica."""
    version: int
    copy: CopiedLog
    reopen: Callable[[], CopiedLog]
    """Closes the log and opens it anew."""
    joined: Callable[[Sequence[EpochRange]], None]
    """Makes the epochs of the log durable."""
    is_whole: bool
    """Whether this replica may be counted."""
    floor: int
    """Up to here the log is confirmed, as far as this replica knows."""
    since_ns: int
    state: CandidateState = CandidateState.COLLECTING
    answers: dict[str, tuple[Link, ReplicaGreeting]] = field(default_factory=dict)
    _best: str = ""
    """The replica whose log counts."""
    _asked_for: set[tuple[int, str]] = field(default_factory=set)
    """(start, replica) of each damaged range that a replica was asked for."""
    _asked_name: str = ""
    """The replica that is asked now."""
    _pieces: RepairPieces = field(default_factory=RepairPieces)

    @property
    def epoch(self) -> int:
        """The epoch that is to begin."""
        return self.replica_set.epoch

    def _own(self) -> ReplicaGreeting:
        ranges = self.copy.epochs.ranges
        return greeting(self.broker, self.name, self.copy, ranges, is_whole=self.is_whole)

    def greeted(self, link: Link, hello: ReplicaGreeting) -> None:
        """Take in an answer. Raises LogsDiverged, CopyRefused and OSError."""
        name = hello.replica
        if name == self.name or name not in self.replica_set.replicas:
            link.close()
            return
        before = self.answers.pop(name, None)
        if before is not None:
            before[0].close()
        self.answers[name] = (link, hello)
        if before is not None and self._relies_on(name):
            self._collect_again()
        self.decide()

    def polled(self, replica_set: ReplicaSet, version: int) -> None:
        """Take in the document of this epoch, as just read. Raises as `greeted`."""
        if version <= self.version:
            return
        self.replica_set, self.version = replica_set, version
        for name, (link, hello) in list(self.answers.items()):
            if name not in replica_set.replicas or replica_set.instance_of(name) != hello.instance:
                link.close()
                self.disconnected(link)
        self.decide()

    def _relies_on(self, name: str) -> bool:
        """Whether the choice of the log, or its repair, needs a replica's answer.

        During a repair all are needed: a damaged range may be confirmed, and good at one of those
        that were counted.
        """
        if self.state is CandidateState.FETCHING:
            return name == self._best
        return self.state is CandidateState.REPAIRING

    def _collect_again(self) -> None:
        self.state = CandidateState.COLLECTING
        self._asked_for.clear()
        self._pieces.forget()

    def decide(self) -> None:
        """Choose the log that counts, where enough answers are there. Raises as `greeted`."""
        if self.state is not CandidateState.COLLECTING:
            return
        greetings = {name: hello for name, (_, hello) in self.answers.items()}
        greetings[self.name] = self._own()
        counted = {
            name: hello
            for name, hello in greetings.items()
            if name in self.replica_set.in_sync and hello.is_whole
        }
        if len(counted) < self.replica_set.quorum.answers_needed:
            if len(greetings) < len(self.replica_set.replicas):
                return
            counted = greetings  # No replica is left that could know more.
        # Of equal logs, its own needs no sending.
        self._best = max(counted, key=lambda name: (counted[name].rank, name == self.name))
        if self._best == self.name:
            self._ask_for_repairs()
            return
        link, hello = self.answers[self._best]
        fetch = join(self.copy, hello, self.epoch, self.floor, self.joined)
        self.state = CandidateState.FETCHING
        link.send(fetch)
        self._end_fetching()

    def received(self, link: Link, frame: Frame) -> None:
        """Handle a frame of a replica that answered. Raises FrameRefused, CopyRefused and OSError:
        the connection is to be closed.
        """
        if frame.kind in BRINGS and self.state in (
            CandidateState.COLLECTING,
            CandidateState.REPAIRING,
        ):
            return  # That replica still sends its log, and this one has enough of it.
        name = self._asked_name if self.state is CandidateState.REPAIRING else self._best
        answer = self.answers.get(name)
        if answer is None or answer[0] is not link:
            raise FrameRefused(f"{frame.kind.name} of a replica that was not asked")
        if self.state is CandidateState.FETCHING and frame.kind in BRINGS:
            take(self.copy, frame)
            self._end_fetching()
        elif self.state is CandidateState.REPAIRING and frame.kind == FrameKind.PIECE:
            if data := self._pieces.add(link, frame):
                self.copy.repair(frame.position + len(frame.body) - len(data), data)
                self.copy = self.reopen()
                # Damage at the end is no part of the log any more: some is to be fetched again.
                self.state = CandidateState.COLLECTING
                self.decide()
            elif not self._pieces.are_coming:
                self._ask_for_repairs()
        elif self.state is CandidateState.DONE or frame.kind not in BRINGS:
            raise FrameRefused(f"{frame.kind.name} to a candidate")

    def _end_fetching(self) -> None:
        _, hello = self.answers[self._best]
        if self.copy.end_position >= hello.rank[1]:
            learn_epochs(self.copy, hello.epochs)
            self.joined(self.copy.epochs.ranges)
            self._ask_for_repairs()

    def _ask_for_repairs(self) -> None:
        """Ask the next replica for a damaged range; the election is over when none is left."""
        self.state = CandidateState.REPAIRING
        for start, end in self.copy.damaged:
            for name, (link, hello) in self.answers.items():
                has_it = any(
                    base <= start < base + capacity for base, capacity in hello.segments
                ) and not any(first < end and start < stop for first, stop in hello.damaged)
                if has_it and (start, name) not in self._asked_for:
                    self._asked_for.add((start, name))
                    self._asked_name = name
                    link.send(Frame(FrameKind.REPAIR, self.epoch, start, end))
                    return
        self.state = CandidateState.DONE

    def disconnected(self, link: Link) -> None:
        """A connection ended. Raises as `greeted`."""
        for name, (of_replica, _) in list(self.answers.items()):
            if of_replica is link:
                del self.answers[name]
                if self._relies_on(name):
                    self._collect_again()
                    self.decide()
