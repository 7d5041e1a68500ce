"""Burial: a message that a channel gives up goes to the channel's dead-letter topic.

The body goes as it is, the properties with what became of the message beside them (see
`martlet.broker.dead_letters.dead_letter`).  How it gets there without being lost is
`martlet.broker.dead_letters.move`'s.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from martlet.broker.dead_letters.dead_letter import CHANNEL, DeadLetterInfo, buried, default_name
from martlet.broker.dead_letters.move import MessageMove

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.delivery import ChannelContext
    from martlet.broker.dead_letters.dead_letter import DeadLetterReason
    from martlet.broker.errors import WritesRefused
    from martlet.broker.topic.topic import Topic


def dead_letter_topic(channel: Channel) -> str:
    """The name of a channel's dead-letter topic."""
    return channel.policy.dead_letter_topic or default_name(channel.topic, channel.name)


def bury(
    context: ChannelContext,
    channel: Channel,
    offset: int,
    attempts: int,
    failures: int,
    reason: DeadLetterReason,
) -> None:
    """Begin to move a message that nobody has in flight to its channel's dead-letter topic."""
    errors = channel.cursor.stragglers.errors.get(offset, ("", ""))
    death = DeadLetterInfo(reason, attempts, errors, context.clock(), failures)
    queue = channel.cursor.queue
    origin: dict[str, str | int] = {
        "topic": channel.topic,
        "channel": channel.name,
        "queue": queue.number,
        "offset": offset,
        "id": queue.message_id(offset).decode(),
    }

    def pack(entry: bytes, stored_at_ns: int) -> bytes:
        return buried(entry, death, origin, stored_at_ns)

    context.transfers.begin(
        MessageMove(
            channel,
            offset,
            attempts,
            partial(_open, context, channel),
            pack,
            on_end=partial(_count, channel),
            failures=failures,
        )
    )


def _open(context: ChannelContext, channel: Channel) -> Topic:
    """Where dead letters go, made if need be. Raises WritesRefused."""
    topic = context.topic(dead_letter_topic(channel))
    topic.channel(CHANNEL)
    return topic.next_part()


def _count(channel: Channel, error: WritesRefused | None) -> None:
    if error is None:
        channel.dead_letter_count += 1
