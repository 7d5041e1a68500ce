"""Groups, whose members fetch from assigned queues: list, describe and reset them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from martlet.client.admin.answers import Answers
from martlet.client.admin.decode import Described, named
from martlet.client.admin.noun import Noun, given, place


@dataclass(frozen=True, kw_only=True)
class GroupSummary(Described):
    """A group of one broker.

    Attributes:
        topic, group: its names.
        member_count: its members.
        queue_count: the topic's queues.
        lag: messages that are not committed yet.
        is_paused: whether it gets no messages.
        kind: ``offsets``, or ``follower`` of one that shows an external reader, such as a query.
        retains: whether the log keeps what a follower has yet to read.
    """

    topic: str
    group: str
    member_count: int = named("members")
    queue_count: int = named("queues")
    lag: int
    is_paused: bool = named("paused")
    kind: str = "offsets"
    retains: bool = named("retain", default=True)


@dataclass(frozen=True, kw_only=True)
class MemberDescription(Described):
    """A member of a group.

    Attributes:
        member: its id.
        client_id, address, room: identify it; the room is for the strategy.
        since_ms: when it joined, in milliseconds since 1970.
        lease_ms: how long it keeps its queues without a sign of life.
        queues: the numbers of its queues.
    """

    member: str
    client_id: str = ""
    address: str
    room: str
    since_ms: int
    lease_ms: int = 0
    queues: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GroupQueueDescription(Described):
    """A queue of a group.

    Attributes:
        queue: its number.
        member: the id of the member that has it.
        target: the id of the member that shall have it.
        is_revoked: whether its member has yet to release it.
        offset: the committed offset.
        start_offset, end_offset: the offsets of the first stored and the next new message.
        lag: messages that are not committed yet.
        deferred_count: messages that wait for a time of their own.
        failures: the failures of messages by offset.
    """

    queue: int
    member: str | None
    target: str | None = None
    is_revoked: bool = named("revoked")
    offset: int
    start_offset: int = 0
    end_offset: int
    lag: int
    deferred_count: int = named("deferred", default=0)
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GroupDescription(Described):
    """A group of one broker, with its members and queues.

    Attributes:
        topic, group: its names.
        lag: messages that are not committed yet.
        strategy: how queues are assigned.
        leader: the member that assigns the queues of all brokers.
        is_paused: whether it gets no messages.
        kind: ``offsets``, or ``follower`` of one that shows an external reader, such as a query.
        retains: whether the log keeps what a follower has yet to read.
        tags: it gets only messages with one of these.
        filter: it gets only messages for which this condition is true.
        members: its members.
        queues: the topic's queues.
    """

    topic: str
    group: str
    lag: int
    strategy: str
    leader: str | None = None
    is_paused: bool = named("paused")
    kind: str = "offsets"
    retains: bool = named("retain", default=True)
    tags: tuple[str, ...] = ()
    filter: str = ""
    members: tuple[MemberDescription, ...]
    queues: tuple[GroupQueueDescription, ...]


@dataclass(frozen=True, kw_only=True)
class ResetQueue(Described):
    """The new offset of a group in a queue.

    Attributes:
        queue: its number.
        before: the committed offset until now.
        offset: the committed offset from now on.
        lag: messages from there on.
    """

    queue: int
    before: int
    offset: int
    lag: int


@dataclass(frozen=True, kw_only=True)
class GroupReset(Described):
    """The new offsets of a group.

    Attributes:
        queues: the queues that were reset.
    """

    queues: tuple[ResetQueue, ...]

    @property
    def lag(self) -> int:
        """Messages from the new offsets on."""
        return sum(each.lag for each in self.queues)


class ResetPosition(TypedDict, total=False):
    """Where a group is reset to: one of these.

    ``to_first``: to the first stored message. ``to_last``: to the end, so that it gets only new
    messages. ``to_time_ms``: to the first message published at or after this time, in milliseconds
    since 1970. ``to_offset``: to this offset; each queue of each broker has offsets of its own.
    """

    to_first: bool
    to_last: bool
    to_time_ms: int | None
    to_offset: int | None


_VALUES = {"to_time_ms": "time_ms", "to_offset": "offset"}
"""The fields of the call that have the values."""


@dataclass(frozen=True, kw_only=True)
class _Groups(Described):
    groups: tuple[GroupSummary, ...]


class GroupAdmin(Noun):
    """The groups of brokers: `Admin.groups`.

    Each method answers for each broker, which has members and offsets of its own, and raises
    AdminError only if none answered.
    """

    async def list(self, topic: str = "") -> Answers[tuple[GroupSummary, ...]]:
        """List groups with their lag: all, or those of a topic."""
        fields = given(topic=topic)
        return await self._http.call_each(
            "group.list", fields, lambda answer: _Groups.read(answer).groups
        )

    async def describe(self, topic: str, group: str) -> Answers[GroupDescription]:
        """Describe a group: its members, and the member, offset and lag of each queue."""
        fields = _names(topic, group)
        return await self._http.call_each("group.describe", fields, GroupDescription.read)

    async def lag(self, topic: str, group: str) -> Answers[int]:
        """Return the messages that a group has not committed yet."""
        fields = _names(topic, group)
        return await self._http.call_each(
            "group.describe", fields, lambda answer: GroupDescription.read(answer).lag
        )

    async def reset(
        self,
        topic: str,
        group: str,
        *,
        queue: int | None = None,
        force: bool = False,
        dry_run: bool = False,
        **to: Unpack[ResetPosition],
    ) -> Answers[GroupReset]:
        """Reset a group's offsets. Messages that a reset forward passes are not delivered.

        Args:
            topic, group: its names.
            queue: only this queue.
            force: even if it has members, which have to join again.
            dry_run: only answer the offsets and the lag that would follow.
            to: one field of `ResetPosition`.

        Raises:
            ValueError: not exactly one place is given.
        """
        if len(where := given(**to)) != 1:
            raise ValueError(
                "say where to, with one of to_first, to_last, to_time_ms and to_offset"
            )
        ((name, value),) = where.items()
        fields = _names(topic, group) | given(queue=queue, force=force)
        fields["to"] = name.removeprefix("to_").removesuffix("_ms")
        if name in _VALUES:
            fields[_VALUES[name]] = value
        if dry_run:
            fields["dry_run"] = True  # A broker of an earlier version refuses it.
        return await self._http.call_each("group.reset", fields, GroupReset.read)


def _names(topic: str, group: str) -> dict[str, object]:
    names = place(topic, group)
    return {"topic": names["topic"], "group": names["channel"]}
