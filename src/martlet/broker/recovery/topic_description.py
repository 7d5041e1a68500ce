"""The description: what the journal is told of a topic's channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.broker.policy import Policy
    from martlet.broker.queue.channel_state import ChannelState
    from martlet.broker.recovery.journal import Description
    from martlet.broker.topic.topic import Topic
    from martlet.broker.topic.topic_queue import SingleQueueTopic


def describe_channel(part: SingleQueueTopic, channel: ChannelState) -> Description:
    """A channel as the journal tells it.

    Where it began, or has come to, and how much of its topic it has seen is always told: what else
    tells it may be lost in a power cut.
    """
    return {
        "id": channel.id,
        "name": channel.name,
        "paused": channel.paused,
        "start": channel.cursor.lowest_needed,
        **({"voids": list(channel.voids)} if channel.voids else {}),
        "limit": part.limit,
        **to_description(channel.policy),
    }


def channel_op(topic: Topic, channel: ChannelState, **fields: object) -> Description:
    """That a channel is there, or has changed, at one queue."""
    described = describe_channel(topic, channel) | fields
    return {"op": "channel", "topic_id": topic.id, "channel": described}


def to_description(policy: Policy) -> Description:
    """The policy of a topic or a channel, where it has any."""
    told = policy.to_json()
    return {"policy": told} if told else {}
