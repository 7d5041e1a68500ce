"""A replica of a broker's log: a standby, a candidate or the primary, as the document says.

::

                    the document names it                 enough answers
       STANDBY  ------------------------->  CANDIDATE  -------------------->  PRIMARY
          ^                                    |                                 |
          '------------------------------------'---------------------------------'
                   the document, or any replica, has a higher epoch

Before a replica greets the primary of an epoch it writes down that it has pledged to it. It never
resumes an epoch: a process that starts as the primary of the document runs for the next one.

The replica does no I/O but on its log. Its process, the host, hands it the time, frames, what it
read from the metadata store and the outcomes of swaps. The replica asks the host for connections,
polls and swaps. Any call may raise ReplicaFailed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Protocol

from martlet.broker.recovery.restore import BrokerRecovery
from martlet.broker.recovery.standby import StandbyCheckpoint
from martlet.log.commit_log import CommitLog, WritesRefused
from martlet.log.copy import CopiedLog, CopyRefused
from martlet.log.epochs import EpochRange
from martlet.log.storage import FULL, Storage
from martlet.replica.candidate import Candidate, CandidateState
from martlet.replica.frames import Frame, FrameKind, FrameRefused, ReplicaGreeting
from martlet.replica.note import Entitlement, Life, ReplicaFailed, ReplicaNote, entitlement
from martlet.replica.primary import Primary, PrimaryHost, ReplicaSettings
from martlet.replica.replica_set import (
    LOST_REPLICA_SET,
    Presence,
    ReplicaSet,
    Seen,
    no_replica_set,
)
from martlet.replica.shipping import Link, LogsDiverged, SegmentRemoved
from martlet.replica.standby import ConnectAgain, Standby, StandbyState

_MAX_RUNS = 16
"""The maximum of processes that are remembered, which the document may name by now."""


class ReplicaHost(PrimaryHost, Protocol):
    """What a replica asks of its process."""

    instance: str
    """A random name of the process."""
    address: str
    """Where other replicas connect."""
    is_copied: bool
    """Its data folder is a copy, made while the replica ran."""

    def connect(self, attempt: int, name: str, address: str) -> None:
        """Begin a connection to a replica; `connected` or `connect_failed` with the same number
        follows.
        """

    def poll(self) -> None:
        """Begin to read the document and the presences; `polled` or `poll_failed` follows."""

    def open_copy(self, epochs: Sequence[EpochRange]) -> CopiedLog:
        """Close the log, and the broker on it, and open it as a copy.

        Args:
            epochs: what is known of the log's epochs.

        Raises:
            CopyRefused, OSError: the disk failed.
        """

    def folder_is_of(self, replica: str) -> None:
        """The log and the note are those of another replica, so that this one may lack records that
        it had acknowledged; it counts once it has all of the primary's log.
        """

    def lacks_acknowledged(self) -> None:
        """This standby lacks records that it had acknowledged; it counts once it has them again."""

    def recover(self, copy: CopiedLog) -> BrokerRecovery:
        """Begin the state of a broker from a copied log."""

    def promote(
        self, copy: CopiedLog, recovery: BrokerRecovery, epoch: int, confirmed: int
    ) -> CommitLog:
        """Begin an epoch: make a broker of the log, which shows nothing before it is confirmed.
        Raises OSError and WritesRefused: it could not begin.
        """


class Replica:
    """One replica.

    Args:
        broker: the id of the broker, the same for all replicas.
        storage: holds its log and its note.
        random: for the wait before a candidacy.
        now_ns: the time, which never goes back.
        may_be_incomplete: it may have acknowledged records that a power cut took.

    Raises:
        BadNote: its note cannot be read.
        ReplicaFailed: its log or its note cannot be read or written.
    """

    def __init__(
        self,
        name: str,
        broker: str,
        storage: Storage,
        host: ReplicaHost,
        random: Random,
        settings: ReplicaSettings,
        now_ns: int,
        *,
        may_be_incomplete: bool = False,
    ) -> None:
        self.name = name
        self.broker = broker
        self.host = host
        self.settings = settings
        self._storage = storage
        self._random = random
        self.note = note = ReplicaNote.load(storage)
        is_of_another = note.replica not in ("", name)
        if is_of_another:
            host.folder_is_of(note.replica)
        lacks_some = may_be_incomplete or is_of_another or host.is_copied
        is_whole = note.is_whole and not lacks_some
        new = replace(note, is_whole=is_whole, replica=name)
        if is_of_another or not note.life.incarnation:
            life = Life(incarnation=f"{random.getrandbits(128):032x}")
            new = replace(new, life=life, runs=())
        elif host.is_copied:
            # It is not the folder of the process that ran last.
            new = replace(new, life=note.life._replace(instance=""), runs=())
        # Before a claim: a start after this one must know that it was of this folder.
        runs = dict.fromkeys((*new.runs, host.instance))
        self._note(replace(new, runs=tuple(runs)[-_MAX_RUNS:]))
        self._replaced = ""
        """That another process is this replica for good; empty while that is not so."""
        self._claim: ReplicaSet | None = None
        """The document that a swap under way writes, in which this process is the replica."""
        self._link_problem = ""
        self._set_problem = ""
        self.seen: Seen | None = None
        """The newest state of the metadata store that was read."""
        self._floor = 0
        self.role: Standby | Candidate | Primary = self._standby(self._open_copy(), now_ns)
        self._poll_at_ns = now_ns
        self._is_polling = False
        self._poll_began_ns = self._named_ns = now_ns
        """When the newest poll began, and the newest one that saw this process named."""
        self._candidacy: ReplicaSet | None = None
        """The document that a swap under way writes."""
        self._is_first_epoch = False
        """Whether there was no primary before that document."""
        self._won_epoch = 0
        """The last epoch that a swap of this replica has begun."""
        self._is_stale = True
        """Whether this replica may have changed the document since the newest poll."""
        self._recovery: BrokerRecovery | None = None
        """The state that a candidate had built as a standby."""
        self._rest_until_ns = now_ns
        """Until then it does not run again: it was elected, and could not begin."""
        self._stuck_since_ns = now_ns
        """When the log of this primary last took writes."""
        self._attempt = 0
        """The number of the last connection attempt."""
        self._connect_at_ns = now_ns
        self._run_at_ns: int | None = None
        """When to become a candidate; None while there is no reason to."""

    def _note(self, new: ReplicaNote) -> None:
        assert new.pledged >= self.note.pledged
        if new != self.note:
            self._save_note(new)
            self.note = new

    def _save_note(self, new: ReplicaNote) -> None:
        try:
            new.save(self._storage)
        except OSError as error:
            raise ReplicaFailed(
                f"the replica's note could not be written: {_said(error)}",
                may_pass=_lacks_space(error),
            ) from error

    def _note_epochs(self, epochs: Iterable[EpochRange]) -> None:
        """Write down the epochs of the log, before the segments of one can be retired."""
        ranges = tuple((epoch.epoch, epoch.start, epoch.end) for epoch in epochs)
        self._note(replace(self.note, epochs=ranges))

    def _open_copy(self) -> CopiedLog:
        try:
            copy = self.host.open_copy([EpochRange(*epoch) for epoch in self.note.epochs])
        except (OSError, CopyRefused) as error:
            raise ReplicaFailed(
                f"the log could not be opened: {_said(error)}", may_pass=_lacks_space(error)
            ) from error
        noted_end = max((end for _, _, end in self.note.epochs), default=0)
        if copy.damaged or copy.end_position < noted_end:
            # Written down: a cut may make the end of the log of what is damaged.
            self._note(replace(self.note, is_whole=False))
        return copy

    def _standby(
        self, copy: CopiedLog, now_ns: int, recovery: BrokerRecovery | None = None
    ) -> Standby:
        return Standby(
            self.name,
            self.broker,
            self.note.pledged,
            copy,
            recovery,
            self.note.is_whole,
            self._floor,
            self.host.recover,
            self._open_copy,
            self._note_whole,
            self._note_epochs,
            now_ns,
            self.host.instance,
        )

    def _note_whole(self, is_whole: bool) -> None:
        self._note(replace(self.note, is_whole=is_whole))
        if not is_whole:
            self.host.lacks_acknowledged()

    # what others see

    @property
    def primary(self) -> Primary | None:
        """The primary's role, where this replica has it."""
        return self.role if isinstance(self.role, Primary) else None

    def presence(self, now_ns: int) -> Presence:
        """Return what the replica says of itself in the metadata store; addresses are left out."""
        role = self.role
        if isinstance(role, Primary):
            end, is_whole, yields = role.log.position, True, role.yields(now_ns)
        else:
            late_ns = self.settings.election_timeout_ns
            gives_up = isinstance(role, Candidate) and now_ns - role.since_ns > late_ns
            yields = gives_up or now_ns < self._rest_until_ns
            is_whole = self.note.is_whole and role.copy.failed is None
            end = role.copy.end_position
        return Presence(
            self.note.pledged,
            end,
            is_whole,
            yields,
            broker=self.broker,
            role=self.role_name,
            confirmed_position=self.confirmed_position,
            log_epoch=role.epoch if isinstance(role, Primary) else role.copy.epochs.last,
            problem=self.problem,
            life=self.note.life.number,
            incarnation=self.note.life.incarnation,
        )

    @property
    def problem(self) -> str:
        """Why this replica does not do its part; empty while it does."""
        return self._set_problem or self._link_problem

    @property
    def role_name(self) -> str:
        """``primary``, ``candidate``, ``standby``, or ``waiting`` for a replica set."""
        if self._replaced or (self.seen is not None and not self._is_listed):
            return "waiting"
        return type(self.role).__name__.lower()

    @property
    def is_replaced(self) -> bool:
        """Whether another process is this replica for good."""
        return bool(self._replaced)

    @property
    def _is_listed(self) -> bool:
        """Whether the document has a replica of this name and broker, as far as is known."""
        replica_set = self.seen.replica_set if self.seen is not None else None
        return (
            replica_set is not None
            and replica_set.broker == self.broker
            and self.name in replica_set.replicas
        )

    @property
    def is_member(self) -> bool:
        """Whether the document names this process as the replica, as far as is known."""
        replica_set = self.seen.replica_set if self.seen is not None else None
        is_named = (
            replica_set is not None and replica_set.instance_of(self.name) == self.host.instance
        )
        return is_named and self._is_listed and not self._replaced

    @property
    def confirmed_position(self) -> int:
        """Up to where this replica knows the log as confirmed."""
        role = self.role
        confirmed = role.confirmation.position if isinstance(role, Primary) else role.floor
        return max(self._floor, confirmed)

    def checkpoint_saved(self, checkpoint: StandbyCheckpoint) -> None:
        """A checkpoint of this standby's state was saved: remove what it does not need.

        The end of an epoch is written down first, since its last segment may go.

        Raises ReplicaFailed: the note could not be written.
        """
        role = self.role
        assert isinstance(role, Standby) and role.recovery is not None
        ranges = role.copy.epochs.ranges
        ended = {(epoch.epoch, epoch.start, epoch.end) for epoch in ranges[:-1]}
        if not ended <= set(self.note.epochs):
            self._note_epochs(ranges)
        role.recovery.saved(checkpoint)

    # connections

    def connected(self, attempt: int, link: Link, now_ns: int) -> None:
        """The connection that `connect` began with a number is there."""
        role = self.role
        if self._is_awaited(attempt) and isinstance(role, Standby):
            role.connected(link)
        else:
            link.close()

    def _is_awaited(self, attempt: int) -> bool:
        role = self.role
        is_connecting = isinstance(role, Standby) and role.state is StandbyState.CONNECTING
        return is_connecting and attempt == self._attempt

    def connect_failed(
        self, attempt: int, *, is_refused: bool, now_ns: int, reason: str = ""
    ) -> None:
        """The connection that `connect` began with a number did not come about.

        Args:
            is_refused: nothing listens there, so the process is dead.
            reason: why, for an operator; empty where the replica there is dead.
        """
        role = self.role
        if self._is_awaited(attempt) and isinstance(role, Standby):
            role.connect_failed(is_refused=is_refused)
            self._link_problem = reason
            self._connect_at_ns = now_ns + self.settings.hasty_poll_ns

    def disconnected(self, link: Link, now_ns: int) -> None:
        """A connection ended, not by this replica."""
        role = self.role
        try:
            if isinstance(role, Primary):
                role.disconnected(link, now_ns)
            elif isinstance(role, Candidate):
                role.disconnected(link)
                self._begin_epoch_if_elected(now_ns)
            elif link is role.link:
                role.disconnected()
                self._connect_at_ns = now_ns
                self.poll_soon(now_ns)
        except (LogsDiverged, CopyRefused, OSError) as error:
            self._link_problem = _said(error)

    def received(self, link: Link, frame: Frame, now_ns: int) -> None:
        """A frame arrived."""
        try:
            hello = self._read_hello(link, frame)
            if frame.kind == FrameKind.FENCED or frame.epoch > self.note.pledged:
                self.poll_soon(now_ns)
                if frame.epoch > self.note.pledged:
                    # An epoch began that this replica has not read of yet.
                    self._step_down(now_ns)
                    self._close(link, now_ns)
            elif hello is not None:
                self._greeted(link, frame, hello, now_ns)
            elif frame.epoch < self.note.pledged:
                link.send(Frame(FrameKind.FENCED, self.note.pledged))
                self._close(link, now_ns)
            elif isinstance(self.role, Standby):
                if link is self.role.link:
                    self.role.received(frame, now_ns)
            elif isinstance(self.role, Candidate):
                self.role.received(link, frame)
                self._begin_epoch_if_elected(now_ns)
            else:
                self.role.received(link, frame, now_ns)
        except (ConnectAgain, SegmentRemoved):
            self._close(link, now_ns)
        except (FrameRefused, LogsDiverged, CopyRefused, OSError) as error:
            self._link_problem = _said(error)
            self._close(link, now_ns, wait_ns=self.settings.poll_ns)

    def _read_hello(self, link: Link, frame: Frame) -> ReplicaGreeting | None:
        """Read a HELLO; None where it is another frame. Raises FrameRefused for what comes from a
        stranger, whose epoch must not be believed.
        """
        if frame.kind == FrameKind.HELLO:
            hello = ReplicaGreeting.unpack(frame.body)
            if hello.broker != self.broker:
                raise FrameRefused(f"a replica of broker {hello.broker}; this one is {self.broker}")
            return hello
        role = self.role
        if isinstance(role, Standby):
            has_greeted = link is role.link
        elif isinstance(role, Candidate):
            has_greeted = any(link is peer for peer, _ in role.answers.values())
        else:
            has_greeted = any(link is standby.link for standby in role.standbys.values())
        if not has_greeted:
            raise FrameRefused(f"{frame.kind.name} of a replica that did not say HELLO")
        return None

    def _greeted(self, link: Link, frame: Frame, hello: ReplicaGreeting, now_ns: int) -> None:
        role = self.role
        if isinstance(role, Standby) or frame.epoch < role.epoch:
            # It takes this replica for the primary: the document says who is.
            link.send(Frame(FrameKind.FENCED, self.note.pledged))
            link.close()
        elif role.replica_set.instance_of(hello.replica) != hello.instance:
            # Another process is that replica; or this one is, and the newest document says so.
            link.send(Frame(FrameKind.FENCED, self.note.pledged))
            link.close()
            self.poll_soon(now_ns)
        elif isinstance(role, Candidate):
            role.greeted(link, hello)
            self._begin_epoch_if_elected(now_ns)
        else:
            role.greeted(link, hello, now_ns)

    def _close(self, link: Link, now_ns: int, wait_ns: int = 0) -> None:
        """End a connection, and greet anew after a wait, if it is the one to the primary."""
        is_to_primary = isinstance(self.role, Standby) and link is self.role.link
        link.close()
        self.disconnected(link, now_ns)
        if is_to_primary:
            self._connect_at_ns = now_ns + wait_ns

    # time

    def tick(self, now_ns: int) -> None:
        """Do what is due; call this at least once in `beat_ns`."""
        if now_ns >= self._poll_at_ns and not self._is_polling:
            self._is_polling, self._poll_began_ns = True, now_ns
            self.host.poll()
        role = self.role
        if isinstance(role, Primary):
            role.tick(now_ns)
            self._fail_if_stuck(role, now_ns)
        elif role.copy.failed is not None:
            self._fail_unless_space_comes(role, now_ns)
        elif isinstance(role, Standby):
            self._lose_silent(role, now_ns)
            self._connect_if_due(role, now_ns)
            self._run_if_due(role, now_ns)

    def _fail_unless_space_comes(self, role: Standby | Candidate, now_ns: int) -> None:
        """End the process where the disk has failed. A standby whose disk is full ends only its
        connection: the primary sends again what it has received since.
        """
        if not (role.copy.may_recover and isinstance(role, Standby)):
            raise ReplicaFailed(role.copy.failed, may_pass=role.copy.may_recover)
        if role.link is not None:
            self._link_problem = role.copy.failed or ""
            self._close(role.link, now_ns)

    def _fail_if_stuck(self, role: Primary, now_ns: int) -> None:
        """End the process where it can write no more, and no other replica can be primary."""
        if role.log.failed is None:
            self._stuck_since_ns = now_ns
        elif now_ns - self._stuck_since_ns > self.settings.election_timeout_ns:
            raise ReplicaFailed(role.log.failed, may_pass=role.log.may_recover)

    def end_turn(self, now_ns: int) -> None:
        """Send what is to be sent: data, or acknowledgements."""
        role = self.role
        if isinstance(role, Primary):
            self._link_problem = ""
            role.send(now_ns)
        elif isinstance(role, Standby):
            if role.state is StandbyState.FOLLOWING:
                self._link_problem = ""
            try:
                role.end_turn()
                self._floor = max(self._floor, role.floor)
            except (ConnectAgain, OSError) as error:
                self._link_problem = _said(error)
                if role.link is not None:
                    self._close(role.link, now_ns)

    def _lose_silent(self, role: Standby, now_ns: int) -> None:
        """End the connection to a primary that says nothing."""
        timeout_ns = self.settings.replica_timeout_ns
        if role.state is StandbyState.GREETED:
            timeout_ns = self.settings.election_timeout_ns
        if (
            role.link is not None
            and now_ns - max(role.received_ns, self._connect_at_ns) > timeout_ns
        ):
            self._close(role.link, now_ns)

    def _connect_if_due(self, role: Standby, now_ns: int) -> None:
        replica_set = self.seen.replica_set if self.seen is not None else None
        if (
            role.state is not StandbyState.LOST
            or now_ns < self._connect_at_ns
            or replica_set is None
            or not self.is_member
            or replica_set.epoch != role.epoch
            or replica_set.primary in (None, self.name)
            or role.copy.failed is not None
        ):
            return
        assert replica_set.primary is not None
        role.state = StandbyState.CONNECTING
        self._attempt += 1
        self.host.connect(
            self._attempt, replica_set.primary, replica_set.replicas[replica_set.primary]
        )

    # the document

    def poll_soon(self, now_ns: int) -> None:
        """Poll the metadata store with the next tick."""
        self._poll_at_ns = min(self._poll_at_ns, now_ns)

    def poll_failed(self, now_ns: int) -> None:
        """The metadata store did not answer."""
        self._is_polling = False
        self._poll_at_ns = now_ns + self._poll_interval_ns()

    def polled(self, seen: Seen, now_ns: int) -> None:
        """The metadata store answered."""
        self._is_polling = self._is_stale = False
        self.seen = seen
        document = seen.replica_set
        self._set_problem = ""
        if self._replaced:
            self._set_problem = self._replaced
        elif document is None:
            is_lost = self.note.pledged > 0
            self._set_problem = LOST_REPLICA_SET if is_lost else no_replica_set(seen.presences)
        elif self.name not in document.replicas:
            self._set_problem = (
                f"the replica set has {', '.join(sorted(document.replicas))}, and not this replica:"
                f" add it with `martlet replicas add {self.name}`"
            )
        elif document.broker != self.broker:
            self._set_problem = (
                f"the data folder is of another broker, {self.broker}, than the replica set, which"
                f" is of {document.broker}: give this replica an empty --data-path, into which it"
                " copies the set's log, or, if the folder is of another replica set, the --metadata"
                " and --replica-set of that one"
            )
        elif document.epoch < self.note.pledged:
            self._set_problem = (
                f"the metadata store is at epoch {document.epoch}, and this replica has pledged to"
                f" {self.note.pledged}: it is an old state of the store, as of a backup; bring the"
                " replica set back with `martlet replicas recreate`"
            )
        elif not self._has_name(seen, document, now_ns):
            pass
        else:
            self._named_ns = self._poll_began_ns
            self._take_document(seen, document, now_ns)
        self._poll_at_ns = now_ns + self._poll_interval_ns()

    def _take_document(self, seen: Seen, replica_set: ReplicaSet, now_ns: int) -> None:
        """Take in the newest document, which names this process."""
        if replica_set.epoch > self.note.pledged:
            self._begin_following(seen, now_ns)
        elif isinstance(self.role, Primary):
            self.role.polled(seen, self._poll_began_ns, now_ns)
        elif isinstance(self.role, Candidate):
            self._refresh(self.role, replica_set, seen.version, now_ns)

    def _has_name(self, seen: Seen, replica_set: ReplicaSet, now_ns: int) -> bool:
        """Whether this process is the replica of its name; claim that where it may."""
        named, note, instance = replica_set.lives.get(self.name), self.note, self.host.instance
        has_pledged = note.pledged > 0
        what = entitlement(named, note.life, note.runs, instance, has_pledged=has_pledged)
        if what is Entitlement.NAMED:
            assert named is not None
            self._note(replace(note, life=named, runs=()))
            return True
        if what is Entitlement.REPLACED:
            self._stand_down(replica_set, now_ns)
        elif what is Entitlement.REPLACES and replica_set.may_be_alone(self.name):
            self._set_problem = (
                f"replica {self.name}, which this process is to replace, may have messages that no"
                f" other replica has: start it again on its own data folder; if that is lost, make"
                " another replica the primary with `martlet replicas force NAME --accept-loss`"
            )
        elif self._claim is None:
            number = max(replica_set.last_life, note.life.number) + 1
            claim = Life(number, instance, note.life.incarnation)
            is_whole = note.is_whole and what is Entitlement.SUCCEEDS
            if is_whole != note.is_whole:
                self.host.lacks_acknowledged()
            if isinstance(self.role, Standby):
                self.role.is_whole = is_whole
            self._note(replace(note, is_whole=is_whole))
            self._claim = replica_set.claimed(self.name, claim, self.host.address)
            self.host.swap(self._claim, seen.version)
        return False

    def _stand_down(self, document: ReplicaSet, now_ns: int) -> None:
        """Take part no more: another process is this replica."""
        self._set_problem = self._replaced = (
            f"another process is replica {self.name}, at {document.replicas[self.name]}: it"
            " replaced this one, which stands down for good; stop this one, and start it again only"
            " with an empty --data-path and another --replica-name"
        )
        self._step_down(now_ns)
        assert isinstance(self.role, Standby)
        if self.role.link is not None:
            self._close(self.role.link, now_ns)

    def _refresh(self, role: Candidate, replica_set: ReplicaSet, version: int, now_ns: int) -> None:
        try:
            role.polled(replica_set, version)
            self._begin_epoch_if_elected(now_ns)
        except (LogsDiverged, CopyRefused, OSError) as error:
            self._link_problem = _said(error)

    def _poll_interval_ns(self) -> int:
        role = self.role
        is_well = (
            role.state is StandbyState.FOLLOWING
            if isinstance(role, Standby)
            else isinstance(role, Primary) and not role.is_unclear and not role.is_waking
        )
        return self.settings.poll_ns if is_well else self.settings.hasty_poll_ns

    def _begin_following(self, seen: Seen, now_ns: int) -> None:
        """Pledge to an epoch, and be what its document says."""
        replica_set = seen.replica_set
        assert replica_set is not None and replica_set.epoch > self.note.pledged
        self._step_down(now_ns)
        role = self.role
        assert isinstance(role, Standby)
        # With an empty disk it cannot know whether it led that epoch, and it may have read an old
        # document. So it may not begin one until it has followed a primary.
        may_begin = self.note.is_whole or replica_set.epoch == self._won_epoch
        is_forced = (
            replica_set.is_forced and replica_set.primary == self.name and self.note.pledged > 0
        )
        is_whole = self.note.is_whole or is_forced
        may_begin = may_begin or is_forced
        self._note(replace(self.note, pledged=replica_set.epoch, is_whole=is_whole))
        if role.link is not None:
            role.link.send(Frame(FrameKind.FENCED, replica_set.epoch))
            role.link.close()
        self._run_at_ns = None
        self._attempt += 1  # A connection to the primary before counts no more.
        self._connect_at_ns = now_ns
        # The process that won the epoch begins it, and no other that is this replica by now.
        is_own = replica_set.primary == self.name and replica_set.primary_instance in (
            "",
            self.host.instance,
        )
        if is_own and may_begin and role.copy.failed is None:
            self.role = Candidate(
                self.name, self.broker, replica_set, seen.version, role.copy, self._open_copy,
                self._note_epochs,
                self.note.is_whole, role.floor, now_ns,
            )  # fmt: skip
            self._recovery = role.recovery
            try:
                self.role.decide()
                self._begin_epoch_if_elected(now_ns)
            except (LogsDiverged, CopyRefused, OSError) as error:
                self._link_problem = _said(error)
        else:
            self.role = self._standby(role.copy, now_ns, role.recovery)

    def _step_down(self, now_ns: int) -> None:
        """Be a standby: the epoch of this primary or candidate is over."""
        role = self.role
        if isinstance(role, Standby):
            return
        if isinstance(role, Primary):
            links = [standby.link for standby in role.standbys.values()]
            self._floor = max(self._floor, role.confirmation.position)
        else:
            links = [link for link, _ in role.answers.values()]
        for link in links:
            link.close()
        self.role = self._standby(self._open_copy(), now_ns)

    def _begin_epoch_if_elected(self, now_ns: int) -> None:
        role = self.role
        if not isinstance(role, Candidate) or role.state is not CandidateState.DONE:
            return
        copy = role.copy
        recovery = self._recovery
        if recovery is None or not recovery.is_usable_for(copy):
            recovery = self.host.recover(copy)
        self._recovery = None
        self._note(replace(self.note, is_whole=True))
        self._note_epochs(copy.epochs.ranges)
        older = [EpochRange(epoch.epoch, epoch.start, epoch.end) for epoch in copy.epochs.ranges]
        begun_at = copy.position
        try:
            log = self.host.promote(copy, recovery, role.epoch, self._floor)
        except (OSError, CopyRefused, WritesRefused) as error:
            self._link_problem = f"epoch {role.epoch} could not begin: {_said(error)}"
            self._rest_until_ns = now_ns + self.settings.election_timeout_ns
            self._step_down(now_ns)
            return
        self.role = primary = Primary(
            self.name, self.broker, role.epoch, log, older, begun_at, role.replica_set,
            role.version, self.settings, self.host, now_ns, self._named_ns,
        )  # fmt: skip
        for link, hello in role.answers.values():
            primary.greeted(link, hello, now_ns)

    # candidacies

    def _run_if_due(self, role: Standby, now_ns: int) -> None:
        """Run for the next epoch, where there is a reason and the random wait is over."""
        if not self._has_reason_to_run(role, now_ns):
            self._run_at_ns = None
            return
        if self._run_at_ns is None:
            self._run_at_ns = now_ns + self._random.randrange(self.settings.max_delay_ns)
            self.poll_soon(now_ns)
        seen = self.seen
        if now_ns < self._run_at_ns or self._candidacy is not None or seen is None:
            return
        assert seen.replica_set is not None
        self._candidacy = seen.replica_set.elected(self.name)
        self._is_first_epoch = seen.replica_set.primary is None
        self._run_at_ns = None
        self._is_stale = True
        self.host.swap(self._candidacy, seen.version)

    def _has_reason_to_run(self, role: Standby, now_ns: int) -> bool:
        replica_set = self.seen.replica_set if self.seen is not None else None
        if (
            replica_set is None
            or not self.is_member
            or self._is_stale
            or now_ns < self._rest_until_ns
            or replica_set.epoch != self.note.pledged
            or self.name not in replica_set.in_sync
            or role.copy.failed is not None
            or role.state is StandbyState.FOLLOWING
        ):
            return False
        if replica_set.primary is None or replica_set.primary == self.name:
            return True
        if role.is_refused:
            return True
        silent_ns = now_ns - role.received_ns
        wait_ns = self.settings.replica_timeout_ns
        if not self.note.is_whole:
            wait_ns *= 2  # Another one is elected with fewer answers.
        assert self.seen is not None
        other = self.seen.presences.get(replica_set.primary)
        return silent_ns > wait_ns and (other is None or other.yields)

    def swapped(self, swapping: ReplicaSet, version: int | None, now_ns: int) -> None:
        """A swap gave the document a version; None where another change came first."""
        if isinstance(self.role, Primary):
            self.role.swapped(swapping, version, now_ns)
        if swapping is self._candidacy and version is not None:
            self._won(swapping)
        self._swap_ended(swapping, now_ns)

    def _won(self, elected: ReplicaSet) -> None:
        """This replica is named by the document, which was the newest until then."""
        self._won_epoch = elected.epoch
        if self._is_first_epoch and isinstance(self.role, Standby):
            # Nothing was ever acknowledged.
            self._note(replace(self.note, is_whole=True))
            self.role.is_whole = True

    def swap_unclear(self, swapping: ReplicaSet, now_ns: int) -> None:
        """The outcome of a swap is not known: it may be applied later."""
        if isinstance(self.role, Primary):
            self.role.swap_unclear(swapping)
        self._swap_ended(swapping, now_ns)

    def _swap_ended(self, swapping: ReplicaSet, now_ns: int) -> None:
        if swapping is self._candidacy:
            self._candidacy = None
        if swapping is self._claim:
            self._claim = None
        self.poll_soon(now_ns)


def _lacks_space(error: BaseException | None) -> bool:
    """Whether the cause of an error is a lack of space, which may pass."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None and error.errno in FULL


def _said(error: Exception) -> str:
    """Return the text of an error, without the number that an OSError has."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
