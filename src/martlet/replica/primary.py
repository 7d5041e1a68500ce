"""The primary of an epoch: it sends its log, counts acknowledgements and keeps `in_sync` honest.

::

    in sync       a standby that falls silent, or behind, leaves -> swap
    not in sync   a standby that has caught up joins             -> swap
    swap sent     both quorums count ---- won: the new one counts
                                     |--- lost: poll, and count by what the document says
                                     '--- unclear: poll; where nothing changed, swap again with
                                          `touch` raised, so that the first can never be applied

Before it changes the set, the primary waits until the new quorum alone has all that is confirmed,
and the epoch's first record.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from martlet.log.commit_log import CommitLog
from martlet.log.epochs import EpochRange, common_position
from martlet.names import PUBLISH_AGAIN
from martlet.replica.confirmation import Confirmation
from martlet.replica.frames import Frame, FrameKind, FrameRefused, ReplicaGreeting
from martlet.replica.replica_set import ReplicaSet, Seen
from martlet.replica.shipping import Link, LogSender, SegmentRemoved, greeting, piece

SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class ReplicaSettings:
    """How replicas wait for each other."""

    flush_sync: bool = False
    """An acknowledgement means that the disk has it."""
    replica_timeout_ns: int = 2 * SECOND_NS
    """A replica that is silent for longer is missing."""
    election_timeout_ns: int = 3 * SECOND_NS
    """A candidate that has not begun by then lets others try."""
    beat_ns: int = SECOND_NS // 4
    """How often a primary says that it is alive."""
    poll_ns: int = SECOND_NS
    """How often the document is read while all is well."""
    hasty_poll_ns: int = SECOND_NS // 10
    """How often it is read while there is no primary."""
    max_delay_ns: int = 150_000_000
    """The maximum of the random wait before a candidacy."""
    max_lag_bytes: int = 256 << 20
    """A standby that is further behind is not in sync."""
    joining_lag_bytes: int = 1 << 20
    """A standby that is nearer to the end comes into sync."""
    max_unacknowledged_bytes: int = 32 << 20
    """The maximum that is sent to a standby before it acknowledges."""


_MAX_ENDS = 3000
"""The maximum of ends that are remembered: those of a minute."""


class SwapState(Enum):
    """What a primary knows of its last swap."""

    SETTLED = "settled"
    SENT = "sent"
    UNCLEAR = "unclear"


class PrimaryHost(Protocol):
    """What a primary asks of its process."""

    def swap(self, replica_set: ReplicaSet, version: int) -> None:
        """Begin a compare-and-swap of the document; the outcome is reported by a call."""

    def confirmed(self, position: int) -> None:
        """Every record before a position is confirmed."""


@dataclass
class StandbyProgress:
    """How far a standby is."""

    link: Link
    instance: str
    """Its process; empty where it is of an earlier version."""
    received_ns: int
    """When its last frame arrived."""
    common: int
    """Up to here its log is this one's."""
    sender: LogSender | None = None
    """None until it asks for the log."""
    written: int = 0
    durable: int = 0
    is_whole: bool = False
    """Whether its acknowledgements count."""


@dataclass
class Primary:
    """A primary, from the first record of its epoch on."""

    name: str
    broker: str
    epoch: int
    log: CommitLog
    """Where the broker appends; at first it ends behind the epoch's first record."""
    older: list[EpochRange]
    """The epochs before, oldest first."""
    begun_at: int
    """The position of the epoch's first record."""
    replica_set: ReplicaSet
    version: int
    settings: ReplicaSettings
    host: PrimaryHost
    now_ns: int
    named_ns: int
    """When the poll began that saw this process named as the primary."""
    standbys: dict[str, StandbyProgress] = field(default_factory=dict)
    swap_state: SwapState = SwapState.SETTLED
    stalled_since_ns: int | None = None
    """Since when too few replicas in sync are reached; None while there are enough."""
    handing_over_to: str | None = None
    """The replica that is to be the next primary; nothing may be appended meanwhile."""

    def __post_init__(self) -> None:
        self.confirmation = Confirmation(
            self.replica_set.quorum, self.replica_set.min_in_sync, self.log.position
        )
        self._beat_at_ns = self.now_ns
        self._short_since_ns: int | None = None
        """Since when fewer replicas are reached than must be for messages to be taken."""
        self._ends: deque[tuple[int, int]] = deque(maxlen=_MAX_ENDS)
        """(time, end of the log) at ticks after which it had grown."""
        self._well_ns = dict.fromkeys(self.replica_set.replicas, self.now_ns)
        """When each replica last got further than ever before in this epoch, or had all of the log.
        One that connects again and again and gets no further is not well.
        """
        self._reached: dict[str, int] = {}
        """The highest position that each acknowledged while it was whole."""
        self._was_here: set[str] = set()
        """The replicas that were connected in this epoch."""
        self._handing_over_since_ns = 0
        self._has_given_up = False
        """Whether the last hand-over was given up, so that an order for it is to be taken back."""
        self._ordered_since_ns = self.now_ns
        self.alive_ns = self.named_ns
        """When this process last ran."""
        self._woke_ns: int | None = None
        """When it went on after it had hung, until the document has been read since."""
        self._swapping: ReplicaSet | None = None
        """The document that a swap under way writes."""
        self._count(self.now_ns)

    # standbys

    def greeted(self, link: Link, hello: ReplicaGreeting, now_ns: int) -> None:
        """Welcome a standby of this epoch."""
        name = hello.replica
        if name == self.name or name not in self.replica_set.replicas:
            link.close()
            return
        before = self.standbys.get(name)
        if before is not None and before.link is not link:
            before.link.close()
        self.confirmation.forget(name)
        common = common_position(self.epochs, hello.epochs)
        if common is None:
            common = hello.segments[0][0] if hello.segments else 0
        self.standbys[name] = StandbyProgress(link, hello.instance, now_ns, common)
        self._was_here.add(name)
        own = self.replica_set.primary_instance
        body = greeting(
            self.broker, self.name, self.log, self.epochs, is_whole=True, instance=own
        ).pack()
        confirmed = self.confirmation.position
        # Its folder may have been restored from a backup, in which it was whole.
        is_whole = common >= self._reached.get(name, 0)
        link.send(
            Frame(
                FrameKind.WELCOME, self.epoch, self.log.position, confirmed, body, is_whole=is_whole
            )
        )

    @property
    def epochs(self) -> list[EpochRange]:
        """The epochs of the log, oldest first."""
        return [*self.older, EpochRange(self.epoch, self.begun_at, self.log.position)]

    def received(self, link: Link, frame: Frame, now_ns: int) -> None:
        """Handle a standby's frame. Raises FrameRefused, and SegmentRemoved: it must greet anew."""
        item_of_link = next((item for item in self.standbys.items() if item[1].link is link), None)
        if item_of_link is None:
            raise FrameRefused(f"{frame.kind.name} of a replica that was not welcomed")
        name, standby = item_of_link
        standby.received_ns = now_ns
        if frame.kind == FrameKind.FETCH:
            if frame.position > min(standby.common, self.log.position):
                raise FrameRefused(
                    f"{name} asks for {frame.position}, and its log is this one's up to"
                    f" {standby.common}"
                )
            standby.sender = LogSender(self.log, frame.position, frame.second)
        elif frame.kind == FrameKind.ACK:
            self._acknowledged(name, standby, frame, now_ns)
        elif frame.kind == FrameKind.REPAIR:
            link.send(piece(self.log, frame))
        else:
            raise FrameRefused(f"{frame.kind.name} of a standby")

    def _acknowledged(self, name: str, standby: StandbyProgress, frame: Frame, now_ns: int) -> None:
        sender = standby.sender
        if sender is None or not frame.second <= frame.position <= sender.position:
            raise FrameRefused(f"{name} acknowledges {frame.position}, which it was not sent")
        if frame.position < standby.written or frame.second < standby.durable:
            raise FrameRefused(f"{name} takes back what it acknowledged")
        standby.written, standby.durable = frame.position, frame.second
        standby.is_whole = frame.is_whole
        sender.acknowledged(frame.position)
        if frame.is_whole:
            self._see_progress(name, standby, now_ns)
            self.confirmation.acknowledge(name, self._reached_by(standby))
            self._count(now_ns)

    def _see_progress(self, name: str, standby: StandbyProgress, now_ns: int) -> None:
        reached = self._reached_by(standby)
        if reached > self._reached.get(name, -1):
            self._reached[name] = reached
            self._well_ns[name] = now_ns

    def disconnected(self, link: Link, now_ns: int) -> None:
        """A connection ended."""
        for name, standby in list(self.standbys.items()):
            if standby.link is link:
                del self.standbys[name]
                self.confirmation.forget(name)

    def send(self, now_ns: int) -> None:
        """Send what was appended; call this at the end of a turn."""
        if not self.settings.flush_sync:
            self._count(now_ns)
        for standby in list(self.standbys.values()):
            sender = standby.sender
            if sender is None:
                continue
            room = self.settings.max_unacknowledged_bytes - sender.unacknowledged_bytes
            try:
                sender.pump(standby.link, self.epoch, self.confirmation.position, room)
            except SegmentRemoved:
                self.disconnected(standby.link, now_ns)
                standby.link.close()

    def flushed(self, now_ns: int) -> None:
        """The log's `durable_position` rose."""
        self._count(now_ns)

    def _see_time(self, now_ns: int) -> None:
        if now_ns - self.alive_ns > self.settings.replica_timeout_ns:
            self._woke_ns = now_ns
        self.alive_ns = now_ns

    @property
    def is_waking(self) -> bool:
        """Whether this process had hung, and may have been replaced meanwhile. Then it must not
        confirm alone; where others must acknowledge, those of a newer epoch do not.
        """
        return self._woke_ns is not None

    def _count(self, now_ns: int) -> None:
        """Take in this replica's own log, and tell the host of what is confirmed by now."""
        self._see_time(now_ns)
        log = self.log
        own = log.durable_position if self.settings.flush_sync else log.position
        if own >= self.confirmation.acknowledged(self.name):
            self.confirmation.acknowledge(self.name, own)
        may_be_alone = self.replica_set.copies == 1 and len(self.replica_set.replicas) > 1
        if self.is_waking and may_be_alone:
            return
        if self.confirmation.update():
            assert self.confirmation.position <= log.position
            self.host.confirmed(self.confirmation.position)

    # time

    def tick(self, now_ns: int) -> None:
        """Beat, and change the set where it must be."""
        self._see_time(now_ns)
        if now_ns >= self._beat_at_ns:
            self._beat_at_ns = now_ns + self.settings.beat_ns
            beat = Frame(FrameKind.BEAT, self.epoch, self.log.position, self.confirmation.position)
            for standby in self.standbys.values():
                standby.link.send(beat)
        self._see_who_is_well(now_ns)
        self._see_who_is_reached(now_ns)
        if not self._ends or self._ends[-1][1] < self.log.position:
            self._ends.append((now_ns, self.log.position))
        if self.replica_set.epoch > self.epoch:
            return  # It has handed over.
        if self.swap_state is not SwapState.SETTLED:
            if self.handing_over_to is not None and self._hand_over_is_late(now_ns):
                # The metadata store may be away for long. If the other one becomes primary after
                # all, it begins with all that is confirmed by then, as after any election.
                self._give_up_hand_over()
            return
        if not self._hand_over(now_ns):
            self._change_set(now_ns)

    def _see_who_is_well(self, now_ns: int) -> None:
        for name, standby in self.standbys.items():
            if standby.is_whole and self._reached_by(standby) >= self.log.position:
                self._well_ns[name] = now_ns

    def _reached_by(self, standby: StandbyProgress) -> int:
        """Return up to where a standby has the log, as it must be to count."""
        return standby.durable if self.settings.flush_sync else standby.written

    def _see_who_is_reached(self, now_ns: int) -> None:
        reached = self._reached_count(now_ns)
        if reached >= self.replica_set.copies:
            self.stalled_since_ns = None
        elif self.stalled_since_ns is None:
            self.stalled_since_ns = now_ns
        if reached >= max(self.replica_set.copies, self.replica_set.min_in_sync):
            self._short_since_ns = None
        elif self._short_since_ns is None:
            self._short_since_ns = now_ns

    def _reached_count(self, now_ns: int) -> int:
        """How many replicas in sync are reached, this one included."""
        return 1 + sum(
            name in self.replica_set.in_sync
            and now_ns - standby.received_ns <= self.settings.replica_timeout_ns
            for name, standby in self.standbys.items()
        )

    def shortage(self, now_ns: int) -> str:
        """Return why no messages should be taken: too few replicas were reached for longer than
        `replica_timeout_ns`. Empty while there are enough.
        """
        since = self._short_since_ns
        if since is None or now_ns - since < self.settings.replica_timeout_ns:
            return ""
        return (
            f"{self._reached_count(now_ns)} of the replicas"
            f" {', '.join(sorted(self.replica_set.in_sync))} in sync are reached, and"
            f" {max(self.replica_set.copies, self.replica_set.min_in_sync)} must be: start the"
            " others, or lower it with `martlet replicas set --min-in-sync`"
        )

    def lag_ns(self, name: str, now_ns: int) -> int:
        """Return the age of the first record that a standby lacks, to a tick, as far back as ticks
        are remembered.
        """
        standby = self.standbys.get(name)
        return self._age_ns(standby.written if standby is not None else 0, now_ns)

    def _age_ns(self, position: int, now_ns: int) -> int:
        """Return how old the record at a position is, as `lag_ns`."""
        first_ns = next((at_ns for at_ns, end in self._ends if end > position), now_ns)
        return now_ns - first_ns

    def yields(self, now_ns: int) -> bool:
        """Whether another replica should be primary: this one has reached too few for too long, or
        can write nothing any more.
        """
        since = self.stalled_since_ns
        is_cut_off = since is not None and now_ns - since >= self.settings.replica_timeout_ns
        return is_cut_off or self.log.failed is not None

    def _change_set(self, now_ns: int) -> None:
        """Take one replica out of the set, or into it; or make more or fewer copies."""
        current = self.replica_set
        missing = [n for n in sorted(current.in_sync - {self.name}) if self._is_missing(n, now_ns)]
        if len(current.in_sync) <= current.min_in_sync:
            missing.clear()
        leaving = current.leaving - {self.name}
        others = sorted(set(current.replicas) - current.in_sync - leaving)
        caught_up = [name for name in others if self._has_caught_up(name, now_ns)]
        going = sorted(current.in_sync & leaving)
        # What is confirmed must not come to be in fewer logs than an operator allows.
        if len(current.in_sync) <= min(
            current.min_in_sync, len(current.replicas) - len(current.leaving)
        ):
            going.clear()
        for name in going + missing + caught_up:
            if self._swap_if_allowed(current.with_in_sync(current.in_sync ^ {name})):
                return
        changed = current.with_in_sync(current.in_sync)
        if changed != current:
            self._swap_if_allowed(changed)

    def _swap_if_allowed(self, changed: ReplicaSet) -> bool:
        if not self.confirmation.allows(changed.quorum):
            return False
        self.confirmation.begin_change(changed.quorum)
        self._swap(changed)
        return True

    def _swap(self, changed: ReplicaSet) -> None:
        self._swapping = changed
        self.swap_state = SwapState.SENT
        self.host.swap(changed, self.version)

    def _is_missing(self, name: str, now_ns: int) -> bool:
        timeout_ns = self.settings.replica_timeout_ns
        if now_ns - self._well_ns.setdefault(name, now_ns) > timeout_ns:
            return True
        standby = self.standbys.get(name)
        if standby is None:
            # A connection that was reset is not waited for while publishers wait.
            return name in self._was_here and self.stalled_since_ns is not None
        return (
            now_ns - standby.received_ns > timeout_ns
            or self.log.position - standby.written > self.settings.max_lag_bytes
        )

    def _has_caught_up(self, name: str, now_ns: int) -> bool:
        standby = self.standbys.get(name)
        has_it = (
            standby is not None
            and standby.is_whole
            and now_ns - standby.received_ns <= self.settings.replica_timeout_ns
            and self.log.position - standby.written <= self.settings.joining_lag_bytes
            # One that gets no further would leave and come without end.
            and self._age_ns(self._reached_by(standby), now_ns)
            <= self.settings.replica_timeout_ns // 2
        )
        if has_it:
            self._well_ns[name] = now_ns
        return has_it

    # the document

    def polled(self, seen: Seen, began_ns: int, now_ns: int) -> None:
        """Take in the document of this epoch, which names this process as its primary.

        Args:
            began_ns: when the poll began that has read it.
        """
        replica_set = seen.replica_set
        assert replica_set is not None and replica_set.epoch == self.epoch
        self._see_time(now_ns)
        if self._woke_ns is not None and began_ns >= self._woke_ns:
            self._woke_ns = None
            self._count(now_ns)
        if self.swap_state is SwapState.SENT or seen.version < self.version:
            return  # It was read before the swap.
        if seen.version > self.version:
            # The version that a swap named is gone: it was applied, or never will be.
            self._settled(replica_set, seen.version, now_ns)
        elif self.swap_state is SwapState.UNCLEAR:
            self._swap(replica_set.touched())

    def swapped(self, swapping: ReplicaSet, version: int | None, now_ns: int) -> None:
        """A swap gave the document a version; None where another change came first, so that a poll
        is due.
        """
        if swapping is not self._swapping:
            return
        assert self.swap_state is SwapState.SENT
        if version is None:
            # That change may be an earlier swap of this replica, whose outcome was unclear.
            self.swap_state = SwapState.UNCLEAR
        else:
            self._settled(swapping, version, now_ns)

    def swap_unclear(self, swapping: ReplicaSet) -> None:
        """The outcome of a swap is not known: it may be applied later."""
        if swapping is self._swapping:
            assert self.swap_state is SwapState.SENT
            self.swap_state = SwapState.UNCLEAR

    @property
    def is_unclear(self) -> bool:
        """Whether a poll is needed to settle a swap."""
        return self.swap_state is SwapState.UNCLEAR

    def _settled(self, replica_set: ReplicaSet, version: int, now_ns: int) -> None:
        self.swap_state = SwapState.SETTLED
        self._swapping = None
        self.replica_set, self.version = replica_set, version
        for name, standby in list(self.standbys.items()):
            if name in replica_set.replicas and replica_set.instance_of(name) == standby.instance:
                continue
            # It was removed or replaced, and what it acknowledges counts for nothing.
            self.standbys.pop(name).link.close()
            self.confirmation.forget(name)
        self.confirmation.min_in_sync = replica_set.min_in_sync
        self.confirmation.end_change(replica_set.quorum)
        self._count(now_ns)

    # handing over

    @property
    def successor(self) -> str | None:
        """The replica that can be primary soonest; None where there is none."""
        ready = [name for name in sorted(self.standbys) if self._is_ready(name)]
        return max(ready, key=lambda name: self.standbys[name].written, default=None)

    def hand_over(self, name: str, now_ns: int) -> None:
        """Make another replica the primary as soon as it has the whole log. Nothing is appended
        meanwhile. The primary gives up after `replica_timeout_ns`.
        """
        assert name in self.replica_set.in_sync and name != self.name
        self.handing_over_to = name
        self._handing_over_since_ns = now_ns
        self.log.refuse_writes(f"replica {name} becomes primary: {PUBLISH_AGAIN}")

    def _hand_over(self, now_ns: int) -> bool:
        """Name the next primary, where one is ready. Returns whether that is under way."""
        if self._take_order(now_ns):
            return True
        name = self.handing_over_to
        if self.log.failed is not None:
            # Nothing can be written here, so the next primary need not have all of it.
            name = self.successor
        elif name is not None and self._hand_over_is_late(now_ns):
            self._give_up_hand_over()
            return self._take_order(now_ns)
        if name is None:
            return False
        has_all = name in self.standbys and self.standbys[name].written == self.log.position
        if self._is_ready(name) and (has_all or self.log.failed is not None):
            self._swap(self.replica_set.elected(name))
        return True

    def _hand_over_is_late(self, now_ns: int) -> bool:
        return now_ns - self._handing_over_since_ns > self.settings.replica_timeout_ns

    def _give_up_hand_over(self) -> None:
        self.handing_over_to = None
        self._has_given_up = True
        self.log.accept_writes()

    def _take_order(self, now_ns: int) -> bool:
        """Begin to hand over where an operator asks for it. Returns whether the document is to
        change, as that replica cannot be primary.
        """
        name = self.replica_set.hand_over_to
        if name is None or self.handing_over_to is not None or self.log.failed is not None:
            self._ordered_since_ns = now_ns
            self._has_given_up = self._has_given_up and name is not None
            return False
        may_be = name != self.name and name in self.replica_set.in_sync and not self._has_given_up
        if may_be and self._is_ready(name):
            self.hand_over(name, now_ns)
            return False
        if may_be and now_ns - self._ordered_since_ns <= self.settings.replica_timeout_ns:
            return False  # It connects in a moment.
        self._swap(self.replica_set.with_hand_over(None))
        return True

    def _is_ready(self, name: str) -> bool:
        standby = self.standbys.get(name)
        return standby is not None and standby.is_whole and name in self.replica_set.in_sync
