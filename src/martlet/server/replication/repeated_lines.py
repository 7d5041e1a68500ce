"""Repeated log lines, logged once a minute with their number: a replica with a wrong secret, or a
stranger at the port, tries again and again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from martlet.addresses import shown_name

INTERVAL_S = 60.0
"""A line follows a like one after this time at the earliest, in seconds."""
MAX_LINES = 256
"""The maximum of different lines that are known; for a further one, the oldest is forgotten."""

_Key = tuple[object, ...]


class RepeatedLines(logging.Filter):
    """Drops a line that is like another one but for the port of an address, and counts it. An
    address is an argument as sockets have it, a tuple, and is logged as ``HOST:PORT``.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._logged_s: dict[_Key, float] = {}
        self._dropped: dict[_Key, int] = {}

    @classmethod
    def above(
        cls, log: logging.Logger, clock: Callable[[], float] = time.monotonic
    ) -> logging.Logger:
        """Return a logger that passes lines on to another one, but for repeated ones."""
        quiet = logging.Logger(log.name)
        quiet.parent = log
        quiet.addFilter(cls(clock))
        return quiet

    def filter(self, record: logging.LogRecord) -> bool:
        """Called by the logger for each line."""
        args = record.args if isinstance(record.args, tuple) else ()
        key = (record.msg, *(_without_port(arg) for arg in args))
        args = tuple(shown_name(arg) if isinstance(arg, tuple) else arg for arg in args)
        now_s = self._clock()
        logged_s = self._logged_s.get(key)
        if logged_s is not None and now_s < logged_s + INTERVAL_S:
            self._dropped[key] = self._dropped.get(key, 0) + 1
            return False
        self._logged_s.pop(key, None)  # So that it is the last one.
        self._logged_s[key] = now_s
        dropped = self._dropped.pop(key, 0)
        if dropped and logged_s is not None:
            record.msg = f"{record.msg} (and %d more times in the last %.0f s)"
            record.args = (*args, dropped, now_s - logged_s)
        else:
            record.args = args
        if len(self._logged_s) > MAX_LINES:
            oldest = next(iter(self._logged_s))
            del self._logged_s[oldest]
            self._dropped.pop(oldest, None)
        return True


def _without_port(value: object) -> str:
    """Return the text of a line's argument, of an address as sockets have it without the port."""
    return str(value[0] if isinstance(value, tuple) and value else value)
