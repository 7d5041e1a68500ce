"""Allocation: assigns a topic's queues to the members of a group.

All but the first are RocketMQ's strategies, by their formulas.  Members are sorted by their ids,
and queues by their brokers and numbers, over all brokers of the topic::

    queues 0..7, members a b c     averagely              a: 0 1 2   b: 3 4 5   c: 6 7
                                   averagely-by-circle    a: 0 3 6   b: 1 4 7   c: 2 5
                                   consistent-hash        by where their hashes lie on a circle
                                   by-config              the queues that each member names
                                   by-machine-room        only members in the broker's machine room
                                   machine-room-nearby    the same; all, in a room without members
                                   sticky                 as before, with as few moves as possible

Every strategy but ``by-config`` and ``by-machine-room`` gives each queue to exactly one member.
``sticky`` is the default: when a member joins or leaves, only the queues that must move do, so that
the other members keep the messages that they have fetched.

A member that cannot reach a broker gets no queue there. Its share goes to the members that reach
that broker and have the fewest queues.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import md5
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class TopicQueue(NamedTuple):
    """A queue of a topic that may have queues at several brokers.

    Attributes:
        broker: the broker that holds it, as its advertised ``host:port``.
        number: its number there.
        room: the broker's machine room.
    """

    broker: str
    number: int
    room: str = ""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, as input of a strategy.

    Attributes:
        id: its name in the group; members are sorted by it.
        room: the machine room (or zone) that it declares.
        queues: the numbers of the queues that it names, for ``by-config``.
        held: the queues that it has now, of those to assign.
        elsewhere: the number of its queues that are not assigned now.
        brokers: the brokers that it reaches; None for all.
        client_id: the name that it chose.
        address: its network address.
    """

    id: str
    room: str = ""
    queues: Sequence[int] = field(default=())
    held: Sequence[TopicQueue] = field(default=())
    elsewhere: int = 0
    brokers: frozenset[str] | None = None
    client_id: str = ""
    address: str = ""

    def reaches(self, broker: str) -> bool:
        """Whether it may have queues at that broker."""
        return self.brokers is None or broker in self.brokers


Queues = Sequence[TopicQueue]
Members = Sequence[GroupMember]
Assignment = dict[str, list[TopicQueue]]
"""By member, the queues it gets, sorted; every member is included."""
VIRTUAL_NODES = 10
"""The number of points of each member on the circle of ``consistent-hash``."""


def allocate(
    strategy: str, topic: str, queues: Iterable[TopicQueue], members: Members
) -> Assignment:
    """Assign the queues by a strategy of `STRATEGIES`; without members the assignment is empty."""
    ranked = sorted(members, key=lambda member: member.id)
    assignment: Assignment = {member.id: [] for member in ranked}
    if ranked:
        every = sorted(queues)
        assignment |= STRATEGIES[strategy](topic, every, ranked)
        if any(member.brokers is not None for member in ranked):
            _within_reach(strategy, assignment, every, ranked)
    return assignment


def _within_reach(strategy: str, assignment: Assignment, queues: Queues, members: Members) -> None:
    """Correct the result of a strategy that ignores which brokers a member reaches."""
    if strategy in ("averagely", "averagely-by-circle"):
        assignment |= _sticky("", queues, [replace(m, held=assignment[m.id]) for m in members])
    elif strategy not in ("sticky", "by-config"):
        complete(assignment, queues, members, in_room=strategy == "by-machine-room")


def complete(
    assignment: Assignment, queues: Queues, members: Members, *, in_room: bool = False
) -> Queues:
    """Take queues from members that cannot reach them, and assign free ones to the members with the
    fewest that reach them: only to those of the broker's room where `in_room`. Returns the queues
    assigned.
    """
    taken: set[TopicQueue] = set()
    for member in members:
        mine = [queue for queue in assignment[member.id] if member.reaches(queue.broker)]
        assignment[member.id] = mine
        taken.update(mine)
    loads = {member.id: len(assignment[member.id]) + member.elsewhere for member in members}
    expanded: list[TopicQueue] = []
    for queue in queues:
        if queue not in taken:
            near = [
                member.id
                for member in members
                if member.reaches(queue.broker) and (not in_room or member.room == queue.room)
            ]
            if near:
                least = min(near, key=lambda id: (loads[id], id))
                assignment[least].append(queue)
                loads[least] += 1
                expanded.append(queue)
    for member in members:
        assignment[member.id].sort()
    return expanded


def _averagely(topic: str, queues: Queues, members: Members) -> Assignment:
    """AllocateMessageQueueAveragely: consecutive queues, one more for the first members."""
    size, rest = divmod(len(queues), len(members))
    assignment: Assignment = {}
    at = 0
    for number, member in enumerate(members):
        end = at + size + (number < rest)
        assignment[member.id] = list(queues[at:end])
        at = end
    return assignment


def _by_circle(topic: str, queues: Queues, members: Members) -> Assignment:
    """AllocateMessageQueueAveragelyByCircle: queue k goes to member k mod their count."""
    step = len(members)
    return {m.id: list(queues[number::step]) for number, m in enumerate(members)}


def _by_config(topic: str, queues: Queues, members: Members) -> Assignment:
    """AllocateMessageQueueByConfig: the queues that each names; the first to name one gets it."""
    taken: set[TopicQueue] = set()
    assignment: Assignment = {}
    for member in members:
        named = set(member.queues)
        own = [q for q in queues if q.number in named and q not in taken]
        taken.update(own)
        assignment[member.id] = own
    return assignment


def _by_room(topic: str, queues: Queues, members: Members) -> Assignment:
    """AllocateMessageQueueByMachineRoom: equal runs within a room, the remainder one each."""
    assignment: Assignment = {}
    for room, there in _rooms(queues).items():
        near = [member for member in members if member.room == room]
        size, rest = divmod(len(there), len(near) or 1)
        for number, member in enumerate(near):
            assignment[member.id] = list(there[size * number : size * (number + 1)])
            if number < rest:
                assignment[member.id].append(there[number + size * len(near)])
    return assignment


def _nearby(topic: str, queues: Queues, members: Members) -> Assignment:
    """AllocateMachineRoomNearby: within each room; over all members in rooms without any."""
    assignment: Assignment = {member.id: [] for member in members}
    far: list[TopicQueue] = []
    for room, there in _rooms(queues).items():
        near = [member for member in members if member.room == room]
        if near:
            assignment |= _averagely(topic, there, near)
        else:
            far += there
    for member_id, more in _averagely(topic, sorted(far), members).items():
        assignment[member_id] = sorted(assignment[member_id] + more)
    return assignment


def _rooms(queues: Queues) -> dict[str, list[TopicQueue]]:
    rooms: dict[str, list[TopicQueue]] = {}
    for queue in queues:
        rooms.setdefault(queue.room, []).append(queue)
    return rooms


def _hash(text: str) -> int:
    """Return the first four bytes of MD5, big-endian, as on RocketMQ's circle."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


@lru_cache(maxsize=4096)
def _nodes(member_id: str) -> list[tuple[int, str]]:
    """Return a member's points on the circle."""
    return [(_hash(f"{member_id}-{node}"), member_id) for node in range(VIRTUAL_NODES)]


def _consistent(topic: str, queues: Queues, members: Members) -> Assignment:
    """AllocateMessageQueueConsistentHash: the next virtual node clockwise."""
    nodes = sorted(node for member in members for node in _nodes(member.id))
    hashes = [node[0] for node in nodes]
    assignment: Assignment = {}
    for queue in queues:
        key = f"MessageQueue [topic={topic}, brokerName={queue.broker}, queueId={queue.number}]"
        at = bisect_left(hashes, _hash(key)) % len(nodes)
        assignment.setdefault(nodes[at][1], []).append(queue)
    return assignment


def _sticky(topic: str, queues: Queues, members: Members) -> Assignment:
    """As even as ``averagely``, with as few queues as possible taken from members that have them.

    Each member keeps its queues; free ones go to the members with the fewest; then one queue at a
    time moves from a member to one that has at least two fewer.
    """
    free = dict.fromkeys(queues)
    kept: Assignment = {}
    for member in members:
        mine = [queue for queue in sorted(member.held) if queue in free]
        if member.brokers is not None:
            mine = [queue for queue in mine if member.reaches(queue.broker)]
        for queue in mine:
            del free[queue]
        kept[member.id] = mine
    shares = _Shares(kept, members, dict.fromkeys(queue.broker for queue in queues))
    for queue in free:
        member_id = shares.least(queue.broker)
        if member_id is not None:
            shares.give(member_id, queue)
    while shares.even():
        pass
    for mine in kept.values():
        mine.sort()
    return kept


class _Shares:
    """The queues of each member so far, and the member with the fewest at each broker.

    Args:
        of: the queues of each member; changed here.
        members: all of them.
        brokers: the brokers with queues.
    """

    def __init__(self, of: Assignment, members: Members, brokers: Iterable[str]) -> None:
        self._of = of
        self._loads = {member.id: member.elsewhere + len(of[member.id]) for member in members}
        self._reached = {m.id: [b for b in brokers if m.reaches(b)] for m in members}
        self._heaps: dict[str, list[tuple[int, str]]] = {broker: [] for broker in brokers}
        for member_id, reached in self._reached.items():
            for broker in reached:
                self._heaps[broker].append((self._loads[member_id], member_id))
        for heap in self._heaps.values():
            heapify(heap)

    def give(self, member_id: str, queue: TopicQueue) -> None:
        """Assign a queue to a member."""
        self._of[member_id].append(queue)
        self._count(member_id, 1)

    def _count(self, member_id: str, more: int) -> None:
        self._loads[member_id] += more
        for broker in self._reached[member_id]:
            heappush(self._heaps[broker], (self._loads[member_id], member_id))

    def least(self, broker: str) -> str | None:
        """Return the member with the fewest queues that reaches a broker, if any does."""
        heap = self._heaps[broker]
        while heap and self._loads[heap[0][1]] != heap[0][0]:
            heappop(heap)
        return heap[0][1] if heap else None

    def even(self) -> bool:
        """Move a queue from a member with many to one with few, if that evens them out.

        Returns whether one moved; then another may move from a member that was tried before.
        """
        has_moved = False
        donors = [(-load, member_id) for member_id, load in self._loads.items()]
        heapify(donors)
        while donors:
            load, donor = heappop(donors)
            if -load != self._loads[donor]:
                continue
            least = {b: member_id for b in self._heaps if (member_id := self.least(b)) is not None}
            if -load < 2 + min(
                (self._loads[member_id] for member_id in least.values()), default=-load
            ):
                break  # It has not enough for that, so no member has.
            # The last of its queues at the broker where another member has least.
            last = {queue.broker: queue for queue in sorted(self._of[donor])}.values()
            moves = [(self._loads[least[q.broker]], least[q.broker], q) for q in last]
            if moves and min(moves)[0] <= -load - 2:
                _, taker, queue = min(moves)
                self._of[donor].remove(queue)
                self._count(donor, -1)
                self.give(taker, queue)
                for member_id in (donor, taker):
                    heappush(donors, (-self._loads[member_id], member_id))
                has_moved = True
        return has_moved


STRATEGIES: Mapping[str, Callable[[str, Queues, Members], Assignment]] = {
    "sticky": _sticky,
    "averagely": _averagely,
    "averagely-by-circle": _by_circle,
    "consistent-hash": _consistent,
    "by-config": _by_config,
    "by-machine-room": _by_room,
    "machine-room-nearby": _nearby,
}
