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
    """How queues are assigned."""

    name: str
    """Of the strategy, for the brokers."""
    strategy: AllocationStrategy | None = None
    """The application's; None for the one of that name."""
    rooms: RoomResolver | None = None
    """Returns the room of queues and members; None for the reported one."""

    @property
    def is_own(self) -> bool:
        """Whether no broker can make this assignment."""
        return self.strategy is not None or self.rooms is not None


@dataclass(frozen=True, slots=True)
class GroupView:
    """A broker's view of the group."""

    broker: str
    """Its unique name."""
    queues: Sequence[TopicQueue]
    members: Mapping[str, GroupMember]
    """By their names, which are the same at all brokers."""
    ids: Mapping[str, str]
    """Their ids at this broker, by name."""
    roster: int
    """The broker's number for this state."""

    @classmethod
    def of(cls, answer: Mapping[str, Any], address: str, taken: set[str]) -> GroupView:
        """Read an answer to ``group.describe``."""
        broker = str(answer["place"]["broker"])
        if broker in taken:
            broker = f"{broker} at {address}"
        taken.add(broker)
        room = str(answer["place"]["room"])
        members = answer["members"]
        names = {member["member"]: member["name"] or member["member"] for member in members}
        held: dict[str, list[TopicQueue]] = {}
        queues = []
        for fields in answer["queues"]:
            queue = TopicQueue(broker, int(fields["queue"]), room)
            queues.append(queue)
            if fields["target"] is not None:
                held.setdefault(names.get(fields["target"], ""), []).append(queue)
        group_members = {
            (name := names[member["member"]]): GroupMember(
                name,
                str(member["room"]),
                held=held.get(name, ()),
                brokers=frozenset({broker}),
                client_id=str(member["client_id"]),
                address=str(member["address"]),
            )
            for member in members
        }
        ids = {name: member_id for member_id, name in names.items()}
        return cls(broker, queues, group_members, ids, int(answer["roster"]))


def share_out(
    topic: str,
    choice: AllocationChoice,
    live: Sequence[GroupView],
    absent: Sequence[GroupView],
    led: Set[str],
) -> Assignment:
    """Assign queues to members, over all brokers.

    Args:
        live: the views of brokers that answer.
        absent: the last views of brokers that have just gone.
        led: the names of the brokers that follow this leader.
    """
    views = [*live, *absent]
    queues = [queue for view in views for queue in view.queues]
    names = dict.fromkeys(name for view in live for name in view.members)
    members = [_over_all(name, views) for name in names]
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
    members = [view.members[name] for view in views if name in view.members]
    brokers = frozenset[str]().union(*(member.brokers or () for member in members))
    return replace(
        members[0],
        held=[queue for member in members for queue in member.held],
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
    assignment: Assignment = {}
    for member in members:
        chosen = set(choice.strategy(member, members, queues))
        mine = [queue for queue in queues if queue in free and queue in chosen]
        free.difference_update(mine)
        assignment[member.id] = mine
    if left := complete(assignment, queues, members):
        logger.warning(
            "%s gives %s of %s to no member that reaches them, such as %d at %s: they go to"
            " the members with the fewest",
            *(choice.name, counted(len(left), "queue"), topic, left[0].number, left[0].broker),
        )
    return assignment


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
