"""Ends a test that hangs, and tells a hang from a busy machine.

pytest-timeout counts seconds of the wall. This plugin gives it another clock: a second counts only
for the share of a processor that a process of this machine can have, which the load average tells.
So a test beside much other work gets more time, and one that waits for what never comes does not.

A test that is over its limit fails where it stands, and the stacks of all threads are printed. The
failure is raised within the phases of a test alone: one that is raised between them would end the
run. A test that swallows it is interrupted again, and at last its process ends; xdist reports that
as a failure of the test, and begins a new process.

The process that reports names the tests that run where nothing has ended for a minute.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest

TICK_S = 2.0
MAX_INTERRUPTS = 3
SILENCE_S = 60.0


class TestClock:
    """Counts the time of one test.

    Args:
        nodeid: the test.
        limit_s: of time in which it could have had a processor.
    """

    __test__ = False

    def __init__(self, nodeid: str, limit_s: float) -> None:
        self._nodeid = nodeid
        self._limit_s = limit_s
        self._used_s = 0.0
        self._interrupts = 0
        self._began_s = time.monotonic()
        self.in_phase = False

    def start(self) -> None:
        signal.signal(signal.SIGALRM, self.tick)
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)

    def cancel(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def tick(self, _number: int, _frame: FrameType | None) -> None:
        """Count the time since the last tick, and fail the test if it is over its limit."""
        __tracebackhide__ = True
        self._used_s += TICK_S * processor_share()
        if self._used_s < self._limit_s or not self.in_phase:
            return
        self._interrupts += 1
        self._used_s = self._limit_s - 5 * TICK_S  # What ends the test gets some time, too.
        text = (
            f"over its limit of {self._limit_s:g} s with a processor,"
            f" {time.monotonic() - self._began_s:.0f} s after it began"
        )
        stderr = sys.__stderr__
        if stderr is not None:
            print(f"\n{self._nodeid}: {text}", file=stderr, flush=True)
            faulthandler.dump_traceback(file=stderr)
        if self._interrupts > MAX_INTERRUPTS:
            os._exit(70)
        pytest.fail(text)


def processor_share() -> float:
    """Return which share of its time a process that wants a processor has one, from 0 to 1."""
    return min(1.0, (os.cpu_count() or 1) / max(os.getloadavg()[0], 1.0))


_clocks = pytest.StashKey[TestClock]()


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    clock = item.stash[_clocks] = TestClock(item.nodeid, settings.timeout)
    clock.start()
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    if clock := item.stash.get(_clocks, None):
        clock.cancel()
        del item.stash[_clocks]
    return True


def _within(item: pytest.Item) -> Generator[None, object, object]:
    """Allow that the test fails while a phase of it runs."""
    clock = item.stash.get(_clocks, None)
    if clock is None:
        return (yield)
    clock.in_phase = True
    try:
        return (yield)
    finally:
        clock.in_phase = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _within(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _within(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _within(item))


class RunningTests:
    """Names the tests that run, in the process that reports, where none has ended for a while."""

    def __init__(self) -> None:
        self._began_s: dict[str, float] = {}
        self._last_s = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="running tests", daemon=True).start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began_s[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._began_s.pop(nodeid, None)
        self._last_s = time.monotonic()

    def pytest_unconfigure(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(SILENCE_S):
            now_s = time.monotonic()
            if now_s - self._last_s > SILENCE_S and sys.__stderr__ is not None:
                for nodeid, began_s in list(self._began_s.items()):
                    line = f"\nruns for {now_s - began_s:.0f} s: {nodeid}"
                    print(line, file=sys.__stderr__, flush=True)
