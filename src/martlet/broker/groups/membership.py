"""Membership: the members of a group, and the queues of its topic that each member holds.

A strategy (`martlet.allocation`) assigns the queues. A queue that is assigned to another member
moves only when its holder has released it, so no two members hold it at once::

    free ---grant---> held ---assigned to another---> revoked ---released-----------> free
                        ^                                |  ---holder's lease ends--> free
                        +------assigned to it again------+

A holder that does not release a revoked queue within its lease loses it. A member without a call
within its lease loses all its queues. A member that has lost a queue may no longer commit offsets
in it. Messages that it handled and did not commit go to the next holder again.

Brokers do not communicate with each other, so for a topic with queues at several brokers one member
assigns them all: the leader. Members that are connected to several brokers, or have a strategy of
their own, volunteer; each broker chooses the one that is connected to the most brokers, of these
the one whose name sorts first, and so all brokers choose the same. The leader is notified when
members join or leave, reads the members at each broker, and sends each broker its plan. Queues move
from holder to holder as above::

    no volunteers     the broker's own allocation
    a leader          its plan, adapted when members join and leave
                      queues whose member has left wait for the next plan, at most ``ORPHAN_NS``,
                      and are then allocated by the broker
                      a leader that makes no plan within ``PLAN_NS`` is passed over

Each change has a number, the generation. The broker notifies the members concerned, and a commit
names the generation that its member knows: so a member that lost a queue and got it again cannot
commit for its earlier hold. None of this is journaled: after a restart of the broker the members
join again. Generations begin with the current time, so that no two runs have the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from martlet.allocation import STRATEGIES, GroupMember, TopicQueue, allocate
from martlet.broker.errors import Conflict, NotAMember, TooMany
from martlet.broker.retry import StartedRange
from martlet.broker.schedule import Schedule

MAX_MEMBERS = 1000
"""The maximum number of members of a group."""
CUSTOM = "custom:"
"""The prefix of a strategy that only members know."""
PLAN_NS = 10_000_000_000
ORPHAN_NS = 1_000_000_000
_MILLISECOND_NS = 1_000_000


@dataclass(slots=True, eq=False)
class GroupConsumer:
    """A consumer of a group."""

    id: str
    """Its name in the group: its client id, with a number if that is not unique."""
    client_id: str
    """The name that it chose."""
    address: str
    room: str
    """The machine room that it declares."""
    requested: Sequence[int]
    """The queues that it requests, for strategies that use them."""
    lease_ns: int
    """It is lost after this time without a call."""
    owner: object
    """The connection of its calls; None if any connection may use its id."""
    since_ns: int
    """When it joined."""
    lease_until_ns: int
    """When it is lost, without a further call."""
    changed: int = 0
    """The generation in which its queues last changed."""
    held: dict[int, Holding] = field(default_factory=dict)
    watchers: dict[Callable[[], None], None] = field(default_factory=dict)
    """Called when its queues change, or it is removed."""
    is_gone: bool = False
    name: str = ""
    """Its name at all brokers; empty if it sent none."""
    brokers: int = 0
    """The number of brokers that it is connected to, if it volunteers to lead; else 0."""
    started: dict[int, StartedRange] = field(default_factory=dict)
    """The messages that it has started, by queue, if it announces them."""

    @property
    def revoked(self) -> list[int]:
        """The queues that it must release."""
        return sorted(queue for queue, one in self.held.items() if one.until_ns is not None)

    @property
    def trace_name(self) -> str:
        """Its name in a trace."""
        return f"{self.id} {self.address}"

    def notify(self) -> None:
        """Call the watchers."""
        for watcher in list(self.watchers):
            watcher()


@dataclass(slots=True, eq=False)
class Holding:
    """A member's hold on a queue."""

    member: GroupConsumer
    since: int
    """The generation in which it got the queue."""
    until_ns: int | None = None
    """When it loses a revoked queue at the latest; None if not revoked."""


@dataclass(frozen=True)
class AllocatedTopic:
    """The queues to allocate."""

    topic: str
    broker: str
    """The broker, as ``host:port``."""
    room: str
    """The broker's machine room."""
    count: int

    @cached_property
    def queues(self) -> tuple[TopicQueue, ...]:
        """All queues."""
        return tuple(TopicQueue(self.broker, n, self.room) for n in range(self.count))


class Membership:
    """The members of one group. Some strategies hash the topic's name; the first generation is
    above those of all earlier runs, by default the time.
    """

    def __init__(
        self,
        topic: str,
        clock: Callable[[], int],
        schedule: Schedule,
        first_generation: int | None = None,
    ) -> None:
        self.members: dict[str, GroupConsumer] = {}
        self.holders: dict[int, Holding] = {}
        """The holds, by queue."""
        self.strategy = "sticky"
        self.allocated = AllocatedTopic(topic, "", "", 0)
        self.generation = (
            clock() // _MILLISECOND_NS if first_generation is None else first_generation
        )
        self.roster = self.generation
        """The generation in which members joined or left, or the queues to allocate changed."""
        self.leader: GroupConsumer | None = None
        self.targets: dict[int, GroupConsumer] = {}
        """The member to which each queue is assigned."""
        self._plan: dict[int, GroupConsumer | None] | None = None
        """The member, or none, to which the leader's plan assigns each queue; missing ones wait for
        the next plan.
        """
        self._plan_due_ns: int | None = None
        """When the leader is passed over."""
        self._orphans_due_ns: int | None = None
        """When queues that wait for a plan are allocated."""
        self.on_lost: Callable[[GroupConsumer], None] = lambda member: None
        """Called with a lost member while it still has its queues."""
        self._concerned: dict[GroupConsumer, None] = {}
        """Members to notify of changes."""
        self._clock = clock
        self._alarm = schedule.alarm(self._expire)

    def __len__(self) -> int:
        return len(self.members)

    # requests of members

    def join(
        self,
        client_id: str,
        *,
        lease_ns: int,
        strategy: str = "sticky",
        room: str = "",
        queues: Sequence[int] = (),
        address: str = "",
        owner: object = None,
    ) -> GroupConsumer:
        """Add a member and reassign the queues.

        Raises:
            TooMany: the group has the maximum number of members.
            Conflict: the other members use another strategy.
        """
        if len(self.members) >= MAX_MEMBERS:
            raise TooMany(f"the group has {MAX_MEMBERS} members, and that is the limit")
        if self.members and strategy != self.strategy:
            raise Conflict(
                f"the group's members share their queues by {self.strategy!r}, and not by"
                f" {strategy!r}: all of them must name the same strategy"
            )
        now_ns = self._clock()
        id, number = client_id, 1
        while id in self.members:
            number += 1
            id = f"{client_id}#{number}"
        member = GroupConsumer(
            id, client_id, address, room, tuple(queues), lease_ns, owner, now_ns, now_ns + lease_ns
        )
        if not self.members:
            self._plan = {} if strategy.startswith(CUSTOM) else None
        self.strategy = strategy
        self.members[id] = member
        self._begin_roster()
        self._alarm.at(member.lease_until_ns)
        return member

    def volunteer(self, member: GroupConsumer, name: str, brokers: int) -> None:
        """Register a member, by its name at all brokers, as a volunteer to lead, or unregister it
        if it is connected to 0 ``brokers``.
        """
        before, member.brokers = member.brokers, brokers
        if name != member.name or (before != brokers and self._first_volunteer() != self.leader):
            member.name = name
            self._begin_roster()

    def plan(
        self, member: GroupConsumer, roster: int, count: int, queues: Mapping[str, Iterable[int]]
    ) -> None:
        """Assign the queues by the leader's plan.

        Args:
            roster: the roster that it is based on.
            count: the number of queues at that time.
            queues: the queues of each member, by its id; the others are assigned to no member.

        Raises:
            Conflict: another member leads, or none; or a queue is named twice, or unknown.
        """
        if member is not self.leader:
            leader = f"{self.leader.id!r} does" if self.leader is not None else "no member does"
            raise Conflict(f"{member.id!r} does not lead the group, {leader}")
        plan: dict[int, GroupConsumer | None] = dict.fromkeys(
            range(min(count, self.allocated.count))
        )
        planned: set[int] = set()
        for id, numbers in queues.items():
            for number in numbers:
                if number in planned or number not in plan:
                    raise Conflict(f"queue {number} is planned twice, or is not there")
                planned.add(number)
                plan[number] = self.members.get(id)
        # The queues of a member that has left meanwhile wait for the next plan.
        gone = {number for number in planned if plan[number] is None}
        self._plan = {number: one for number, one in plan.items() if number not in gone}
        self._plan_due_ns = None
        if roster != self.roster:
            self._plan_due_ns = self._clock() + PLAN_NS
            self._alarm.at(self._plan_due_ns)
        self.generation += 1
        self._share_out()

    def find(self, id: str, owner: object) -> GroupConsumer:
        """Return the member of that id and renew its lease. Raises NotAMember."""
        member = self.members.get(id)
        if member is None or (member.owner is not None and member.owner is not owner):
            raise NotAMember(
                f"{id!r} is no member of the group (any more), as far as this connection goes:"
                " join again"
            )
        self.renew(member)
        return member

    def renew(self, member: GroupConsumer) -> None:
        """Renew a member's lease."""
        member.lease_until_ns = self._clock() + member.lease_ns

    def holds(self, member: GroupConsumer, queue: int, generation: int) -> bool:
        """Whether a member that knows a generation holds a queue."""
        holding = member.held.get(queue)
        return holding is not None and holding.since <= generation

    def release(self, member: GroupConsumer, queues: Iterable[int]) -> None:
        """Release some queues of a member; queues that it does not hold are ignored."""
        freed = [queue for queue in queues if queue in member.held]
        if freed:
            self.generation += 1
            self._free(freed)
            self._grant(freed)

    def leave(self, member: GroupConsumer) -> None:
        """Remove a member and release its queues."""
        if self._remove(member):
            self._begin_roster()

    def lose(self, member: GroupConsumer) -> None:
        """Remove a member that was lost without leaving."""
        if not member.is_gone:
            self.on_lost(member)
            self.leave(member)

    # changes of the group

    def resize(self, allocated: AllocatedTopic) -> None:
        """Handle a change of the queues to allocate: the topic has more."""
        if allocated != self.allocated:
            self.allocated = allocated
            self._begin_roster()

    def dismiss(self) -> None:
        """Remove all members."""
        members = list(self.members.values())
        for member in members:
            self._remove(member)
        self._begin_roster()
        self._alarm.cancel()

    def _expire(self, now_ns: int) -> int | None:
        """Handle ended leases. Returns when to run again."""
        gone = [m for m in self.members.values() if m.lease_until_ns <= now_ns]
        for member in gone:
            self.on_lost(member)
            self._remove(member)
        late = [q for q, one in self.holders.items() if one.until_ns and one.until_ns <= now_ns]
        if late:
            self.generation += 1
            self._free(late)
        is_slow = self.leader is not None and _is_over(self._plan_due_ns, now_ns)
        if is_slow and self.leader is not None:
            self.leader.brokers = 0
        if gone or is_slow:
            self._begin_roster()
        elif _is_over(self._orphans_due_ns, now_ns):
            self.generation += 1
            self._share_out()
        elif late:
            self._grant(late)
        times = [member.lease_until_ns for member in self.members.values()]
        times += [one.until_ns for one in self.holders.values() if one.until_ns is not None]
        times += [due for due in (self._plan_due_ns, self._orphans_due_ns) if due is not None]
        return min(times, default=None)

    # assignment

    def _remove(self, member: GroupConsumer) -> bool:
        if member.is_gone:
            return False
        member.is_gone = True
        del self.members[member.id]
        for queue in member.held:
            del self.holders[queue]
        member.held.clear()
        member.notify()
        return True

    def _first_volunteer(self) -> GroupConsumer | None:
        volunteers = [member for member in self.members.values() if member.brokers]
        return min(volunteers, key=lambda m: (-m.brokers, m.name, m.id), default=None)

    def _begin_roster(self) -> None:
        """Begin a generation, since members joined or left, or the queues to allocate changed."""
        self.generation += 1
        self.roster = self.generation
        before, self.leader = self.leader, self._first_volunteer()
        if self.leader is not before and before is not None and not before.is_gone:
            self._concern(before)
        if self.leader is not None:
            self._concern(self.leader)
            if self._plan_due_ns is None or self.leader is not before:
                self._plan_due_ns = self._clock() + PLAN_NS
                self._alarm.at(self._plan_due_ns)
        else:
            self._plan_due_ns = None
            if self._plan or not self.strategy.startswith(CUSTOM):
                self._plan = None
        self._share_out()

    def _share_out(self) -> None:
        """Assign the queues by the plan, or by the strategy, and grant the free ones."""
        if self._plan is None:
            held: dict[str, list[TopicQueue]] = {}
            for queue, member in self.targets.items():
                held.setdefault(member.id, []).append(self.allocated.queues[queue])
            self.targets = self._allocated(self.allocated.queues, held, {})
            self._orphans_due_ns = None
        else:
            self.targets = self._planned(self._plan)
        now_ns = self._clock()
        for queue, holding in self.holders.items():
            member = holding.member
            stays = self.targets.get(queue) is member
            if stays != (holding.until_ns is None):
                holding.until_ns = None if stays else now_ns + member.lease_ns
                if holding.until_ns is not None:
                    self._alarm.at(holding.until_ns)
                self._concern(member)
        self._grant(self.targets)

    def _allocated(
        self,
        queues: Sequence[TopicQueue],
        held: Mapping[str, Sequence[TopicQueue]],
        elsewhere: Mapping[str, int],
    ) -> dict[int, GroupConsumer]:
        """Allocate some queues by the strategy; by ``sticky`` if only members know it."""
        candidates = [
            GroupMember(
                m.id, m.room, m.requested, held=held.get(m.id, ()), elsewhere=elsewhere.get(m.id, 0)
            )
            for m in self.members.values()
        ]
        strategy = self.strategy if self.strategy in STRATEGIES else "sticky"
        assignment = allocate(strategy, self.allocated.topic, queues, candidates)
        return {q.number: self.members[id] for id, mine in assignment.items() for q in mine}

    def _planned(self, plan: dict[int, GroupConsumer | None]) -> dict[int, GroupConsumer]:
        """Return the assignment by the plan; a queue whose member has left stays, or waits."""
        orphans: list[int] = []
        for queue in range(self.allocated.count):
            if queue in plan:
                member = plan[queue]
                if member is None or not member.is_gone:
                    continue
                del plan[queue]
            if queue in self.holders:
                plan[queue] = self.holders[queue].member
            else:
                orphans.append(queue)
        targets = {queue: one for queue, one in plan.items() if one is not None}
        if not orphans or not self.members:
            self._orphans_due_ns = None
        elif self._orphans_due_ns is None:
            self._orphans_due_ns = self._clock() + ORPHAN_NS
            self._alarm.at(self._orphans_due_ns)
        elif _is_over(self._orphans_due_ns, self._clock()):
            self._orphans_due_ns = None
            loads = Counter(member.id for member in targets.values())
            granted = self._allocated(
                [self.allocated.queues[queue] for queue in orphans], {}, loads
            )
            plan |= dict.fromkeys(orphans) | granted
            targets |= granted
        return targets

    def _free(self, queues: Iterable[int]) -> None:
        for queue in queues:
            member = self.holders.pop(queue).member
            del member.held[queue]
            member.started.pop(queue, None)
            self._concern(member)

    def _grant(self, queues: Iterable[int]) -> None:
        """Grant free queues to the members assigned to them, and notify all members concerned by
        changes since the last call.
        """
        for queue in queues:
            member = self.targets.get(queue)
            if member is not None and queue not in self.holders:
                self.holders[queue] = member.held[queue] = Holding(member, self.generation)
                self._concern(member)
        concerned, self._concerned = self._concerned, {}
        for member in concerned:
            member.notify()

    def _concern(self, member: GroupConsumer) -> None:
        member.changed = self.generation
        self._concerned[member] = None


def _is_over(due_ns: int | None, now_ns: int) -> bool:
    return due_ns is not None and due_ns <= now_ns
