"""Allocation: which member of a group gets which of a topic's queues.

All but the first are RocketMQ's strategies, by their formulas::

    queues 0..7, members a b c     averagely              a: 0 1 2   b: 3 4 5   c: 6 7
                                   averagely-by-circle    a: 0 3 6   b: 1 4 7   c: 2 5
                                   consistent-hash        by where their hashes lie on a circle
                                   by-config              each member names its own
                                   by-machine-room        only members of the broker's room
                                   machine-room-nearby    those first, others where it has none
                                   sticky                 as it was, with as few moves as possible

Every strategy but ``by-config`` and ``by-machine-room`` gives each queue to exactly one member.
``sticky`` is the default: a member that comes or goes moves only the queues that must move, so that
the others lose nothing of what they have fetched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import md5

Assignment = dict[str, list[int]]
"""By member, the queues it gets, rising; every member is in it."""
VIRTUAL_NODES = 10
"""Of each member on the circle of ``consistent-hash``."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member as a strategy sees it.

    Attributes:
        id: its name in the group; members are sorted by it.
        room: the machine room (or zone) it says it is in.
        queues: those it wants, for ``by-config``.
        held: those it has now.
    """

    id: str
    room: str = ""
    queues: Sequence[int] = field(default=())
    held: Sequence[int] = field(default=())


@dataclass(frozen=True, slots=True)
class Place:
    """What is allocated.

    Attributes:
        topic, broker: their names; ``consistent-hash`` counts them in.
        room: the broker's machine room.
        count: how many queues there are.
    """

    topic: str
    broker: str
    room: str
    count: int


def allocate(strategy: str, place: Place, members: Sequence[Candidate]) -> Assignment:
    """Share the queues out by a strategy of `STRATEGIES`.

    Without members the assignment is empty.
    """
    ranked = sorted(members, key=lambda member: member.id)
    assignment: Assignment = {member.id: [] for member in ranked}
    if ranked:
        assignment |= STRATEGIES[strategy](place, ranked)
    return assignment


def _averagely(place: Place, members: Sequence[Candidate]) -> Assignment:
    return _in_runs(list(range(place.count)), members)


def _in_runs(queues: Sequence[int], members: Sequence[Candidate]) -> Assignment:
    """AllocateMessageQueueAveragely: runs of queues, the first members one more."""
    size, rest = divmod(len(queues), len(members))
    found: Assignment = {}
    at = 0
    for number, member in enumerate(members):
        end = at + size + (number < rest)
        found[member.id] = list(queues[at:end])
        at = end
    return found


def _by_circle(place: Place, members: Sequence[Candidate]) -> Assignment:
    """AllocateMessageQueueAveragelyByCircle: queue k goes to member k mod their count."""
    step = len(members)
    return {m.id: list(range(number, place.count, step)) for number, m in enumerate(members)}


def _by_config(place: Place, members: Sequence[Candidate]) -> Assignment:
    """AllocateMessageQueueByConfig: what each names; of two that name one, the first has it."""
    taken: set[int] = set()
    found: Assignment = {}
    for member in members:
        wanted = sorted({queue for queue in member.queues if 0 <= queue < place.count} - taken)
        taken.update(wanted)
        found[member.id] = wanted
    return found


def _by_room(place: Place, members: Sequence[Candidate]) -> Assignment:
    """AllocateMessageQueueByMachineRoom: equal runs, the rest one each, for members of the room."""
    near = [member for member in members if member.room == place.room]
    if not near:
        return {}
    size, rest = divmod(place.count, len(near))
    found: Assignment = {}
    for number, member in enumerate(near):
        queues = list(range(size * number, size * (number + 1)))
        if number < rest:
            queues.append(number + size * len(near))
        found[member.id] = queues
    return found


def _nearby(place: Place, members: Sequence[Candidate]) -> Assignment:
    """AllocateMachineRoomNearby: within the room; over all where nobody is in it."""
    near = [member for member in members if member.room == place.room]
    return _averagely(place, near or members)


def _hash(text: str) -> int:
    """The first four bytes of MD5, big-endian, as RocketMQ's circle counts."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


@lru_cache(maxsize=4096)
def _nodes(id: str) -> list[tuple[int, str]]:
    """A member's places on the circle."""
    return [(_hash(f"{id}-{node}"), id) for node in range(VIRTUAL_NODES)]


def _consistent(place: Place, members: Sequence[Candidate]) -> Assignment:
    """AllocateMessageQueueConsistentHash: the next virtual node clockwise."""
    nodes = sorted(node for member in members for node in _nodes(member.id))
    hashes = [node[0] for node in nodes]
    found: Assignment = {}
    for queue in range(place.count):
        key = f"MessageQueue [topic={place.topic}, brokerName={place.broker}, queueId={queue}]"
        at = bisect_left(hashes, _hash(key)) % len(nodes)
        found.setdefault(nodes[at][1], []).append(queue)
    return found


def _sticky(place: Place, members: Sequence[Candidate]) -> Assignment:
    """As even as ``averagely``, with as few queues as possible taken from who has them."""
    size, rest = divmod(place.count, len(members))
    free = set(range(place.count))
    kept: Assignment = {}
    for member in members:
        mine = sorted(free.intersection(member.held))
        free.difference_update(mine)
        kept[member.id] = mine
    # Who has most may keep the one more that some get.
    larger = {
        member.id for member in sorted(members, key=lambda m: (-len(kept[m.id]), m.id))[:rest]
    }
    for member in members:
        most = size + (member.id in larger)
        free.update(kept[member.id][most:])
        del kept[member.id][most:]
    left = iter(sorted(free))
    for member in members:
        missing = size + (member.id in larger) - len(kept[member.id])
        kept[member.id] = sorted([*kept[member.id], *(next(left) for _ in range(missing))])
    return kept


STRATEGIES: Mapping[str, Callable[[Place, Sequence[Candidate]], Assignment]] = {
    "sticky": _sticky,
    "averagely": _averagely,
    "averagely-by-circle": _by_circle,
    "consistent-hash": _consistent,
    "by-config": _by_config,
    "by-machine-room": _by_room,
    "machine-room-nearby": _nearby,
}
