"""Membership: who is in a group, and which of its topic's queues each member has.

A strategy (`martlet.broker.allocation`) says who is to have which queue.  A queue that is to change
hands passes only when its holder has let go of it, so no two members have it at once::

    nobody ---grant---> held ---another is to have it---> revoked ---released------------> nobody
                          ^                                  |  ---holder's time is over--> nobody
                          +----it is to keep it after all----+

A holder that does not let go of a revoked queue within its lease loses it, as does one of which
nothing is heard for so long, with all that it has; who has lost a queue may not commit offsets in
it any more.  What of it was handled and not committed goes to the next holder again.

Each change has a number, the generation.  A member is told of those that concern it, and says with
what it commits which one it knows of: so whoever lost a queue and got it again cannot be taken for
the one that it was before.  Nothing of all this is in the journal: after a restart of the broker
the members join again.  Generations begin with the time, so that no two runs have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from martlet.broker.allocation import Candidate, Place, allocate
from martlet.broker.errors import Conflict, NotAMember, TooMany

if TYPE_CHECKING:
    from martlet.broker.schedule import Schedule

MOST_MEMBERS = 1000
"""Of one group."""
_MILLISECOND_NS = 1_000_000


@dataclass(slots=True, eq=False)
class Member:
    """One consumer of a group.

    Attributes:
        id: its name in the group: its client's, and a number where another has that.
        client_id: what it calls itself.
        address: where it comes from.
        room: the machine room it says it is in.
        wanted: the queues that it wants, where the strategy asks.
        lease_ns: after so long without a word it has gone.
        owner: what its calls come by; None where anybody may speak for it.
        since_ns: when it joined.
        lease_until_ns: when it has gone, if nothing is heard of it.
        changed: the generation in which what it has changed last.
        held: its queues.
        watchers: called when what it has changes, or it is no member any more.
        is_gone: whether that is so.
    """

    id: str
    client_id: str
    address: str
    room: str
    wanted: Sequence[int]
    lease_ns: int
    owner: object
    since_ns: int
    lease_until_ns: int
    changed: int = 0
    held: dict[int, Holding] = field(default_factory=dict)
    watchers: dict[Callable[[], None], None] = field(default_factory=dict)
    is_gone: bool = False

    @property
    def revoked(self) -> list[int]:
        """The queues that it is to let go of."""
        return sorted(queue for queue, one in self.held.items() if one.until_ns is not None)

    @property
    def trace_name(self) -> str:
        """Who it is, in a trail."""
        return f"{self.id} {self.address}"

    def tell(self) -> None:
        """Call those who watch."""
        for watcher in list(self.watchers):
            watcher()


@dataclass(slots=True, eq=False)
class Holding:
    """That a member has a queue.

    Attributes:
        member: who.
        since: the generation in which it got it.
        until_ns: when it loses it at the latest, since another is to have it; None where not.
    """

    member: Member
    since: int
    until_ns: int | None = None


class Membership:
    """The members of one group.

    Args:
        topic: the topic's name, which some strategies count in.
        clock: nanoseconds since 1970.
        schedule: calls when a lease is over.
    """

    def __init__(self, topic: str, clock: Callable[[], int], schedule: Schedule) -> None:
        self.members: dict[str, Member] = {}
        self.holders: dict[int, Holding] = {}
        """By queue."""
        self.strategy = "sticky"
        self.place = Place(topic, "", "", 0)
        self.generation = clock() // _MILLISECOND_NS
        self._targets: dict[int, Member] = {}
        self._concerned: dict[Member, None] = {}
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
    ) -> Member:
        """Take a member in; the queues are shared out anew.

        Raises:
            TooMany: there are as many as may be.
            Conflict: the others share their queues by another strategy.
        """
        if len(self.members) >= MOST_MEMBERS:
            raise TooMany(f"the group has {MOST_MEMBERS} members, and that is the limit")
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
        member = Member(
            id, client_id, address, room, tuple(queues), lease_ns, owner, now_ns, now_ns + lease_ns
        )
        self.strategy = strategy
        self.members[id] = member
        self._share_out()
        self._alarm.at(member.lease_until_ns)
        return member

    def find(self, id: str, owner: object) -> Member:
        """The member of that name; that it is spoken of renews its lease. Raises NotAMember."""
        member = self.members.get(id)
        if member is None or (member.owner is not None and member.owner is not owner):
            raise NotAMember(
                f"{id!r} is no member of the group (any more), as far as this connection goes:"
                " join again"
            )
        self.renew(member)
        return member

    def renew(self, member: Member) -> None:
        """It is there."""
        member.lease_until_ns = self._clock() + member.lease_ns

    def holds(self, member: Member, queue: int, generation: int) -> bool:
        """Whether a member that knows of a generation has a queue."""
        holding = member.held.get(queue)
        return holding is not None and holding.since <= generation

    def release(self, member: Member, queues: Iterable[int]) -> None:
        """It has let go of some queues; those that it did not have are passed over."""
        freed = [queue for queue in queues if queue in member.held]
        if freed:
            self.generation += 1
            self._free(freed)
            self._grant(freed)

    def leave(self, member: Member) -> None:
        """It has gone, and lets go of all that it had."""
        if self._remove(member):
            self._share_out()

    # what happens to them

    def resize(self, place: Place) -> None:
        """What is shared out has changed: the topic has got more queues."""
        if place != self.place:
            self.place = place
            self._share_out()

    def dismiss(self) -> None:
        """None of them is a member any more."""
        members = list(self.members.values())
        for member in members:
            self._remove(member)
        self.generation += 1
        self._targets = {}
        self._alarm.cancel()

    def _expire(self, now_ns: int) -> int | None:
        """See whose time is over. Returns when to look again."""
        gone = [m for m in self.members.values() if m.lease_until_ns <= now_ns]
        for member in gone:
            self._remove(member)
        late = [q for q, one in self.holders.items() if one.until_ns and one.until_ns <= now_ns]
        if late:
            self.generation += 1
            self._free(late)
        if gone:
            self._share_out()
        elif late:
            self._grant(late)
        times = [member.lease_until_ns for member in self.members.values()]
        times += [one.until_ns for one in self.holders.values() if one.until_ns is not None]
        return min(times, default=None)

    # who has what

    def _remove(self, member: Member) -> bool:
        if member.is_gone:
            return False
        member.is_gone = True
        del self.members[member.id]
        for queue in member.held:
            del self.holders[queue]
        member.held.clear()
        member.tell()
        return True

    def _share_out(self) -> None:
        """Begin a generation with what the strategy says of those who are there now."""
        self.generation += 1
        wanted: dict[str, list[int]] = {}
        for queue, member in self._targets.items():
            wanted.setdefault(member.id, []).append(queue)
        candidates = [
            Candidate(m.id, m.room, m.wanted, wanted.get(m.id, ())) for m in self.members.values()
        ]
        assignment = allocate(self.strategy, self.place, candidates)
        self._targets = {
            queue: self.members[id] for id, queues in assignment.items() for queue in queues
        }
        now_ns = self._clock()
        for queue, holding in self.holders.items():
            member = holding.member
            stays = self._targets.get(queue) is member
            if stays != (holding.until_ns is None):
                holding.until_ns = None if stays else now_ns + member.lease_ns
                if holding.until_ns is not None:
                    self._alarm.at(holding.until_ns)
                self._concern(member)
        self._grant(self._targets)

    def _free(self, queues: Iterable[int]) -> None:
        for queue in queues:
            member = self.holders.pop(queue).member
            del member.held[queue]
            self._concern(member)

    def _grant(self, queues: Iterable[int]) -> None:
        """Give those of some queues that nobody has to those who are to have them; tell all whom
        the changes since the last time concern.
        """
        for queue in queues:
            member = self._targets.get(queue)
            if member is not None and queue not in self.holders:
                self.holders[queue] = member.held[queue] = Holding(member, self.generation)
                self._concern(member)
        concerned, self._concerned = self._concerned, {}
        for member in concerned:
            member.tell()

    def _concern(self, member: Member) -> None:
        member.changed = self.generation
        self._concerned[member] = None
