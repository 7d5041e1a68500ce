"""The calls of a group's member about started and failed messages.

``group.start`` reports the messages that the member is handling: the ``runs``, first and end
offset, of a ``queue``, in place of those reported before, and whether the member handles nothing
else (``alone``). If the group has a retry policy and the member is lost, by the end of its
connection or its lease without leaving, these messages count as failed: see
`martlet.broker.retry`.

``group.dead`` dead-letters the message at ``offset`` of a ``queue`` that the member has. The broker
copies it to the group's dead-letter topic, with ``reason`` (``max_attempts``, ``rejected`` or
``disconnected``), ``attempts``, ``first_error`` and ``last_error``. The answer names that
``dead_letter_topic``, once the message is as safe there as a publish answered OK. Only then may the
member commit beyond it; so a crash may duplicate the dead letter, but never loses the message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from martlet.broker.dead_letters.dead_letter import (
    CHANNEL,
    DeadLetterInfo,
    dead_letter_properties,
    dead_letter_topic,
    target_of,
)
from martlet.broker.errors import WritesRefused
from martlet.broker.groups.fetch import MAX_FETCH_MESSAGES
from martlet.broker.retry import (
    MAX_ERROR_LENGTH,
    MAX_RUNS,
    MAX_STARTED,
    DeadLetterReason,
    StartedRange,
)
from martlet.broker.tracing.recorder import TraceStep
from martlet.log.record import FRAME_HEADER_BYTES
from martlet.server.rpc.fetch import group_of, part_of
from martlet.server.rpc.registry import CallError

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.server.group_commit import GroupCommit
    from martlet.server.rpc.registry import Answer, CallArguments, Caller, Methods

_MAX_SHOWN = 100
_REASONS = (DeadLetterReason.MAX_ATTEMPTS, DeadLetterReason.REJECTED, DeadLetterReason.DISCONNECTED)
_MAX_ERROR = 100 * MAX_ERROR_LENGTH
"""The maximum length of an error; `MAX_ERROR_LENGTH` characters are kept."""
_STORED_AT = 8
"""The position of the timestamp in a frame."""


class GroupFailureCalls:
    """The calls about started and dead-lettered messages."""

    def __init__(self, broker: BrokerCore, commits: GroupCommit) -> None:
        self._broker = broker
        self._commits = commits

    def methods(self) -> Methods:
        """The method of each name."""
        return {"group.start": self.start, "group.dead": self.dead}

    def start(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Record the messages that a member is handling."""
        arguments.only("topic", "group", "member", "queue", "runs", "alone")
        _, members = group_of(self._broker, arguments)
        member = members.find(arguments.text("member"), caller.connection)
        queue = arguments.number("queue")
        runs = tuple(_run(run) for run in arguments.sequence("runs", max_value=MAX_RUNS))
        if sum(end - first for first, end in runs) > MAX_STARTED:
            raise CallError("BAD_ARGUMENT", f"'runs' must be of at most {MAX_STARTED} offsets")
        if queue not in member.held:
            raise CallError("NOT_HELD", f"queue {queue} is not {member.id!r}'s (any more)")
        if runs:
            member.started[queue] = StartedRange(runs, arguments.flag("alone"))
        else:
            member.started.pop(queue, None)
        return None

    async def dead(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Copy a message to the dead-letter topic."""
        arguments.only(
            "topic", "group", "member", "generation", "queue", "offset", "reason", "attempts",
            "first_error", "last_error",
        )  # fmt: skip
        broker = self._broker
        topic, members = group_of(self._broker, arguments)
        member = members.find(arguments.text("member"), caller.connection)
        part = part_of(topic, arguments)
        if not members.holds(member, part.number, arguments.number("generation")):
            raise CallError("NOT_HELD", f"queue {part.number} is not {member.id!r}'s (any more)")
        channel = part.find_channel(arguments.name("group"))
        offset = arguments.number("offset")
        if offset >= part.limit:
            raise CallError("OUT_OF_REACH", f"offset {offset} is above the end, {part.limit}")
        first_error, last_error = (
            arguments.remark(name, max_value=_MAX_ERROR)[:MAX_ERROR_LENGTH]
            for name in ("first_error", "last_error")
        )
        death = DeadLetterInfo(
            DeadLetterReason(arguments.choice("reason", _REASONS)),
            arguments.number("attempts", min_value=1),
            (first_error, last_error),
            broker.wall(),
        )
        frame = channel.cursor.frame(offset, 1)
        if frame is None:
            raise CallError(
                "GONE", f"offset {offset} of queue {part.number} is not stored any more"
            )
        origin: dict[str, str | int] = {
            "topic": part.name,
            "channel": channel.name,
            "queue": part.number,
            "offset": offset,
            "id": part.queue.message_id(offset).decode(),
        }
        stored_at_ns = int.from_bytes(frame[_STORED_AT : _STORED_AT + 8])
        entry = channel.cursor.properties(offset)
        keeper = broker.topic(target_of(channel, entry))
        keeper.channel(CHANNEL)
        entry = dead_letter_properties(
            entry, death, origin, stored_at_ns, dead_letter_topic(channel)
        )
        receipt = keeper.next_queue().stage([bytes(frame[FRAME_HEADER_BYTES:])], 0, [(0, entry)])
        broker.commit()
        if receipt.error is not None:
            raise WritesRefused(str(receipt.error))
        await self._commits.settled(receipt)
        channel.dead_letter_count += 1
        if channel.recorder is not None:
            to = f"{death.reason} -> {keeper.name}" + (f": {last_error}" if last_error else "")
            now_ns, attempts = broker.wall(), death.attempts
            channel.recorder.note(
                TraceStep.GIVEN_UP, offset, offset + 1, now_ns, member, attempts, 0, to
            )
            channel.moved()
        return {"dead_letter_topic": keeper.name}


def failures_of(part: Channel) -> Iterable[tuple[int, int]]:
    """Return messages of a queue by which members were lost, and the number of members."""
    charges = part.cursor.charges
    if charges is None:
        return []
    oldest = sorted(charges.by_offset.items())[:_MAX_SHOWN]
    return [(offset, charge.failures) for offset, charge in oldest]


def _run(value: object) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or any(type(n) is not int for n in value):
        raise CallError("BAD_ARGUMENT", f"'runs': {str(value)[:40]} is no [first, end]")
    first, end = value
    if not 0 <= first < end <= first + MAX_FETCH_MESSAGES:
        raise CallError(
            "BAD_ARGUMENT",
            f"'runs': {str(value)[:80]} must be 1 to {MAX_FETCH_MESSAGES} offsets, from 0 on",
        )
    return first, end
