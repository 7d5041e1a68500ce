"""Dead letters: messages of a channel that have failed too often, moved to a topic of their own.

The dead-letter topic is like any other, so that any consumer can work through it.  The broker
creates it with the first dead letter, and in it a channel `CHANNEL`, which keeps the unhandled
ones: finishing a message there handles it, and the channel's depth is the number of messages left.
`martlet.broker.dead_letters.move` moves a message there without loss. A dead letter has the body
and the properties of the original message, and these properties of the broker::

    dead_reason        the reason: see `DeadLetterReason`
    dead_attempts      the number of deliveries
    dead_failures      the number of failures, the last one included
    dead_first_error   the consumer's error text at the first and the last failure, if it
    dead_last_error    sent any: NSQ's REQ cannot, Martlet's clients do
    dead_topic, dead_channel, dead_queue, dead_offset, dead_id      the original message
    dead_stored_ms     when that was published, in ms since 1970
    dead_at_ms         when it became a dead letter, in ms since 1970
    dead_redrives      the number of redrives before
    dead_before        the topics in which it failed before it came to dead_topic, the oldest first
    dead_instead_of    the topic that it was to go to, where that would have begun a cycle
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from martlet.broker.dead_letters.move import MessageMove, MessageMover
from martlet.broker.tracing.recorder import TraceStep
from martlet.names import EPHEMERAL, MAX_NAME_LENGTH, is_ephemeral
from martlet.properties.model import BadProperties, Properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from martlet.broker.errors import WritesRefused
    from martlet.broker.queue.channel_state import ChannelState
    from martlet.broker.retry import DeadLetterReason
    from martlet.broker.topic.topic import Topic, TopicRegistry

CHANNEL = "dead-letters"
"""The channel of a dead-letter topic that holds the unhandled messages."""
_SUFFIX = ".dead"
_PREFIX = "dead_"
_MILLISECOND_NS = 1_000_000
MAX_MOVES = 8
"""How many topics a message may fail in, one after the other, by its channels' policies."""


def default_name(topic: str, channel: str) -> str:
    """Return the default dead-letter topic of a channel: ``<topic>.<channel>.dead``.

    Unique for each channel: a name that would be too long, or ambiguous because the topic's name
    contains a dot, or ephemeral, is shortened and gets a hash of both names.
    """
    plain = f"{topic}.{channel}{_SUFFIX}"
    ephemeral = is_ephemeral(topic) or is_ephemeral(channel)
    if "." not in topic and not ephemeral and len(plain) <= MAX_NAME_LENGTH:
        return plain
    digest = sha256(f"{topic}:{channel}".encode()).hexdigest()[:8]
    names = f"{topic.removesuffix(EPHEMERAL)}.{channel.removesuffix(EPHEMERAL)}"
    return f"{names[: MAX_NAME_LENGTH - len(_SUFFIX) - 9]}.{digest}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """The history of a message that becomes a dead letter."""

    reason: DeadLetterReason
    attempts: int
    """The number of deliveries."""
    errors: tuple[str, str]
    """The error texts of the first and the last failure; empty for none."""
    at_ns: int
    failures: int = 0


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
    if channel.recorder is not None:
        try:
            name = target_of(channel, channel.cursor.properties(offset))
        except OSError:
            name = dead_letter_topic(channel)  # The move reads it again.
        to = f"{reason} -> {name}"
        channel.recorder.note(TraceStep.GIVEN_UP, offset, offset + 1, now_ns, None, attempts, 0, to)
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
        configured = dead_letter_topic(channel)
        return dead_letter_properties(entry, death, origin, stored_at_ns, configured)

    def opened(entry: bytes) -> Topic:
        topic = topics.topic(target_of(channel, entry))
        topic.channel(CHANNEL)
        return topic.next_queue()

    def count(error: WritesRefused | None) -> None:
        if error is None:
            channel.dead_letter_count += 1

    move = MessageMove(channel, offset, attempts, opened, pack, on_end=count, failures=failures)
    mover.begin(move)


def acyclic_target(entry: bytes, topic: str, channel: str, configured: str) -> str:
    """Return the topic that a message goes to when it fails in a channel.

    It is the configured one, unless the message has failed there before, or in too many topics;
    then it is the channel's default one, where it stays. So no cycle of dead-letter topics moves a
    message on without end.
    """
    path = _path(entry)
    if configured not in (*path, topic) and len(path) < MAX_MOVES:
        return configured
    name = default_name(topic, channel)
    while name in path:
        name = default_name(name, CHANNEL)
    return name


def _path(entry: bytes) -> list[str]:
    """Return the topics in which a dead letter has failed before, the oldest first."""
    notes = _unpacked(entry).system if entry else {}
    return [*notes.get("dead_before", "").split(), *notes.get("dead_topic", "").split()]


def dead_letter_properties(
    entry: bytes,
    death: DeadLetterInfo,
    origin: Mapping[str, str | int],
    stored_at_ns: int,
    configured: str,
) -> bytes:
    """Pack the properties of a dead letter.

    Args:
        entry: the message's packed properties.
        origin: ``topic``, ``channel``, ``queue``, ``offset`` and ``id`` of the message.
        stored_at_ns: when it was published.
        configured: the dead-letter topic of its channel.
    """
    first, last = death.errors
    topic, channel = str(origin["topic"]), str(origin["channel"])
    is_kept = acyclic_target(entry, topic, channel, configured) != configured
    facts: dict[str, str | int] = {
        "reason": death.reason,
        "attempts": death.attempts,
        "failures": death.failures or death.attempts,
        "first_error": first,
        "last_error": last,
        **origin,
        "stored_ms": stored_at_ns // _MILLISECOND_NS,
        "at_ms": death.at_ns // _MILLISECOND_NS,
        "before": " ".join(_path(entry)[-MAX_MOVES:]),
        "instead_of": configured if is_kept else "",
    }
    notes = {_PREFIX + name: str(value) for name, value in facts.items() if value != ""}
    return _with_notes(entry, notes)


def redriven_properties(entry: bytes) -> bytes:
    """Pack the properties of the original message, and the number of redrives."""
    properties = _unpacked(entry)
    notes = {"dead_redrives": str(int(properties.system.get("dead_redrives", "0")) + 1)}
    if "dead_id" in properties.system:
        notes["redriven_id"] = properties.system["dead_id"]
    return _with_notes(entry, notes)


def _with_notes(entry: bytes, notes: Mapping[str, str]) -> bytes:
    """Replace the broker's notes in properties, and remove the mark of a send."""
    properties = _unpacked(entry)
    system = {n: v for n, v in properties.system.items() if not n.startswith(_PREFIX)}
    if "dead_redrives" in properties.system:
        system["dead_redrives"] = properties.system["dead_redrives"]
    own = replace(properties, sent=None, system={}).pack()
    # Packed apart: the client's own properties may fill the size limit already.
    return own + Properties(system={**system, **notes}).pack()


def _unpacked(entry: bytes) -> Properties:
    try:
        return Properties.unpack(entry)
    except BadProperties:
        return Properties()
