"""Groups, whose members fetch from assigned queues: list, describe and reset them."""

from __future__ import annotations

from typing import TypedDict

from martlet.client.admin.methods import at_each
from martlet.client.admin.operation_group import OperationGroup
from martlet.schema.groups import (
    DESCRIBE,
    LIST,
    RESET,
    GroupDescription,
    Groups,
    GroupSummary,
)


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


def _groups(answer: Groups) -> tuple[GroupSummary, ...]:
    return answer.groups


def _lag(group: GroupDescription) -> int:
    """Return the messages that a group has not committed yet."""
    return group.lag


class GroupMethods:
    """The methods of both clients."""

    list = at_each(LIST, _groups)
    describe = at_each(DESCRIBE)
    lag = at_each(DESCRIBE, _lag)
    reset = at_each(RESET)


class GroupAdmin(GroupMethods, OperationGroup):
    """The groups of brokers: `Admin.groups`.

    Each method answers for each broker, which has members and offsets of its own, and raises
    AdminError only if none answered. ``reset`` wants one field of `ResetPosition`; the messages
    that a reset forward passes are not delivered.
    """
