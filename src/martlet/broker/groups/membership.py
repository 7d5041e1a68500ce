"""Membership: who is in a group, and which of its topic's queues each member has.

A strategy (`martlet.allocation`) says who is to have which queue.  A queue that is to change
hands passes only when its holder has let go of it, so no two members have it at once::

    nobody ---grant---> held ---another is to have it---> revoked ---released------------> nobody
                          ^                                  |  ---holder's time is over--> nobody
                          +----it is to keep it after all----+

A holder that does not let go of a revoked queue within its lease loses it, as does one of which
nothing is heard for so long, with all that it has; who has lost a queue may not commit offsets in
it any more.  What of it was handled and not committed goes to the next holder again.

Brokers do not talk to each other, so where a topic's queues are at several, a member shares them
out: the leader.  Members that are at several brokers, or have a strategy of their own, volunteer;
each broker takes the one that is at most brokers, of these the one whose name sorts first, and so
all of them take the same.  It is told when members come and go, sees at each broker which there
are, and tells each broker its plan.  Queues pass from holder to holder as ever::

    no volunteers     the broker's own allocation
    a leader          its plan, and what of that is left when members come and go
                      queues whose member has gone wait for the next plan, ``ORPHAN_NS`` at most,
                      and are then allocated by the broker
                      a leader that makes no plan within ``PLAN_NS`` is passed over

Each change has a number, the generation.  A member is told of those that concern it, and says with
what it commits which one it knows of: so whoever lost a queue and got it again cannot be taken for
the one that it was before.  Nothing of all this is in the journal: after a restart of the broker
the members join again.  Generations begin with the time, so that no two runs have the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from martlet.allocation import STRATEGIES, GroupMember, TopicQueue, allocate
from martlet.broker.errors import Conflict, NotAMember, TooMany
from martlet.broker.groups.member import GroupConsumer, Holding

if TYPE_CHECKING:
    from martlet.broker.schedule import Schedule

MAX_MEMBERS = 1000
"""Of one group."""
CUSTOM = "custom:"
"""What the name of a strategy begins with that only members know."""
PLAN_NS = 10_000_000_000
ORPHAN_NS = 1_000_000_000
_MILLISECOND_NS = 1_000_000


@dataclass(frozen=True)
class AllocatedTopic:
    """What is allocated.

    Attributes:
        topic: its name.
        broker: the broker, as ``host:port``.
        room: the broker's machine room.
        count: how many queues there are.
    """

    topic: str
    broker: str
    room: str
    count: int

    @cached_property
    def queues(self) -> tuple[TopicQueue, ...]:
        """All of them."""
        return tuple(TopicQueue(self.broker, n, self.room) for n in range(self.count))


class Membership:
    """The members of one group.

    Args:
        topic: the topic's name, which some strategies count in.
        clock: nanoseconds since 1970.
        schedule: calls when a lease is over.
    """

    def __init__(self, topic: str, clock: Callable[[], int], schedule: Schedule) -> None:
        self.members: dict[str, GroupConsumer] = {}
        self.holders: dict[int, Holding] = {}
        """By queue."""
        self.strategy = "sticky"
        self.place = AllocatedTopic(topic, "", "", 0)
        self.generation = clock() // _MILLISECOND_NS
        self.roster = self.generation
        """The generation in which members came or went, or what is shared out changed."""
        self.leader: GroupConsumer | None = None
        self.targets: dict[int, GroupConsumer] = {}
        """Which member is to have which queue."""
        self._plan: dict[int, GroupConsumer | None] | None = None
        """Which member is to have it by the leader's plan, None for none; a queue of which it says
        nothing waits for the next one.
        """
        self._plan_due_ns: int | None = None
        """When the leader is passed over."""
        self._orphans_due_ns: int | None = None
        """When queues that wait for a plan are allocated."""
        self.on_lost: Callable[[GroupConsumer], None] = lambda member: None
        """Told of a member that goes without leaving, while it still has its queues."""
        self._concerned: dict[GroupConsumer, None] = {}
        """Those who are to be told of changes."""
        self._clock = clock
        self._alarm = schedule.alarm(self._expire)

    def __len__(self) -> int:
        return len(self.members)

    # what members ask

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
        """Take a member in; the queues are shared out anew.

        Raises:
            TooMany: there are as many as may be.
            Conflict: the others share their queues by another strategy.
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
        """It would lead, unless ``brokers`` is 0.

        Args:
            member: which.
            name: what it is called at all brokers.
            brokers: at how many it is.
        """
        before, member.brokers = member.brokers, brokers
        if name != member.name or (before != brokers and self._first_volunteer() != self.leader):
            member.name = name
            self._begin_roster()

    def plan(
        self, member: GroupConsumer, roster: int, count: int, queues: Mapping[str, Iterable[int]]
    ) -> None:
        """Share the queues out as the leader says.

        Args:
            member: the leader.
            roster: the one by which it has planned.
            count: how many queues there were then.
            queues: those of each member, by its id; of the others none is to have them.

        Raises:
            Conflict: another member leads, or none does; or a queue is named twice, or unknown.
        """
        if member is not self.leader:
            leader = f"{self.leader.id!r} does" if self.leader is not None else "no member does"
            raise Conflict(f"{member.id!r} does not lead the group, {leader}")
        plan: dict[int, GroupConsumer | None] = dict.fromkeys(range(min(count, self.place.count)))
        planned: set[int] = set()
        for id, numbers in queues.items():
            for number in numbers:
                if number in planned or number not in plan:
                    raise Conflict(f"queue {number} is planned twice, or is not there")
                planned.add(number)
                plan[number] = self.members.get(id)
        # A member that has gone meanwhile leaves its queues to the next plan.
        gone = {number for number in planned if plan[number] is None}
        self._plan = {number: one for number, one in plan.items() if number not in gone}
        self._plan_due_ns = None
        if roster != self.roster:
            self._plan_due_ns = self._clock() + PLAN_NS
            self._alarm.at(self._plan_due_ns)
        self.generation += 1
        self._share_out()

    def find(self, id: str, owner: object) -> GroupConsumer:
        """The member of that name; that it is spoken of renews its lease. Raises NotAMember."""
        member = self.members.get(id)
        if member is None or (member.owner is not None and member.owner is not owner):
            raise NotAMember(
                f"{id!r} is no member of the group (any more), as far as this connection goes:"
                " join again"
            )
        self.renew(member)
        return member

    def renew(self, member: GroupConsumer) -> None:
        """It is there."""
        member.lease_until_ns = self._clock() + member.lease_ns

    def holds(self, member: GroupConsumer, queue: int, generation: int) -> bool:
        """Whether a member that knows of a generation has a queue."""
        holding = member.held.get(queue)
        return holding is not None and holding.since <= generation

    def release(self, member: GroupConsumer, queues: Iterable[int]) -> None:
        """It has let go of some queues; those that it did not have are passed over."""
        freed = [queue for queue in queues if queue in member.held]
        if freed:
            self.generation += 1
            self._free(freed)
            self._grant(freed)

    def leave(self, member: GroupConsumer) -> None:
        """It has gone, and lets go of all that it had."""
        if self._remove(member):
            self._begin_roster()

    def lose(self, member: GroupConsumer) -> None:
        """It has gone without leaving."""
        if not member.is_gone:
            self.on_lost(member)
            self.leave(member)

    # what happens to them

    def resize(self, place: AllocatedTopic) -> None:
        """What is shared out has changed: the topic has got more queues."""
        if place != self.place:
            self.place = place
            self._begin_roster()

    def dismiss(self) -> None:
        """None of them is a member any more."""
        members = list(self.members.values())
        for member in members:
            self._remove(member)
        self._begin_roster()
        self._alarm.cancel()

    def _expire(self, now_ns: int) -> int | None:
        """See whose time is over. Returns when to look again."""
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

    # who has what

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
        """Members have come or gone, or what is shared out has changed: begin a generation."""
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
        """Have queues held by those who are to have them by the plan, or by the strategy."""
        if self._plan is None:
            held: dict[str, list[TopicQueue]] = {}
            for queue, member in self.targets.items():
                held.setdefault(member.id, []).append(self.place.queues[queue])
            self.targets = self._allocated(self.place.queues, held, {})
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
        """What the strategy says of some queues; ``sticky`` where only members know it."""
        candidates = [
            GroupMember(
                m.id, m.room, m.wanted, held=held.get(m.id, ()), elsewhere=elsewhere.get(m.id, 0)
            )
            for m in self.members.values()
        ]
        strategy = self.strategy if self.strategy in STRATEGIES else "sticky"
        assignment = allocate(strategy, self.place.topic, queues, candidates)
        return {q.number: self.members[id] for id, mine in assignment.items() for q in mine}

    def _planned(self, plan: dict[int, GroupConsumer | None]) -> dict[int, GroupConsumer]:
        """What the plan says; a queue whose member has gone stays with its holder, or waits."""
        orphans: list[int] = []
        for queue in range(self.place.count):
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
            found = self._allocated([self.place.queues[queue] for queue in orphans], {}, loads)
            plan |= dict.fromkeys(orphans) | found
            targets |= found
        return targets

    def _free(self, queues: Iterable[int]) -> None:
        for queue in queues:
            member = self.holders.pop(queue).member
            del member.held[queue]
            member.started.pop(queue, None)
            self._concern(member)

    def _grant(self, queues: Iterable[int]) -> None:
        """Give those of some queues that nobody has to those who are to have them; tell all whom
        the changes since the last time concern.
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
