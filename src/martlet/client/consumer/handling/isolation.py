"""Isolation of suspects: a message that a lost client was handling is handled alone.

If it ends this process too, no other message fails with it. So a suspect waits until all handed-out
messages are answered, and later ones wait for the suspect. The wait is limited, since a handler may
hang, and an application may collect messages before it answers any: after the limit everything
continues, and no suspect waits again until nothing is being handled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_PAUSE_S = 0.01
"""The interval of checks whether the application has answered its messages."""


class SuspectIsolation:
    """Decide when a suspect may begin, and when others may again.

    Args:
        on_over: called when the awaited messages are answered, or the wait is over.
    """

    def __init__(self, on_over: Callable[[], None]) -> None:
        self.is_waiting = False
        """Whether a suspect waits."""
        self._on_over = on_over
        self._is_patient = True
        self._is_busy: Callable[[], bool] = lambda: False
        self._is_at_work: Callable[[], bool] | None = None
        """The answers of the suspect that is handled alone."""
        self._patient_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def holds_up(self) -> bool:
        """Whether a suspect is being handled, so that nothing may begin beside it."""
        if self._is_at_work is not None and not self._is_at_work():
            self._is_at_work = None
        return self._is_at_work is not None

    def may_begin(self, is_busy: Callable[[], bool], patience_s: float) -> bool:
        """Return whether a suspect may begin; if not, `on_over` is called when to ask again."""
        if not is_busy():
            self._is_patient = True
            self.is_waiting = False
            return True
        self.is_waiting = self._is_patient
        self._is_busy = is_busy
        if self.is_waiting and self._timer is None:
            self._wait_for(patience_s)
        return not self.is_waiting

    def begin(self, is_at_work: Callable[[], bool], patience_s: float) -> None:
        """Begin a suspect; nothing else may begin until it is no longer handled."""
        if self._is_patient:
            self._is_at_work = is_at_work
            self._wait_for(patience_s)

    def abandon(self) -> None:
        """Let others begin: the suspect was dropped before it was handled."""
        self._is_at_work = None
        self._on_over()

    def _wait_for(self, patience_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._patient_until_s = time.monotonic() + patience_s
        self._check_later()

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PAUSE_S, self._check)

    def _check(self) -> None:
        self._timer = None
        if time.monotonic() >= self._patient_until_s:
            self._is_patient = self.is_waiting = False
            self._is_at_work = None
        if self.holds_up or (self.is_waiting and self._is_busy()):
            self._check_later()
        else:
            self.is_waiting = False
            self._on_over()

    def close(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
