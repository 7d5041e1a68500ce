"""Topics: create, describe and configure them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from martlet.schema.access import OPERATORS, READERS
from martlet.schema.kinds import PolicyChanges, TopicName
from martlet.schema.operation import OperationAnswer, OperationRequest, operation

MAX_QUEUES = 1024
"""The maximum of queues of a topic."""
_NORMAL_PRIORITY = 4
_ID_MASK = (1 << 64) - 1


class DescribeTopic(OperationRequest):
    """Which topic to describe.

    topic: its name
    """

    topic: TopicName


class CreateTopic(DescribeTopic):
    """Which topic to create.

    queues: the number of its queues (default: 1 for a new topic); an existing topic can get more,
        never fewer
    """

    queues: Annotated[int, Meta(ge=1, le=MAX_QUEUES)] | None = None


class ConfigureTopic(DescribeTopic):
    """What to change in the policy of a topic.

    policy: the new values of its fields; null resets one to its default
    """

    policy: PolicyChanges


class LogQueue(OperationAnswer, kw_only=True):
    """A queue of a topic at one broker.

    Attributes:
        priority: of its messages.
        id_base: the id of the message at offset 0, as 16 hexadecimal digits.
        start_offset, end_offset: the offsets of the first stored and the next new message.
    """

    queue: int
    id_base: str
    start_offset: int
    end_offset: int
    priority: int = _NORMAL_PRIORITY

    def offset_of(self, message_id: str) -> int | None:
        """Return the offset of the message with an id; None if it is not of this queue, or is no
        longer or not yet stored.
        """
        offset = self.distance_of(message_id)
        return offset if self.start_offset <= offset < self.end_offset else None

    def distance_of(self, message_id: str) -> int:
        """Return the offset of an id of this queue, whatever the queue stores."""
        return (int(message_id, 16) - int(self.id_base, 16)) & _ID_MASK


class TopicDescription(OperationAnswer, kw_only=True, omit_defaults=False):
    """A topic of one broker. Fields with a default are sent, too; earlier brokers lack them.

    Attributes:
        key_hash: the function that leads from an order key to a queue.
        channels: the names of its channels.
        policy: its settings that differ from their defaults.
        channel_policies: the same of each channel.
    """

    topic: str
    key_hash: str = "crc32c"
    queues: tuple[LogQueue, ...]
    channels: tuple[str, ...]
    policy: Mapping[str, Any] = {}
    channel_policies: Mapping[str, Mapping[str, Any]] = {}


class PolicyInForce(OperationAnswer):
    """The policy of a topic or a channel: what differs from the defaults."""

    policy: Mapping[str, Any]


CREATE = operation(
    "topic.create",
    CreateTopic,
    TopicDescription,
    OPERATORS,
    "Create a topic, or add queues to it; their number never falls. Answers as `topic.describe`.",
)
DESCRIBE = operation(
    "topic.describe",
    DescribeTopic,
    TopicDescription,
    READERS,
    "Describe a topic: its queues, and its and its channels' policies. An id is the"
    " `id_base` of its queue + its offset.",
)
CONFIGURE = operation(
    "topic.configure",
    ConfigureTopic,
    PolicyInForce,
    OPERATORS,
    "Set some fields of a topic's policy. Answers all that differ from their defaults.",
)
