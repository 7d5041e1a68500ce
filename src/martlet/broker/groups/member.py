"""A consumer of a group, and its hold on a queue: see `martlet.broker.groups.membership`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.broker.queue.crash_charges import StartedRange


@dataclass(slots=True, eq=False)
class GroupConsumer:
    """A consumer of a group.

    Attributes:
        id: its name in the group: its client id, with a number if that is not unique.
        client_id: the name that it chose.
        address: its network address.
        room: the machine room that it declares.
        wanted: the queues that it requests, for strategies that use them.
        lease_ns: it is lost after this time without a call.
        owner: the connection of its calls; None if any connection may use its id.
        since_ns: when it joined.
        lease_until_ns: when it is lost, without a further call.
        changed: the generation in which its queues last changed.
        held: its queues.
        watchers: called when its queues change, or it is removed.
        is_gone: whether it was removed.
        name: its name at all brokers; empty if it sent none.
        brokers: the number of brokers that it is connected to, if it volunteers to lead; else 0.
        started: the messages that it has started, by queue, if it announces them.
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
    name: str = ""
    brokers: int = 0
    started: dict[int, StartedRange] = field(default_factory=dict)

    @property
    def revoked(self) -> list[int]:
        """The queues that it must release."""
        return sorted(queue for queue, one in self.held.items() if one.until_ns is not None)

    @property
    def trace_name(self) -> str:
        """Its name in a trace."""
        return f"{self.id} {self.address}"

    def notify(self) -> None:
        """Call the watchers."""
        for watcher in list(self.watchers):
            watcher()


@dataclass(slots=True, eq=False)
class Holding:
    """A member's hold on a queue.

    Attributes:
        member: the member.
        since: the generation in which it got the queue.
        until_ns: when it loses a revoked queue at the latest; None if not revoked.
    """

    member: GroupConsumer
    since: int
    until_ns: int | None = None
