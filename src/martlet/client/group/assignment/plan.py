"""A plan: an assignment of queues to a group's members, over all brokers of the topic.

A strategy, of `martlet.allocation` or of the application, makes it from one view of each broker. A
member that is not at a broker gets no queue there. ``sticky``, which also replaces a strategy that
fails, leaves queues at brokers with another leader where they are, and counts them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Protocol

from martlet.allocation import Assignment, GroupMember, TopicQueue, allocate, complete
from martlet.text import counted

logger = logging.getLogger("martlet.client")


class AllocationStrategy(Protocol):
    """An application's function that chooses the queues of a member, the same at all members.

    The leader calls it for each member, with the same sorted queues and members. It must depend on
    nothing else, and return soon. If it gives a queue to two members, the first gets it; queues
    that it gives to none go to the members with the fewest, since their messages would wait for
    ever.
    """

    def __call__(
        self, member: GroupMember, members: Sequence[GroupMember], queues: Sequence[TopicQueue], /
    ) -> Iterable[TopicQueue]:
        """Return the queues of ``member``."""


class RoomResolver(Protocol):
    """An application's lookup of the machine room of a queue or member, in place of the reported
    one.
    """

    def room_of_queue(self, queue: TopicQueue) -> str:
        """Return the room of the queue's broker."""

    def room_of_member(self, member: GroupMember) -> str:
        """Return the room of a member."""


@dataclass(frozen=True, slots=True)
class AllocationChoice:
    """How queues are assigned.

    Attributes:
        name: of the strategy, for the brokers.
        strategy: the application's; None for the one of that name.
        rooms: returns the room of queues and members; None for the reported one.
    """

    name: str
    strategy: AllocationStrategy | None = None
    rooms: RoomResolver | None = None

    @property
    def is_own(self) -> bool:
        """Whether no broker can make this assignment."""
        return self.strategy is not None or self.rooms is not None


@dataclass(frozen=True, slots=True)
class GroupView:
    """A broker's view of the group.

    Attributes:
        broker: its unique name.
        queues: by their number.
        members: by their name, which is the same at all brokers.
        ids: their ids at this broker.
        roster: the broker's number for this state.
    """

    broker: str
    queues: Sequence[TopicQueue]
    members: Mapping[str, GroupMember]
    ids: Mapping[str, str]
    roster: int

    @classmethod
    def of(cls, answer: Mapping[str, Any], address: str, taken: set[str]) -> GroupView:
        """Read an answer to ``group.describe``."""
        broker = str(answer["place"]["broker"])
        if broker in taken:
            broker = f"{broker} at {address}"
        taken.add(broker)
        room = str(answer["place"]["room"])
        names = {each["member"]: each["name"] or each["member"] for each in answer["members"]}
        held: dict[str, list[TopicQueue]] = {}
        queues = []
        for each in answer["queues"]:
            queue = TopicQueue(broker, int(each["queue"]), room)
            queues.append(queue)
            if each["target"] is not None:
                held.setdefault(names.get(each["target"], ""), []).append(queue)
        members = {
            (name := names[each["member"]]): GroupMember(
                name,
                str(each["room"]),
                held=held.get(name, ()),
                brokers=frozenset({broker}),
                client_id=str(each["client_id"]),
                address=str(each["address"]),
            )
            for each in answer["members"]
        }
        return cls(
            broker,
            queues,
            members,
            {n: member_id for member_id, n in names.items()},
            int(answer["roster"]),
        )


def share_out(
    topic: str,
    choice: AllocationChoice,
    live: Sequence[GroupView],
    absent: Sequence[GroupView],
    led: Set[str],
) -> Assignment:
    """Assign queues to members, over all brokers.

    Args:
        topic: its name.
        choice: the strategy.
        live: the views of brokers that answer.
        absent: the last views of brokers that have just gone.
        led: the names of the brokers that follow this leader.
    """
    views = [*live, *absent]
    queues = [queue for view in views for queue in view.queues]
    members = [_over_all(name, views) for name in {n: 0 for p in live for n in p.members}]
    if choice.is_own:
        try:
            return _by_choice(topic, choice, queues, members)
        except Exception:
            logger.exception("%s failed: the queues are assigned by sticky", choice.name)
    if choice.is_own or choice.name == "sticky":
        queues = [queue for queue in queues if queue.broker in led]
        members = [_within(member, led) for member in members]
        return allocate("sticky", topic, queues, members)
    return allocate(choice.name, topic, queues, members)


def _over_all(name: str, views: Sequence[GroupView]) -> GroupMember:
    """Return a member, with its queues and its brokers merged from all views."""
    seen = [view.members[name] for view in views if name in view.members]
    brokers = frozenset[str]().union(*(one.brokers or () for one in seen))
    return replace(
        seen[0],
        held=[queue for one in seen for queue in one.held],
        brokers=brokers if len(brokers) < len(views) else None,
    )


def _within(member: GroupMember, led: Set[str]) -> GroupMember:
    held = [queue for queue in member.held if queue.broker in led]
    return replace(member, held=held, elsewhere=len(member.held) - len(held))


def _by_choice(
    topic: str,
    choice: AllocationChoice,
    queues: Sequence[TopicQueue],
    members: Sequence[GroupMember],
) -> Assignment:
    """Assign by a strategy or a resolver of the application, which may raise anything."""
    rooms = choice.rooms
    if rooms is not None:
        queues = [queue._replace(room=rooms.room_of_queue(queue)) for queue in queues]
        members = [
            replace(
                member,
                room=rooms.room_of_member(member),
                held=[queue._replace(room=rooms.room_of_queue(queue)) for queue in member.held],
            )
            for member in members
        ]
    if choice.strategy is None:
        return allocate(choice.name, topic, queues, members)
    queues = sorted(queues)
    members = sorted(members, key=lambda member: member.id)
    free = set(queues)
    found: Assignment = {}
    for member in members:
        wanted = set(choice.strategy(member, members, queues))
        mine = [queue for queue in queues if queue in free and queue in wanted]
        free.difference_update(mine)
        found[member.id] = mine
    if left := complete(found, queues, members):
        logger.warning(
            "%s gives %s of %s to no member that reaches them, such as %d at %s: they go to"
            " the members with the fewest",
            *(choice.name, counted(len(left), "queue"), topic, left[0].number, left[0].broker),
        )
    return found


def plan(
    topic: str,
    choice: AllocationChoice,
    live: Sequence[GroupView],
    absent: Sequence[GroupView],
    led: Set[str],
) -> dict[str, dict[str, list[int]]]:
    """Make the plan for each broker that follows: the numbers of each member's queues, by the
    member's id there. The arguments are those of `share_out`.
    """
    parts: dict[str, dict[str, list[int]]] = {broker: {} for broker in led}
    ids = {view.broker: view.ids for view in live}
    for name, queues in share_out(topic, choice, live, absent, led).items():
        for queue in queues:
            if queue.broker in led:
                parts[queue.broker].setdefault(ids[queue.broker][name], []).append(queue.number)
    return parts
