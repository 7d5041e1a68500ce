"""Settings of pull consumers: their membership in a group, and their progress in queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from martlet.client.consumer.handling.failure_policy import Delay
from martlet.client.group.assignment.plan import AllocationChoice, AllocationStrategy, RoomResolver
from martlet.client.group.failures import OnGivingUp
from martlet.client.group.rebalance_listener import OnQueues
from martlet.client.group.start_position import Start, check_start
from martlet.client.names import check_tags
from martlet.client.settings import ConnectionOptions, check_at_least

Strategy = Literal[
    "sticky",
    "averagely",
    "averagely-by-circle",
    "consistent-hash",
    "by-config",
    "by-machine-room",
    "machine-room-nearby",
]
"""How queues are allocated to the members: see `martlet.allocation`."""
MAX_STRATEGY_LENGTH = 80
"""Of a strategy's name, as brokers take it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MembershipSettings:
    """How a `PullConsumer` is a member of its group.

    Attributes:
        strategy: how queues are allocated; all members must name the same.  Or a function of the
            application's, the same at all members; see `AllocationStrategy`.
        room: the machine room, or zone, of this consumer.
        rooms: says which room brokers and members are in, in the place of what brokers
            (``--topology-zone``) and members (``room``) say; see `RoomResolver`.
        queues: those that this member wants, for ``by-config`` and for that alone.
        tags: take messages with one of these tags alone; it applies to the group, so all members
            must name the same.
        lease_s: after how long without a sign of life the consumer's queues go to other members.
        leave_timeout_s: how long handlers may take to end when their queue goes to another member.
    """

    strategy: Strategy | AllocationStrategy = "sticky"
    room: str = ""
    rooms: RoomResolver | None = None
    queues: Sequence[int] = ()
    tags: str | Iterable[str] = ()
    lease_s: float = 120.0
    leave_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", check_tags(self.tags))
        check_at_least("lease_s", self.lease_s, 1)
        check_at_least("leave_timeout_s", self.leave_timeout_s, 0)
        if (self.strategy == "by-config") != bool(self.queues):
            raise ValueError(
                f"strategy={self.strategy!r} with queues={list(self.queues)}: by-config needs the"
                " queues that this member wants, and no other strategy takes any"
            )
        if self.strategy == "by-config" and self.rooms is not None:
            raise ValueError(
                "by-config goes by no rooms: leave out rooms, or take another strategy"
            )

    @property
    def allocation(self) -> AllocationChoice:
        """How queues are allocated."""
        if isinstance(self.strategy, str):
            return AllocationChoice(self.strategy, None, self.rooms)
        name = getattr(self.strategy, "__name__", type(self.strategy).__name__)
        return AllocationChoice(f"custom:{name}"[:MAX_STRATEGY_LENGTH], self.strategy, self.rooms)

    def fields(self) -> dict[str, Any]:
        """The settings, as ``group.join`` takes them."""
        fields: dict[str, Any] = {
            "strategy": self.allocation.name,
            "room": self.room,
            "queues": list(self.queues),
            "lease_ms": round(self.lease_s * 1000),
        }
        return {**fields, "wanted_tags": list(self.tags)} if self.tags else fields


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgressSettings:
    """Where a pull consumer begins in its queues, and how it commits its offsets.

    Attributes:
        start: where a group begins that is new, or a `BroadcastConsumer` in a queue that its file
            does not have: ``"first"`` for all that is stored, ``"last"`` for what comes from now
            on, a time, an offset.
        auto_commit: commit the offsets every ``commit_every_s``, and when a queue goes to another
            member.  Without it ``await consumer.commit()`` alone does, so that what was not
            committed comes again, to the member that has the queue then.
        commit_every_s: how often.
        on_assigned, on_revoked: called with queues (a list of `QueueId`) that have come, before
            anything is fetched, and that go, after their handlers have ended; functions or
            coroutine functions, which are awaited.
    """

    start: Start = "last"
    auto_commit: bool = True
    commit_every_s: float = 5.0
    on_assigned: OnQueues | None = None
    on_revoked: OnQueues | None = None

    def __post_init__(self) -> None:
        check_start(self.start)
        check_at_least("commit_every_s", self.commit_every_s, 0, "0 stands for auto_commit=False")


class PullOptions(ConnectionOptions, total=False):
    """What all pull consumers take as keywords."""

    start: Start
    auto_commit: bool
    commit_every_s: float
    on_assigned: OnQueues | None
    on_revoked: OnQueues | None
    retry: Delay | None
    max_attempts: int
    on_giving_up: OnGivingUp | None
    close_timeout_s: float
    max_messages: int
    max_bytes: int
    max_span: int
    fetch_messages: int
    fetch_bytes: int
    fetch_wait_s: float


class MemberOptions(PullOptions, total=False):
    """What a `PullConsumer` takes as keywords: each field of its settings."""

    strategy: Strategy | AllocationStrategy
    room: str
    rooms: RoomResolver | None
    queues: Sequence[int]
    tags: str | Iterable[str]
    lease_s: float
    leave_timeout_s: float
