"""Channels: configure them, and undo an empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from martlet.schema.access import OPERATORS
from martlet.schema.kinds import ChannelName, PolicyChanges, TopicName
from martlet.schema.operation import OperationAnswer, OperationRequest, operation
from martlet.schema.topics import MAX_QUEUES, PolicyInForce


class _OfChannel(OperationRequest):
    """The channel that is meant.

    topic: its topic
    channel: its name
    """

    topic: TopicName
    channel: ChannelName


class ConfigureChannel(_OfChannel):
    """What to change in the policy of a channel.

    policy: the new values of its fields; null resets one to its default
    """

    policy: PolicyChanges


class EmptiedChannel(OperationAnswer):
    """A channel's offsets before it was emptied, at one broker: of ``/channel/empty?undo=true``.

    Attributes:
        queues: in each queue; only to be handed back.
        depth: how many unfinished messages it had, waiting, in flight or deferred.
        kept_until_ns: until when the broker keeps them, in nanoseconds since 1970.
    """

    queues: Sequence[Any]
    depth: int
    kept_until_ns: int


class RestoreChannel(_OfChannel):
    """What to put back into a channel.

    queues: what /channel/empty with undo=true answered
    """

    queues: Annotated[Sequence[Any], Meta(max_length=MAX_QUEUES)]


class RestoredChannel(OperationAnswer):
    """A channel after an undo: the messages that wait."""

    depth: int


CONFIGURE = operation(
    "channel.configure",
    ConfigureChannel,
    PolicyInForce,
    OPERATORS,
    "Set some fields of a channel's policy. Answers all that differ from their defaults.",
)
RESTORE = operation(
    "channel.restore",
    RestoreChannel,
    RestoredChannel,
    OPERATORS,
    "Undo an empty of a channel, by what it answered. Answers the channel's depth.",
)
