"""One consumer of a group, and that it has a queue: see `martlet.broker.groups.membership`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.broker.queue.crash_charges import StartedRange


@dataclass(slots=True, eq=False)
class GroupConsumer:
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
        name: what it is called at all brokers; empty where it did not tell.
        brokers: at how many it is, where it volunteers to lead; 0 where it does not.
        started: what it has started to handle, by queue, where it says that.
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
        """The queues that it is to let go of."""
        return sorted(queue for queue, one in self.held.items() if one.until_ns is not None)

    @property
    def trace_name(self) -> str:
        """Who it is, in a trail."""
        return f"{self.id} {self.address}"

    def notify(self) -> None:
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

    member: GroupConsumer
    since: int
    until_ns: int | None = None
