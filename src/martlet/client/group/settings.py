"""Settings of pull consumers: flow control, membership in a group, and progress in queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from martlet.client.consumer.handling.failure_policy import Delay
from martlet.client.consumer.waiters import SharedRate
from martlet.client.group.assignment.plan import AllocationChoice, AllocationStrategy, RoomResolver
from martlet.client.group.failures import OnGivingUp
from martlet.client.group.queues.queue_id import QueueId
from martlet.client.keywords import check_at_least
from martlet.client.names import check_filter, check_tags
from martlet.client.settings import ConnectionOptions

MIB = 1 << 20
FETCH_MESSAGES = 256
MAX_FETCH_MESSAGES = 10_000
MAX_FETCH_BYTES = 8 * MIB
"""The maximum size of a broker's answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowLimits:
    """The limits of fetches, and of messages that are not done, for each queue.

    The first three are RocketMQ's. At a limit nothing more is fetched until messages are done.

    Attributes:
        max_messages: that are not done.
        max_bytes: of those; one message may exceed it.
        max_span: between the lowest offset that is not done and the next to fetch, so that one slow
            handler does not leave thousands of messages to be repeated after a crash.
        fetch_messages: of one fetch. RocketMQ has 32; here frames are a slice of the log, so that
            larger fetches are cheaper.
        fetch_bytes: likewise; a larger message comes alone.
        fetch_wait_s: how long the broker may hold a fetch without messages.
    """

    max_messages: int = 1000
    max_bytes: int = 100 * MIB
    max_span: int = 2000
    fetch_messages: int = FETCH_MESSAGES
    fetch_bytes: int = MIB
    fetch_wait_s: float = 15.0

    def __post_init__(self) -> None:
        for name in ("max_messages", "max_bytes", "max_span", "fetch_messages", "fetch_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name, max_count in (
            ("fetch_messages", MAX_FETCH_MESSAGES),
            ("fetch_bytes", MAX_FETCH_BYTES),
        ):
            if getattr(self, name) > max_count:
                raise ValueError(f"{name}={getattr(self, name)}: must be at most {max_count}")
        if not 0 < self.fetch_wait_s <= 60:
            raise ValueError(f"fetch_wait_s={self.fetch_wait_s} must be above 0, and 60 at most")


Start = Literal["first", "last"] | datetime | int
"""``"first"`` for the first stored message, ``"last"`` for new ones only, a time, an offset."""


def check_start(start: Start) -> Start:
    """Check a start position. Raises ValueError: it is none of these, or a time without a zone, or
    a negative offset.
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError(
                f"{start!r} has no time zone, so it says no moment: datetime.now(timezone.utc)"
            )
    elif isinstance(start, bool) or not (start in ("first", "last") or isinstance(start, int)):
        raise ValueError(f"{start!r} must be 'first', 'last', a datetime, or an offset")
    elif isinstance(start, int) and start < 0:
        raise ValueError(f"the offset {start}: must be at least 0")
    return start


def time_ms(moment: datetime) -> int:
    """Return milliseconds since 1970."""
    return max(0, int(moment.timestamp() * 1000))


def start_fields(start: Start) -> dict[str, Any]:
    """Return a group's start position as arguments of ``group.join``."""
    if isinstance(start, datetime):
        return {"start": "time", "start_time_ms": time_ms(start)}
    if isinstance(start, int):
        return {"start": "offset", "start_offset": start}
    return {"start": start}


Strategy = Literal[
    "sticky",
    "averagely",
    "averagely-by-circle",
    "consistent-hash",
    "by-config",
    "by-machine-room",
    "machine-room-nearby",
]
"""How queues are assigned to the members: see `martlet.allocation`."""
MAX_STRATEGY_LENGTH = 80
"""The maximum length of a strategy's name at brokers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MembershipSettings:
    """The membership of a `PullConsumer` in its group.

    Attributes:
        strategy: how queues are assigned; all members must name the same. Or a function of the
            application's, the same at all members; see `AllocationStrategy`.
        room: the machine room, or zone, of this consumer.
        rooms: returns the room of brokers and members, in place of that reported by brokers
            (``--topology-zone``) and members (``room``); see `RoomResolver`.
        queues: the queues that this member wants, only for ``by-config``.
        tags: receive only messages with one of these tags; it applies to the group, so all members
            must have the same.
        filter: receive only messages for which this condition on their headers is true, in
            RocketMQ's subset of SQL92, as ``"region = 'eu' AND price > 3"``; with tags, both must
            fit. It too applies to the group.
        lease_s: the time without a heartbeat after which the consumer's queues go to other members.
        leave_timeout_s: the time for handlers to end when their queue moves to another member.
    """

    strategy: Strategy | AllocationStrategy = "sticky"
    room: str = ""
    rooms: RoomResolver | None = None
    queues: Sequence[int] = ()
    tags: str | Iterable[str] = ()
    filter: str | None = None
    lease_s: float = 120.0
    leave_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", check_tags(self.tags))
        if self.filter is not None:
            object.__setattr__(self, "filter", check_filter(self.filter))
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
        """How queues are assigned."""
        if isinstance(self.strategy, str):
            return AllocationChoice(self.strategy, None, self.rooms)
        name = getattr(self.strategy, "__name__", type(self.strategy).__name__)
        return AllocationChoice(f"custom:{name}"[:MAX_STRATEGY_LENGTH], self.strategy, self.rooms)

    def fields(self) -> dict[str, Any]:
        """The settings as arguments of ``group.join``."""
        fields: dict[str, Any] = {
            "strategy": self.allocation.name,
            "room": self.room,
            "queues": list(self.queues),
            "lease_ms": round(self.lease_s * 1000),
        }
        filters = {"wanted_tags": list(self.tags), "filter": self.filter or ""}
        return fields | {name: value for name, value in filters.items() if value}


OnQueues = Callable[[Sequence[QueueId]], Awaitable[object] | object]
"""Called with queues; a function or a coroutine function, which is awaited."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgressSettings:
    """The start position of a pull consumer in its queues, and its commits.

    Attributes:
        start: where a new group begins, or a `BroadcastConsumer` in a queue that its file does not
            have: ``"first"`` for the first stored message, ``"last"`` for new messages only, a
            time, an offset.
        auto_commit: commit the offsets every ``commit_every_s``, and when a queue moves to another
            member. Without it only ``await consumer.commit()`` does, so that uncommitted messages
            come again, to the next holder of the queue.
        commit_every_s: the interval of commits.
        on_assigned, on_revoked: called with new queues (a list of `QueueId`) before anything is
            fetched, and with leaving ones after their handlers have ended; functions or coroutine
            functions, which are awaited.
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
    """The keywords of all pull consumers."""

    start: Start
    auto_commit: bool
    commit_every_s: float
    on_assigned: OnQueues | None
    on_revoked: OnQueues | None
    retry: Delay | None
    max_attempts: int
    on_giving_up: OnGivingUp | None
    close_timeout_s: float
    rate_per_s: float | SharedRate
    rate_burst: int
    max_messages: int
    max_bytes: int
    max_span: int
    fetch_messages: int
    fetch_bytes: int
    fetch_wait_s: float


class MemberOptions(PullOptions, total=False):
    """The keywords of a `PullConsumer`: each field of its settings."""

    strategy: Strategy | AllocationStrategy
    room: str
    rooms: RoomResolver | None
    queues: Sequence[int]
    tags: str | Iterable[str]
    filter: str
    lease_s: float
    leave_timeout_s: float
