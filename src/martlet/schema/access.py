"""Who may make a call: operators any, and clients those of the other classes.

===========  =======================================================================================
operators    nobody else: the call shows messages, or changes what operators decide
readers      who may subscribe to some channel of the call's topic
consumers    who may subscribe to the call's channel, or its group, which is a channel
own          any client, for what its connection has: its subscription, or transactions on whose
             topics it may publish. The handler checks that, since it depends on the state
clients      any client
===========  =======================================================================================

No class is for publishers: who may publish to a topic may not read it, nor change its policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class CallerClass(Enum):
    """The callers that may make a call."""

    OPERATORS = "operators"
    READERS = "readers"
    CONSUMERS = "consumers"
    OWN = "own"
    CLIENTS = "clients"


@dataclass(frozen=True, slots=True)
class CallAccess:
    """Who may make a call."""

    callers: CallerClass
    who: str
    """Those callers in words."""
    channel: str = ""
    """The field that names the channel, of consumers' calls. The topic is `topic`."""


OPERATORS = CallAccess(CallerClass.OPERATORS, "operators")
READERS = CallAccess(CallerClass.READERS, "who may subscribe to some channel of `topic`")
CONSUMERS = CallAccess(CallerClass.CONSUMERS, "who may subscribe to `channel`", "channel")
MEMBERS = CallAccess(CallerClass.CONSUMERS, "who may subscribe to `group`", "group")
SUBSCRIBED = CallAccess(CallerClass.OWN, "a consumer, about messages that it has")
TRANSACTIONAL = CallAccess(
    CallerClass.OWN, "who may publish to the topics of the transactions that it is about"
)
CLIENTS = CallAccess(CallerClass.CLIENTS, "any client")

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
"""The class of each call that is not declared as an operation."""


def access_to_call(method: str) -> CallAccess:
    """Return who may make a call; one that is not declared is for operators."""
    return CALLS.get(method, OPERATORS)
