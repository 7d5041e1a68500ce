"""The dead-letter topic: where a channel's messages go that have failed too often.

It is a topic like any other, so that any consumer can work through it.  The broker makes it with
the first dead letter, and in it a channel `CHANNEL`, which keeps what nobody has dealt with: who
finishes a message there has done with it, and the channel's depth is how many are left.  A dead
letter has the body and the properties of the message that it was, and among them, written by the
broker::

    dead_reason        why: see `DeadLetterReason`
    dead_attempts      how often it was delivered
    dead_failures      how often it had failed, the last time included
    dead_first_error   what its consumer said when it failed first and last, where it said
    dead_last_error    anything: NSQ's REQ cannot, Martlet's own clients do
    dead_topic, dead_channel, dead_queue, dead_offset, dead_id      which message it was
    dead_stored_ms     when that was published, in ms since 1970
    dead_at_ms         when it was given up
    dead_redrives      how often it had been brought back before
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from martlet.names import EPHEMERAL, MAX_NAME_LENGTH, is_ephemeral
from martlet.properties.model import BadProperties, Properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from martlet.broker.retry import DeadLetterReason

CHANNEL = "dead-letters"
"""The channel of a dead-letter topic that holds what is yet to be dealt with."""
_SUFFIX = ".dead"
_PREFIX = "dead_"
_MILLISECOND_NS = 1_000_000


def default_name(topic: str, channel: str) -> str:
    """The dead-letter topic of a channel that has none set: ``<topic>.<channel>.dead``.

    No two channels have the same: where it would be too long, or could be another's because there
    is a dot in the topic's name, or names are ephemeral, it is cut and says a hash of both names.
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
    """What is known of a message that is given up.

    Attributes:
        reason: why.
        attempts: how often it was delivered.
        errors: what was said when it failed first and last; empty for nothing.
        at_ns: when.
        failures: how often it had failed.
    """

    reason: DeadLetterReason
    attempts: int
    errors: tuple[str, str]
    at_ns: int
    failures: int = 0


def buried(
    entry: bytes, death: DeadLetterInfo, origin: Mapping[str, str | int], stored_at_ns: int
) -> bytes:
    """The properties of a dead letter, packed.

    Args:
        entry: those of the message, packed.
        death: how it came to that.
        origin: ``topic``, ``channel``, ``queue``, ``offset`` and ``id`` of the message.
        stored_at_ns: when it was published.
    """
    first, last = death.errors
    facts: dict[str, str | int] = {
        "reason": death.reason,
        "attempts": death.attempts,
        "failures": death.failures or death.attempts,
        "first_error": first,
        "last_error": last,
        **origin,
        "stored_ms": stored_at_ns // _MILLISECOND_NS,
        "at_ms": death.at_ns // _MILLISECOND_NS,
    }
    notes = {_PREFIX + name: str(value) for name, value in facts.items() if value != ""}
    return _with_notes(entry, notes)


def revived(entry: bytes) -> bytes:
    """The properties of a dead letter that is brought back, packed: those that it had alive, and
    how often that was done.
    """
    known = _unpacked(entry)
    notes = {"dead_redrives": str(int(known.system.get("dead_redrives", "0")) + 1)}
    if "dead_id" in known.system:
        notes["redriven_id"] = known.system["dead_id"]
    return _with_notes(entry, notes)


def _with_notes(entry: bytes, notes: Mapping[str, str]) -> bytes:
    """Properties with other notes of a death, and no longer those of a send."""
    known = _unpacked(entry)
    system = {n: v for n, v in known.system.items() if not n.startswith(_PREFIX)}
    if "dead_redrives" in known.system:
        system["dead_redrives"] = known.system["dead_redrives"]
    own = replace(known, sent=None, system={}).pack()
    # Apart: what a client may send fills the limit as it is.
    return own + Properties(system={**system, **notes}).pack()


def _unpacked(entry: bytes) -> Properties:
    try:
        return Properties.unpack(entry)
    except BadProperties:
        return Properties()
