"""The class of each call that is not declared as an operation."""

from __future__ import annotations

from collections.abc import Mapping

from martlet.schema.access import (
    CLIENTS,
    CONSUMERS,
    MEMBERS,
    OPERATORS,
    READERS,
    SUBSCRIBED,
    TRANSACTIONAL,
    CallAccess,
)

CALLS: Mapping[str, CallAccess] = {
    "topic.fetch": READERS,
    "channel.want": CONSUMERS,
    **dict.fromkeys(
        (
            *("group.join", "group.assignment", "group.volunteer", "group.plan"),
            *("group.release", "group.leave", "group.commit"),
            *("group.fetch", "group.start", "group.dead", "group.follow"),
        ),
        MEMBERS,
    ),
    **dict.fromkeys(
        ("message.later", "message.dead", "message.give_back", "message.started"), SUBSCRIBED
    ),
    **dict.fromkeys(("transaction.prepare", "transaction.checks"), TRANSACTIONAL),
    "transaction.begin": CLIENTS,
}


def access_to_call(method: str) -> CallAccess:
    """Return who may make a call; one that is not declared is for operators."""
    return CALLS.get(method, OPERATORS)
