"""The start position in a queue: its first message, its end, a time, or an offset."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

Start = Literal["first", "last"] | datetime | int
"""``"first"`` for the first stored message, ``"last"`` for new ones only, a time, an offset."""


def check_start(start: Start) -> Start:
    """Check a start position.

    Raises:
        ValueError: it is none of these, or a time without a zone, or a negative offset.
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError(
                f"{start!r} has no time zone, so it says no moment: datetime.now(timezone.utc)"
            )
    elif isinstance(start, bool) or not (start in ("first", "last") or isinstance(start, int)):
        raise ValueError(f"{start!r} must be 'first', 'last', a datetime, or an offset")
    elif isinstance(start, int) and start < 0:
        raise ValueError(f"the offset {start}: must be at least 0")
    return start


def time_ms(moment: datetime) -> int:
    """Return milliseconds since 1970."""
    return max(0, int(moment.timestamp() * 1000))


def start_fields(start: Start) -> dict[str, Any]:
    """Return a group's start position as arguments of ``group.join``."""
    if isinstance(start, datetime):
        return {"start": "time", "start_time_ms": time_ms(start)}
    if isinstance(start, int):
        return {"start": "offset", "start_offset": start}
    return {"start": start}
