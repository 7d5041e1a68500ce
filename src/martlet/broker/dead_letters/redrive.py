"""Redrive: dead letters listed, moved back, or deleted.

A dead letter that is moved back is appended to its original topic, in a batch for a single channel:
the one in which it failed. The topic's other channels have had the message, and skip it like a
deferred message of another channel (see `martlet.broker.queue.cursor`). RocketMQ uses a retry topic
for each group instead; here that would be a second queue for each channel, with a cursor of its
own, and its messages would be missing in the topic's history. A redriven message starts again with
its first attempt, and carries the number of redrives. Moved to another topic, it is a message like
all others there.

Dead letters are selected one by one, in the channel that keeps them. Its cursor cannot have gaps
ahead of it, so every message up to the last one selected becomes a pending message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from martlet.broker.dead_letters.dead_letter import MessageMove, MessageMover, redriven_properties
from martlet.broker.errors import NotFound, WritesRefused
from martlet.broker.queue.peek import PeekedFrames, PeekState, peek
from martlet.log.record import FRAME_HEADER_BYTES
from martlet.properties.model import BadProperties, Properties

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.topic.topic import Topic, TopicRegistry

_MILLISECOND_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter."""

    keeper: Channel
    """The channel that keeps it, at its queue; offset, state, attempts and time are of there."""
    offset: int
    state: PeekState
    attempts: int
    stored_at_ns: int
    body: bytes
    properties: Properties
    """Its properties, with the broker's notes."""

    def note(self, name: str) -> str:
        """Return a note of the broker on it; empty for none."""
        return self.properties.system.get(f"dead_{name}", "")

    @property
    def id(self) -> str:
        """Its id as a dead letter."""
        return self.keeper.queue.message_id(self.offset).decode()

    @property
    def at_ms(self) -> int:
        """When it became a dead letter, or was stored here, in milliseconds since 1970."""
        at_ms = self.note("at_ms")
        return int(at_ms) if at_ms.isdecimal() else self.stored_at_ns // _MILLISECOND_NS


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """A selection of dead letters: those that match all conditions that are set."""

    ids: Collection[str] = ()
    """Their ids as dead letters, or their original ids."""
    reason: str = ""
    error: str = ""
    """A piece of the error text of the first or the last failure."""
    since_ms: int = 0
    until_ms: int = 1 << 62
    """When they became dead letters, in milliseconds since 1970."""
    topic: str = ""
    channel: str = ""
    """The original ones."""

    def ids_of(self, letter: DeadLetter) -> set[str]:
        """Return the selected ids that match a dead letter."""
        return {letter.id, letter.note("id")}.intersection(self.ids)

    def wants(self, letter: DeadLetter) -> bool:
        """Whether a dead letter is selected."""
        note = letter.note
        return (
            (not self.ids or bool(self.ids_of(letter)))
            and self.reason in ("", note("reason"))
            and (self.error in note("first_error") or self.error in note("last_error"))
            and self.since_ms <= letter.at_ms <= self.until_ms
            and self.topic in ("", note("topic"))
            and self.channel in ("", note("channel"))
        )


def letters(keeper: Channel, start: int, max_count: int) -> tuple[list[DeadLetter], int | None]:
    """Return the first dead letters from an offset on, without unreadable ones, and the offset of
    the next one, if any.
    """
    messages = peek(keeper, start, max_count + 1, list(PeekState))
    frames = PeekedFrames(keeper.cursor)
    listed = []
    for peeked in messages[:max_count]:
        read = frames.read(peeked.offset)
        if read is None or (peeked.state is PeekState.IN_FLIGHT and peeked.owner is None):
            continue  # It is moving to another topic.
        entry, frame = read
        try:
            properties = Properties.unpack(keeper.cursor.properties(peeked.offset))
        except BadProperties:
            properties = Properties()
        listed.append(
            DeadLetter(
                keeper,
                peeked.offset,
                peeked.state,
                peeked.attempts,
                entry.stored_at_ns,
                bytes(frame[FRAME_HEADER_BYTES:]),
                properties,
            )
        )
    return listed, messages[max_count].offset if len(messages) > max_count else None


def origin_of(topics: TopicRegistry, letter: DeadLetter) -> tuple[Topic, Channel]:
    """Return the origin of a dead letter: the topic at its queue, and the channel. Raises NotFound,
    with a remedy.
    """
    name, channel = letter.note("topic"), letter.note("channel")
    if not name:
        raise NotFound(
            f"message {letter.id} does not say where it came from, as no broker has put it here:"
            " name a topic that it shall go to"
        )
    try:
        topic = topics.find_topic(name)
        topic.find_channel(channel)
    except NotFound as error:
        raise NotFound(
            f"{error}, where dead letters are to go back to: make it again, or name a topic that"
            " they shall go to"
        ) from None
    queue = letter.note("queue")
    number = int(queue) if queue.isdecimal() and int(queue) < len(topic.at_queues) else 0
    queue_topic = topic.at_queues[number]
    return queue_topic, queue_topic.channels[channel]


def redrive(
    mover: MessageMover,
    letter: DeadLetter,
    to: Callable[[], Topic],
    only: Channel | None,
    on_end: Callable[[WritesRefused | None], None],
) -> None:
    """Begin to move a dead letter.

    Args:
        letter: must not be in flight.
        to: returns the target topic. Raises WritesRefused.
        only: the only channel there that gets it; None for all.
        on_end: called with None when it has been moved, or with the error why it stays.
    """
    letter.keeper.redelivery.make_pending(letter.offset + 1)
    mover.begin(
        MessageMove(
            letter.keeper,
            letter.offset,
            letter.attempts,
            lambda entry: to(),
            lambda entry, stored_at_ns: redriven_properties(entry),
            only,
            insists=False,
            on_end=on_end,
        )
    )


def purge(letter: DeadLetter) -> None:
    """Delete a dead letter, which must not be in flight."""
    letter.keeper.redelivery.make_pending(letter.offset + 1)
    letter.keeper.redelivery.finish_unheld(letter.offset)
