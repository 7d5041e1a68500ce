"""Send a message that has failed for good to the channel's dead-letter topic.

The body is unchanged; its history is added to the properties (see
`martlet.broker.dead_letters.dead_letter`). `martlet.broker.dead_letters.move` moves it without
loss.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from martlet.broker.dead_letters.dead_letter import (
    CHANNEL,
    DeadLetterInfo,
    acyclic_target,
    dead_letter_properties,
    default_name,
)
from martlet.broker.dead_letters.move import MessageMove
from martlet.broker.tracing.recorder import TraceStep

if TYPE_CHECKING:
    from martlet.broker.dead_letters.move import MessageMover
    from martlet.broker.errors import WritesRefused
    from martlet.broker.queue.channel_state import ChannelState
    from martlet.broker.retry import DeadLetterReason
    from martlet.broker.topic.registry import TopicRegistry
    from martlet.broker.topic.topic import Topic


def dead_letter_topic(channel: ChannelState) -> str:
    """Return the name of a channel's dead-letter topic."""
    return channel.policy.dead_letter_topic or default_name(channel.topic, channel.name)


def target_of(channel: ChannelState, entry: bytes) -> str:
    """Return the name of the topic that a message with those properties goes to when it fails."""
    return acyclic_target(entry, channel.topic, channel.name, dead_letter_topic(channel))


def move_to_dead_letters(
    topics: TopicRegistry,
    mover: MessageMover,
    channel: ChannelState,
    offset: int,
    attempts: int,
    failures: int,
    reason: DeadLetterReason,
) -> None:
    """Begin to move a message that no consumer holds to its channel's dead-letter topic."""
    now_ns = topics.wall()
    if channel.trail is not None:
        try:
            name = target_of(channel, channel.cursor.properties(offset))
        except OSError:
            name = dead_letter_topic(channel)  # The move reads it again.
        to = f"{reason} -> {name}"
        channel.trail.note(TraceStep.GIVEN_UP, offset, offset + 1, now_ns, None, attempts, 0, to)
    errors = channel.cursor.pending.errors.get(offset, ("", ""))
    death = DeadLetterInfo(reason, attempts, errors, now_ns, failures)
    queue = channel.cursor.queue
    origin: dict[str, str | int] = {
        "topic": channel.topic,
        "channel": channel.name,
        "queue": queue.number,
        "offset": offset,
        "id": queue.message_id(offset).decode(),
    }

    def pack(entry: bytes, stored_at_ns: int) -> bytes:
        wanted = dead_letter_topic(channel)
        return dead_letter_properties(entry, death, origin, stored_at_ns, wanted)

    mover.begin(
        MessageMove(
            channel,
            offset,
            attempts,
            partial(_open, topics, channel, offset),
            pack,
            on_end=partial(_count, channel),
            failures=failures,
        )
    )


def _open(topics: TopicRegistry, channel: ChannelState, offset: int) -> Topic:
    """Return a message's dead-letter topic, created if necessary. Raises WritesRefused."""
    topic = topics.topic(target_of(channel, channel.cursor.properties(offset)))
    topic.channel(CHANNEL)
    return topic.next_part()


def _count(channel: ChannelState, error: WritesRefused | None) -> None:
    if error is None:
        channel.dead_letter_count += 1
