"""Groups, whose members fetch from assigned queues: list, describe and reset them.

What members call themselves, to join, fetch and commit, is no operation: see
`martlet.server.rpc.groups`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

from msgspec import field

from martlet.schema.access import MEMBERS, OPERATORS
from martlet.schema.kinds import ChannelName, Number, TimeMs, TopicName
from martlet.schema.operation import Operation, OperationAnswer, OperationRequest, operation
from martlet.schema.read import Refusal

ResetTo = Literal["first", "last", "time", "offset"]
RESETS: tuple[ResetTo, ...] = get_args(ResetTo)


class ListGroups(OperationRequest):
    """Which groups to list.

    topic: the topic
    """

    section: ClassVar[str] = "which group"
    topic: TopicName = ""


class NamedGroup(OperationRequest):
    """A group.

    topic: the topic
    group: its name
    """

    section: ClassVar[str] = "which group"
    topic: TopicName
    group: ChannelName


class ResetQueues(NamedGroup, kw_only=True):
    """Which queues of a group to reset, and how.

    queue: only this queue of the topic (default: all of them)
    force: even if it has members: they have to join again
    dry_run: only show the offsets and the lag that would follow
    """

    section: ClassVar[str] = "where to reset it"
    selecting: ClassVar[tuple[str, ...]] = ("queue",)
    queue: Number | None = None
    force: bool = False
    dry_run: bool = False


class ResetGroup(ResetQueues, kw_only=True):
    """Where to reset a group.

    to: where to
    time_ms: for `time`, to the first message published at or after this time
    offset: for `offset`, to this one, of one `queue` where there are several
    """

    to: ResetTo
    time_ms: TimeMs | None = None
    offset: Number | None = None

    def __post_init__(self) -> None:
        name = {"time": "time_ms", "offset": "offset"}.get(self.to, "to")
        if getattr(self, name) is None:
            raise Refusal("MISSING_ARGUMENT", f"the argument {{{name}}} is missing")


class ResetGroupTo(ResetQueues, kw_only=True):
    """The same for clients and commands. A reset forward skips the messages between.

    to_first: to the first stored message
    to_last: to the end: only new messages
    to_time_ms: to the first message published at or after this time
    to_offset: to this offset, of one queue where there are several
    """

    selecting: ClassVar[tuple[str, ...]] = ("queue", "to_time_ms", "to_offset")
    to_first: bool = False
    to_last: bool = False
    to_time_ms: TimeMs | None = None
    to_offset: Number | None = None

    def __post_init__(self) -> None:
        if len(self._chosen) != 1:
            raise Refusal(
                "MISSING_ARGUMENT",
                "say where to, with one of {to_first}, {to_last}, {to_time_ms} and {to_offset}",
            )

    @property
    def _chosen(self) -> list[ResetTo]:
        is_time, is_offset = self.to_time_ms is not None, self.to_offset is not None
        chosen = self.to_first, self.to_last, is_time, is_offset
        return [to for to, is_chosen in zip(RESETS, chosen, strict=True) if is_chosen]

    @property
    def to(self) -> ResetTo:
        """A field of `ResetGroup`, as the others."""
        return self._chosen[0]

    @property
    def time_ms(self) -> int | None:
        """The time."""
        return self.to_time_ms

    @property
    def offset(self) -> int | None:
        """The offset."""
        return self.to_offset


class GroupSummary(OperationAnswer, kw_only=True):
    """A group of one broker.

    Attributes:
        queue_count: the topic's queues.
        lag: messages that are not committed yet.
        is_paused: whether it gets no messages.
        kind: ``offsets`` of a group, ``follower`` of an external reader, such as a Spark query.
        retains: whether the log keeps what a follower has yet to read.
    """

    topic: str
    group: str
    member_count: int = field(name="members")
    queue_count: int = field(name="queues")
    lag: int
    is_paused: bool = field(name="paused")
    kind: str
    retains: bool = field(name="retain")


class Groups(OperationAnswer):
    """The groups of one broker."""

    groups: tuple[GroupSummary, ...]


class MemberDescription(OperationAnswer, kw_only=True):
    """A member of a group.

    Attributes:
        client_id, address, room: identify it; the room is for the strategy.
        name: its name at all brokers, if it volunteers as the leader.
        brokers: the number of brokers that it is connected to, if it does.
        since_ms: when it joined, in milliseconds since 1970.
        lease_ms: how long it keeps its queues without a sign of life.
        lease_until_ms: when its lease ends.
        queues: the numbers of its queues.
        revoked: the numbers of those that it has yet to release.
    """

    member: str
    client_id: str
    address: str
    room: str
    name: str
    brokers: int
    since_ms: int
    lease_ms: int
    lease_until_ms: int
    queues: tuple[int, ...]
    revoked: tuple[int, ...]


class GroupQueueDescription(OperationAnswer, kw_only=True):
    """A queue of a group.

    Attributes:
        member: the id of the member that has it.
        since: the generation since which that one has it.
        is_revoked: whether its member has yet to release it.
        target: the id of the member that shall have it.
        start_offset, end_offset: the offsets of the first stored and the next new message.
        lag: messages that are not committed yet.
        deferred_count: messages that wait for a time of their own.
        failures: the failures of messages by offset.
    """

    queue: int
    member: str | None
    since: int | None
    is_revoked: bool = field(name="revoked")
    target: str | None
    offset: int
    start_offset: int
    end_offset: int
    lag: int
    deferred_count: int = field(name="deferred")
    failures: Mapping[str, int]


class GroupDescription(OperationAnswer, kw_only=True):
    """A group of one broker, with its members and queues.

    Attributes:
        generation, roster: numbers that rise when queues change hands, or members come or go.
        place: the name of the broker, and its room.
        strategy: how queues are assigned.
        leader: the member that assigns the queues of all brokers.
        is_paused: whether it gets no messages.
        kind: ``offsets`` of a group, ``follower`` of an external reader, such as a Spark query.
        retains: whether the log keeps what a follower has yet to read.
        tags: it gets only messages with one of these.
        filter: it gets only messages for which this condition is true.
        lag: messages that are not committed yet.
        queues: the topic's queues.
    """

    topic: str
    group: str
    generation: int
    roster: int
    place: Mapping[str, str]
    strategy: str
    leader: str | None
    is_paused: bool = field(name="paused")
    kind: str
    retains: bool = field(name="retain")
    tags: tuple[str, ...]
    filter: str
    lag: int
    members: tuple[MemberDescription, ...]
    queues: tuple[GroupQueueDescription, ...]


class ResetQueue(OperationAnswer, kw_only=True):
    """The new offset of a group in a queue.

    Attributes:
        before: the committed offset until now.
        offset: the committed offset from now on.
        lag: messages from there on.
    """

    queue: int
    before: int
    offset: int
    lag: int


class GroupReset(OperationAnswer):
    """The new offsets of a group.

    Attributes:
        queues: the queues that were reset.
    """

    queues: tuple[ResetQueue, ...]

    @property
    def lag(self) -> int:
        """Messages from the new offsets on."""
        return sum(queue.lag for queue in self.queues)


LIST = operation(
    "group.list", ListGroups, Groups, OPERATORS, "List groups with their lag: all, or a topic's."
)
DESCRIBE = operation(
    "group.describe",
    NamedGroup,
    GroupDescription,
    MEMBERS,
    "Describe a group: its members, and the member, offset and lag of each queue.",
)
RESET = Operation(
    "group.reset",
    ResetGroup,
    GroupReset,
    OPERATORS,
    "Reset a group's offsets, while it has no member, or by force; or show what would follow.",
    ResetGroupTo,
)
