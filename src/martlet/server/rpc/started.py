"""The call by which a member of a group says what it starts to handle.

``group.start`` names the ``runs``, first and end offset, of a ``queue`` that the member has started
and not done, in place of those that it named before, and whether it handles nothing else (it is
``alone``).  Where the group has a retry policy and the member is lost, by the end of its connection
or of its lease and without leaving, they have failed: see `martlet.broker.queue.crash_charges`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from martlet.broker.groups.fetch import MAX_FETCH_MESSAGES
from martlet.broker.queue.crash_charges import MAX_RUNS, MAX_STARTED, StartedRange
from martlet.server.rpc.arguments import CallError
from martlet.server.rpc.fetch import group_of

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.server.rpc.arguments import CallArguments
    from martlet.server.rpc.registry import Answer, Caller, Methods

_MAX_SHOWN = 100


class StartCalls:
    """What members of groups start, over a server's broker."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker

    def methods(self) -> Methods:
        """The method of each name."""
        return {"group.start": self.start}

    def start(self, caller: Caller, arguments: CallArguments) -> Answer:
        """A member starts to handle messages."""
        arguments.only("topic", "group", "member", "queue", "runs", "alone")
        _, members = group_of(self._broker, caller, arguments)
        member = members.find(arguments.text("member"), caller.connection)
        queue = arguments.number("queue")
        runs = tuple(_run(each) for each in arguments.sequence("runs", max_value=MAX_RUNS))
        if sum(end - first for first, end in runs) > MAX_STARTED:
            raise CallError("BAD_ARGUMENT", f"'runs' must be of at most {MAX_STARTED} offsets")
        if queue not in member.held:
            raise CallError("NOT_HELD", f"queue {queue} is not {member.id!r}'s (any more)")
        if runs:
            member.started[queue] = StartedRange(runs, arguments.flag("alone"))
        else:
            member.started.pop(queue, None)
        return None


def failures_of(part: Channel) -> Iterable[tuple[int, int]]:
    """The first messages at a queue that members of a group were lost by, and how often."""
    charges = part.cursor.charges
    known = sorted(charges.by_offset.items()) if charges is not None else []
    return ((offset, charge.failures) for offset, charge in known[:_MAX_SHOWN])


def _run(told: object) -> tuple[int, int]:
    if not isinstance(told, list) or len(told) != 2 or any(type(each) is not int for each in told):
        raise CallError("BAD_ARGUMENT", f"'runs': {str(told)[:40]} is no [first, end]")
    first, end = told
    if not 0 <= first < end <= first + MAX_FETCH_MESSAGES:
        raise CallError(
            "BAD_ARGUMENT",
            f"'runs': {str(told)[:80]} must be 1 to {MAX_FETCH_MESSAGES} offsets, from 0 on",
        )
    return first, end
