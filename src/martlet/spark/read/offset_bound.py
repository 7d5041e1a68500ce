"""Bounds: where a query starts or ends, as a user may write it.

A place in a queue is one of

====================================  ============================================================
``earliest``, ``latest``              the first offset that is stored, the offset of the next
                                      message; in JSON also -2 and -1, as Spark's Kafka source has
``earliest+1000``, ``latest-1000``    so many offsets from there, as far as there are
``2026-11-22T08:00:00Z``              the first message stored at or after that time
``now-1h30m``                         the same, so long before the query is planned
``17``                                an offset; only in JSON, where it is a number
====================================  ============================================================

and a bound is one place for all queues, or JSON that has a place for a topic, for a queue, or for
a queue of one broker::

    {"orders": "latest-1000", "flights": {"0": 17, "1": "earliest"}}
    {"<broker id>": {"orders": {"0": 17}}}

What a query has told as its own position may be given back as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from martlet.durations import parse_duration
from martlet.spark.read.offsets import TOPIC_ID

EARLIEST = -2
LATEST = -1
"""As in the JSON of Spark's Kafka source."""

_RELATIVE = re.compile(r"(earliest|latest)(?:\s*([+-])\s*(\d+))?", re.IGNORECASE)
_NOW = re.compile(r"now(?:\s*-\s*(\S+))?", re.IGNORECASE)
_MAX_DIGITS = 20
_PLACES = "earliest, latest-1000, now-1h, 2026-11-22T08:00:00Z"


@dataclass(frozen=True)
class BoundOffset:
    """A place in a queue.

    Exactly one of these is set.

    Attributes:
        offset: that offset.
        end: EARLIEST or LATEST, and `shift` so many offsets from there.
        time_ns: the first message stored at or after it, ns since 1970.
        ago_ns: the first message stored so long ago or later.
    """

    offset: int | None = None
    end: int | None = None
    shift: int = 0
    time_ns: int | None = None
    ago_ns: int | None = None


Places = Mapping[str, Any]
"""By topic and queue, or by broker, topic and queue; a topic may have one for all its queues."""


@dataclass(frozen=True)
class Bound:
    """Where to start or to end: the same everywhere, or what is said for each queue."""

    everywhere: BoundOffset | None = None
    places: Places | None = None


START = Bound(BoundOffset(end=EARLIEST))
END = Bound(BoundOffset(end=LATEST))


def parse_bound(name: str, text: str) -> Bound:
    """Read an option. Raises ValueError, which names the option and what would be right."""
    text = text.strip()
    if not text.startswith(("{", "[")):
        place = _place(text)
        if place is None:
            raise ValueError(_wrong(name, text))
        return Bound(place)
    try:
        told = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{_wrong(name, text)}: {error}") from error
    if not isinstance(told, dict) or not told:
        raise ValueError(_wrong(name, text))
    return Bound(places={key: _topic_or_broker(name, text, value) for key, value in told.items()})


def _wrong(name: str, text: str) -> str:
    hint = ""
    if text.isdecimal():
        timestamp = name.replace("Offsets", "Timestamp")
        hint = f'; for an offset write {{"topic": {{"0": {text}}}}}, for a time {timestamp}'
    return (
        f"option {name}: {text[:200]!r} is neither a place such as {_PLACES} nor JSON such as "
        f'{{"topic": {{"0": 17}}}}, with -2 for earliest and -1 for latest{hint}'
    )


def _topic_or_broker(name: str, text: str, value: object) -> object:
    """What JSON has for a topic, or for a broker: of each topic the same."""
    if not isinstance(value, dict):
        return _bound_of(name, text, value)
    if not value:
        raise ValueError(_wrong(name, text))
    if all(key.isdecimal() or key == TOPIC_ID for key in value) and not any(
        isinstance(inner, dict) for inner in value.values()
    ):
        return {
            queue: _bound_of(name, text, told) for queue, told in value.items() if queue != TOPIC_ID
        }
    if any(isinstance(inner, dict) and _is_by_topic(inner) for inner in value.values()):
        raise ValueError(_wrong(name, text))
    return {topic: _topic_or_broker(name, text, told) for topic, told in value.items()}


def _is_by_topic(value: Mapping[str, object]) -> bool:
    return not value or any(isinstance(inner, dict) for inner in value.values())


def _bound_of(name: str, text: str, told: object) -> BoundOffset:
    if type(told) is int and told >= EARLIEST:
        return BoundOffset(offset=told) if told >= 0 else BoundOffset(end=told)
    place = _place(told.strip()) if isinstance(told, str) else None
    if place is None:
        raise ValueError(_wrong(name, text))
    return place


def _place(text: str) -> BoundOffset | None:
    relative = _RELATIVE.fullmatch(text)
    if relative is not None:
        end = EARLIEST if relative[1].lower() == "earliest" else LATEST
        count = int(relative[3] or 0)
        if count and (relative[2] == "+") != (end == EARLIEST):
            return None
        return BoundOffset(end=end, shift=count if end == EARLIEST else -count)
    ago = _NOW.fullmatch(text)
    if ago is not None:
        try:
            ago_ns = parse_duration(ago[1]) if ago[1] else 0
        except ValueError:
            return None
        return BoundOffset(ago_ns=ago_ns) if ago_ns >= 0 else None
    try:
        return BoundOffset(time_ns=_instant_ns(text))
    except ValueError:
        return None


def _instant_ns(text: str) -> int:
    """Nanoseconds since 1970 of ISO 8601 with a zone. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no zone")
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000


def parse_timestamp(name: str, text: str) -> Bound:
    """Read an option that is a time. Raises ValueError."""
    text = text.strip()
    if text.isdecimal() and len(text) <= _MAX_DIGITS:
        return Bound(BoundOffset(time_ns=int(text) * 1_000_000))
    place = _place(text)
    if place is not None and place.end is None:
        return Bound(place)
    wrong = (
        f"option {name}: {text[:200]!r} is neither milliseconds since 1970 nor ISO 8601 with a"
        " zone nor a time ago such as now-1h"
    )
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(wrong) from None
    raise ValueError(f"{wrong}; for UTC write {text}Z")
