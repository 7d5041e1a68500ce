"""Parse bounds: where a query starts or ends, as the options say it.

``docs/pipelines/source.md`` has the forms: ``earliest``, ``latest-1000``, ``now-1h``, a time, or
JSON with such a form or an offset for a topic, for a queue, or for a queue of one broker::

    {"orders": "latest-1000", "flights": {"0": 17, "1": "earliest"}}
    {"<broker id>": {"orders": {"0": 17}}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from martlet.reader.offsets import TOPIC_ID
from martlet.text import parse_duration

EARLIEST = -2
LATEST = -1
"""As in the JSON of Spark's Kafka source."""

_RELATIVE = re.compile(r"(earliest|latest)(?:\s*([+-])\s*(\d{1,20}))?", re.IGNORECASE)
_NOW = re.compile(r"now(?:\s*-\s*(\S+))?", re.IGNORECASE)
_MAX_DIGITS = 20
_EXAMPLES = "earliest, latest-1000, now-1h, 2026-11-22T08:00:00Z"


@dataclass(frozen=True)
class BoundOffset:
    """The bound of one queue; exactly one of `offset`, `end`, `time_ns` and `ago_ns` is set."""

    offset: int | None = None
    end: int | None = None
    """EARLIEST or LATEST, moved by `shift` offsets."""
    shift: int = 0
    time_ns: int | None = None
    """The first message stored at or after it, ns since 1970."""
    ago_ns: int | None = None
    """The same, counted back from when the query is planned, ns."""


QueueBounds = Mapping[str, Any]
"""Bounds by topic and queue, or by broker, topic and queue; or one for all queues of a topic."""


@dataclass(frozen=True)
class Bound:
    """Where to start or to end: the same in all queues, or by queue."""

    everywhere: BoundOffset | None = None
    by_queue: QueueBounds | None = None


START = Bound(BoundOffset(end=EARLIEST))
END = Bound(BoundOffset(end=LATEST))


def parse_bound(name: str, text: str) -> Bound:
    """Parse an option. Raises ValueError, which names the option and the valid forms."""
    text = text.strip()
    if not text.startswith(("{", "[")):
        bound = _bound_offset(text)
        if bound is None:
            raise ValueError(_wrong(name, text))
        return Bound(bound)
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_wrong(name, text)}: {error}") from error
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError(_wrong(name, text))
    bounds = {key: _topic_or_broker(name, text, value) for key, value in parsed.items()}
    return Bound(by_queue=bounds)


def _wrong(name: str, text: str) -> str:
    hint = ""
    if text.isdecimal():
        timestamp = name.replace("Offsets", "Timestamp")
        hint = f'; for an offset write {{"topic": {{"0": {text}}}}}, for a time {timestamp}'
    return (
        f"option {name}: {text[:200]!r} is neither a position such as {_EXAMPLES} nor JSON such as "
        f'{{"topic": {{"0": 17}}}}, with -2 for earliest and -1 for latest{hint}'
    )


def _topic_or_broker(name: str, text: str, value: object) -> object:
    """Parse the JSON value of a topic, or of a broker, which holds one for each topic."""
    if not isinstance(value, dict):
        return _bound_of(name, text, value)
    if not value:
        raise ValueError(_wrong(name, text))
    if all(is_queue(key) or key == TOPIC_ID for key in value) and not any(
        isinstance(inner, dict) for inner in value.values()
    ):
        return {
            queue: _bound_of(name, text, inner)
            for queue, inner in value.items()
            if queue != TOPIC_ID
        }
    if any(isinstance(inner, dict) and _is_by_topic(inner) for inner in value.values()):
        raise ValueError(_wrong(name, text))
    return {topic: _topic_or_broker(name, text, inner) for topic, inner in value.items()}


def is_queue(key: str) -> bool:
    """Whether a key of the JSON can be the number of a queue."""
    return key.isdecimal() and len(key) <= _MAX_DIGITS


def _is_by_topic(value: Mapping[str, object]) -> bool:
    return not value or any(isinstance(inner, dict) for inner in value.values())


def _bound_of(name: str, text: str, value: object) -> BoundOffset:
    if type(value) is int and value >= EARLIEST:
        return BoundOffset(offset=value) if value >= 0 else BoundOffset(end=value)
    bound = _bound_offset(value.strip()) if isinstance(value, str) else None
    if bound is None:
        raise ValueError(_wrong(name, text))
    return bound


def _bound_offset(text: str) -> BoundOffset | None:
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
    """Parse an option that is a time. Raises ValueError."""
    text = text.strip()
    if text.isdecimal() and len(text) <= _MAX_DIGITS:
        return Bound(BoundOffset(time_ns=int(text) * 1_000_000))
    bound = _bound_offset(text)
    if bound is not None and bound.end is None:
        return Bound(bound)
    wrong = (
        f"option {name}: {text[:200]!r} is neither milliseconds since 1970 nor ISO 8601 with a"
        " zone nor a time ago such as now-1h"
    )
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(wrong) from None
    raise ValueError(f"{wrong}; for UTC write {text}Z")
