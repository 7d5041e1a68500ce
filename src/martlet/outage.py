"""Repeated failures, logged once and then counted: a broker that is down is not logged every
second.

The first failure is logged at once, and so is one for another reason. After that a line follows at
growing intervals, with the duration and the number of failed attempts, and one when the outage
ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from martlet.plural import counted

CLIENT_LOG = logging.getLogger("martlet.client")
FIRST_INTERVAL_S = 10.0
MAX_INTERVAL_S = 600.0
MAX_REASONS = 4
"""How many reasons are logged at once in one outage; failures for further reasons are only
counted.
"""


class Outage:
    """Logs failures of one kind at one server.

    Args:
        trouble: the failed operation, such as ``cannot connect to 127.0.0.1:4150``.
        relief: logged when it succeeds again, such as ``connected to 127.0.0.1:4150``.
        clock: in seconds.
        log: the logger.
        level: of failures; their end is a warning.
    """

    def __init__(
        self,
        trouble: str,
        relief: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        log: logging.Logger = CLIENT_LOG,
        level: int = logging.WARNING,
    ) -> None:
        self._log = log
        self._level = level
        self._trouble = trouble
        self._relief = relief
        self._clock = clock
        self._attempts = 0
        self._since_s = self._next_s = self._interval_s = 0.0
        self._reasons: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether the last attempt failed."""
        return self._attempts > 0

    def failed(self, reason: str) -> None:
        """Record a failed attempt."""
        now_s = self._clock()
        if not self._attempts:
            self._since_s = now_s
        self._attempts += 1
        if reason not in self._reasons and len(self._reasons) < MAX_REASONS:
            is_first = not self._reasons
            self._reasons.add(reason)
            self._log.log(self._level, "%s: %s (trying again)", self._trouble, reason)
            if is_first:
                self._interval_s = FIRST_INTERVAL_S
                self._next_s = now_s + FIRST_INTERVAL_S
        elif now_s >= self._next_s:
            self._interval_s = min(2 * self._interval_s, MAX_INTERVAL_S)
            self._next_s = now_s + self._interval_s
            self._log.log(
                self._level,
                "%s for %.0f s, in %s: %s (trying again; next line in %.0f s)",
                self._trouble,
                now_s - self._since_s,
                counted(self._attempts, "attempt"),
                reason,
                self._interval_s,
            )

    def over(self) -> bool:
        """Record a success. Returns whether an outage ended, which is logged."""
        if not self._attempts:
            return False
        self._log.warning(
            "%s after %.1f s and %s",
            self._relief,
            self._clock() - self._since_s,
            counted(self._attempts, "failed attempt"),
        )
        self._attempts = 0
        self._reasons.clear()
        return True
