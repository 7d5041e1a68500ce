"""The call by which a member of a group gives up a message that it cannot handle.

``group.dead`` copies the message at ``offset`` of a ``queue`` that the member has to the group's
dead-letter topic, with ``reason`` (``max_attempts``, ``rejected`` or ``disconnected``),
``attempts``, ``first_error`` and ``last_error``, and answers with that ``dead_letter_topic`` once
it is as safe there as a publish that was answered OK.  Only then may the member commit beyond it;
so a crash may double the dead letter, and never loses the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.dead_letters.dead_letter import (
    CHANNEL,
    DeadLetterInfo,
    buried,
)
from martlet.broker.dead_letters.send import dead_letter_topic
from martlet.broker.errors import WritesRefused
from martlet.broker.retry import MAX_ERROR_LENGTH, DeadLetterReason
from martlet.broker.tracing.recorder import TraceStep
from martlet.log.record import FRAME_HEADER_BYTES
from martlet.server.rpc.arguments import CallError
from martlet.server.rpc.fetch import group_of, part_of

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.server.group_commit import GroupCommit
    from martlet.server.rpc.arguments import CallArguments
    from martlet.server.rpc.registry import Answer, Caller, Methods

_REASONS = (DeadLetterReason.MAX_ATTEMPTS, DeadLetterReason.REJECTED, DeadLetterReason.DISCONNECTED)
_MAX_ERROR = 100 * MAX_ERROR_LENGTH
"""No client has to count: what is longer than what is kept is cut."""
_STORED_AT = 8
"""Where the time stands in a frame."""


class BurialCalls:
    """What members of groups give up, over a server's broker."""

    def __init__(self, broker: BrokerCore, commits: GroupCommit) -> None:
        self._broker = broker
        self._commits = commits

    def methods(self) -> Methods:
        """The method of each name."""
        return {"group.dead": self.dead}

    async def dead(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Keep a message in the dead-letter topic."""
        arguments.only(
            "topic", "group", "member", "generation", "queue", "offset", "reason", "attempts",
            "first_error", "last_error",
        )  # fmt: skip
        broker = self._broker
        topic, members = group_of(self._broker, caller, arguments)
        member = members.find(arguments.text("member"), caller.connection)
        part = part_of(topic, arguments)
        if not members.holds(member, part.number, arguments.number("generation")):
            raise CallError("NOT_HELD", f"queue {part.number} is not {member.id!r}'s (any more)")
        channel = part.find_channel(arguments.name("group"))
        offset = arguments.number("offset")
        if offset >= part.limit:
            raise CallError("OUT_OF_REACH", f"offset {offset} is above the end, {part.limit}")
        told = [
            arguments.remark(name, max_value=_MAX_ERROR) for name in ("first_error", "last_error")
        ]
        death = DeadLetterInfo(
            DeadLetterReason(arguments.choice("reason", _REASONS)),
            arguments.number("attempts", min_value=1),
            (told[0][:MAX_ERROR_LENGTH], told[1][:MAX_ERROR_LENGTH]),
            broker.clock(),
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
        entry = buried(channel.cursor.properties(offset), death, origin, stored_at_ns)
        keeper = broker.topic(dead_letter_topic(channel))
        keeper.channel(CHANNEL)
        receipt = keeper.next_part().stage([bytes(frame[FRAME_HEADER_BYTES:])], 0, [(0, entry)])
        broker.commit()
        if receipt.error is not None:
            raise WritesRefused(str(receipt.error))
        await self._commits.settled(receipt)
        channel.dead_letter_count += 1
        if channel.trail is not None:
            to = f"{death.reason} -> {keeper.name}" + (f": {told[1]}" if told[1] else "")
            now_ns, attempts = broker.clock(), death.attempts
            channel.trail.note(
                TraceStep.GIVEN_UP, offset, offset + 1, now_ns, member, attempts, 0, to
            )
            channel.moved()
        return {"dead_letter_topic": keeper.name}
