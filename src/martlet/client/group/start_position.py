"""Where to begin in a queue: at its first message, its last, a time, or an offset."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

Start = Literal["first", "last"] | datetime | int
"""``"first"`` for all that is stored, ``"last"`` for what comes from now on, a time, an offset."""


def check_start(start: Start) -> Start:
    """Check where to begin.

    Raises:
        ValueError: it is nothing of the kind, or a time without its zone, or a negative offset.
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError(
                f"{start!r} has no time zone, so it says no moment: datetime.now(timezone.utc)"
            )
    elif isinstance(start, bool) or not (start in ("first", "last") or isinstance(start, int)):
        raise ValueError(f"{start!r} must be 'first', 'last', a datetime, or an offset")
    elif isinstance(start, int) and start < 0:
        raise ValueError(f"the offset {start}: 0 is the least")
    return start


def time_ms(moment: datetime) -> int:
    """Milliseconds since 1970."""
    return max(0, int(moment.timestamp() * 1000))


def start_fields(start: Start) -> dict[str, Any]:
    """A group's start, as ``group.join`` takes it."""
    if isinstance(start, datetime):
        return {"start": "time", "start_time_ms": time_ms(start)}
    if isinstance(start, int):
        return {"start": "offset", "start_offset": start}
    return {"start": start}
