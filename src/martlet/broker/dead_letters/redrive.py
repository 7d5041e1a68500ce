"""Redrive: dead letters looked at, brought back, or thrown away.

A dead letter that is brought back is appended to its old topic, in a batch that is for one channel
alone: the one that had given it up.  The others of the topic have had the message, and pass over it
as over a deferred one whose time is somebody else's (see `martlet.broker.queue.cursor`).
(RocketMQ does the same by a topic of its own for each group; here that would be a second queue of
each channel, with a cursor of its own, and its messages would be in no history of the topic.)  It
begins anew, with its first attempt, and knows how often it was brought back.  Brought to another
topic, it is a message like all others there.

Dead letters are chosen one by one, in the channel that keeps them.  That has no holes in what it
has yet to deliver, so everything up to the last one chosen becomes a straggler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from martlet.broker.dead_letters.dead_letter import revived
from martlet.broker.dead_letters.move import MessageMove
from martlet.broker.errors import NotFound, WritesRefused
from martlet.broker.queue.peek import PeekedFrames, PeekState, peek
from martlet.log.record import FRAME_HEADER_BYTES
from martlet.properties.model import BadProperties, Properties

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.dead_letters.move import MessageMover
    from martlet.broker.topic.registry import TopicRegistry
    from martlet.broker.topic.topic import Topic

_MILLISECOND_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter.

    Attributes:
        keeper: the channel that keeps it, at its queue.
        offset: its offset there.
        state: whether it waits there, or is with a consumer.
        attempts: how often it was delivered there.
        stored_at_ns: when it came there.
        body: its body.
        properties: what is known of it.
    """

    keeper: Channel
    offset: int
    state: PeekState
    attempts: int
    stored_at_ns: int
    body: bytes
    properties: Properties

    def note(self, name: str) -> str:
        """What the broker has noted of its death; empty for nothing."""
        return self.properties.system.get(f"dead_{name}", "")

    @property
    def id(self) -> str:
        """Its id as a dead letter."""
        return self.keeper.queue.message_id(self.offset).decode()

    @property
    def at_ms(self) -> int:
        """When it was given up, or came here, in milliseconds since 1970."""
        at_ms = self.note("at_ms")
        return int(at_ms) if at_ms.isdecimal() else self.stored_at_ns // _MILLISECOND_NS


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Which dead letters are meant: those for which all that is given holds.

    Attributes:
        ids: by the id that they have as dead letters, or had before.
        reason: why they were given up.
        error: a part of what was said when they failed first or last.
        since_ms, until_ms: when they were given up, in milliseconds since 1970.
        topic, channel: whose they were.
    """

    ids: Collection[str] = ()
    reason: str = ""
    error: str = ""
    since_ms: int = 0
    until_ms: int = 1 << 62
    topic: str = ""
    channel: str = ""

    def ids_of(self, letter: DeadLetter) -> set[str]:
        """Those of the ids by which one is meant."""
        return {letter.id, letter.note("id")}.intersection(self.ids)

    def wants(self, letter: DeadLetter) -> bool:
        """Whether one is meant."""
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
    """The first dead letters from an offset on, and the offset of the next one, if there is one.

    What can not be read is left out.
    """
    found = peek(keeper, start, max_count + 1, list(PeekState))
    frames = PeekedFrames(keeper.cursor)
    listed = []
    for peeked in found[:max_count]:
        read = frames.read(peeked.offset)
        if read is None or (peeked.state is PeekState.IN_FLIGHT and peeked.owner is None):
            continue  # On its way elsewhere already.
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
    return listed, found[max_count].offset if len(found) > max_count else None


def way_back(topics: TopicRegistry, letter: DeadLetter) -> tuple[Topic, Channel]:
    """Where a dead letter came from: the topic at its queue, and the channel.

    Raises NotFound, with the way out.
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
    number = int(queue) if queue.isdecimal() and int(queue) < len(topic.parts) else 0
    part = topic.parts[number]
    return part, part.channels[channel]


def redrive(
    mover: MessageMover,
    letter: DeadLetter,
    to: Callable[[], Topic],
    only: Channel | None,
    on_end: Callable[[WritesRefused | None], None],
) -> None:
    """Begin to move a dead letter.

    Args:
        mover: of the broker.
        letter: which is not with a consumer.
        to: finds the topic where it goes. Raises WritesRefused.
        only: the channel there that alone gets it; None for all.
        on_end: called when it has been moved, or with why it stays where it is.
    """
    letter.keeper.redelivery.unroll(letter.offset + 1)
    mover.begin(
        MessageMove(
            letter.keeper,
            letter.offset,
            letter.attempts,
            to,
            lambda entry, stored_at_ns: revived(entry),
            only,
            insists=False,
            on_end=on_end,
        )
    )


def purge(letter: DeadLetter) -> None:
    """Throw a dead letter away, which is not with a consumer."""
    letter.keeper.redelivery.unroll(letter.offset + 1)
    letter.keeper.redelivery.let_go(letter.offset)
