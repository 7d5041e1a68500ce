"""The sampler: looks a hundred times a second where each thread is, and what time it has used.

A look costs some microseconds, so a broker may be profiled while it works.  What is counted is the
processor time of each thread since the last look, so a thread that waits counts for nothing.  The
stack is the one at the look: Python lets a thread look only where another may be interrupted, so
what a long call into C has used is told of the Python line that called it.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress

from martlet.server.observability.pprof import (
    CodeLocation,
    Profile,
    Stack,
    ValueType,
    place_of,
    stack_of,
)

PERIOD_NS = 10_000_000
_CHAINS = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
"""Of a coroutine and of generators of both kinds: where it is, and what it waits for."""
_TYPES = (ValueType("samples", "count"), ValueType("cpu", "nanoseconds"))


class Sampler:
    """Profiles this process from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._profile = Profile(_TYPES, period=PERIOD_NS)
        self._used_ns: dict[int, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="martlet-sampler", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._profile.time_ns = time.time_ns()
        self._began_ns = time.monotonic_ns()
        self._thread.start()

    def stop(self) -> Profile:
        """Look no more; what has been seen."""
        self._stopping.set()
        self._thread.join()
        self._profile.duration_ns = time.monotonic_ns() - self._began_ns
        return self._profile

    def _run(self) -> None:
        self._look()
        self._profile.samples.clear()  # the first look counts since the thread began
        while not self._stopping.wait(PERIOD_NS / 1e9):
            self._look()

    def _look(self) -> None:
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if thread is self._thread or frame is None or thread.native_id is None:
                continue
            with suppress(OSError):  # it has ended meanwhile
                used_ns = time.clock_gettime_ns(_clock_of(thread.native_id))
                spent_ns = used_ns - self._used_ns.get(thread.native_id, 0)
                self._used_ns[thread.native_id] = used_ns
                if spent_ns > 0:
                    self._profile.add(stack_of(frame), 1, spent_ns)


def _clock_of(native_id: int) -> int:
    """Linux's clock of a thread's processor time. Reading that of a thread that has ended fails,
    where ``pthread_getcpuclockid`` may crash.
    """
    return ~native_id << 3 | 6


def thread_stacks() -> dict[str, Stack]:
    """Where each thread is, by its name."""
    frames = sys._current_frames()
    return {
        f"{thread.name} ({thread.native_id})": stack_of(frames.get(thread.ident or 0))
        for thread in threading.enumerate()
    }


def awaited_stack(coroutine: object) -> Stack:
    """Where a coroutine that waits is: the innermost place is the one that waits."""
    places: list[CodeLocation] = []
    while coroutine is not None:
        for frame_name, next_name in _CHAINS:
            frame = getattr(coroutine, frame_name, None)
            if frame is not None:
                places.append(place_of(frame.f_code, frame.f_lineno))
                coroutine = getattr(coroutine, next_name, None)
                break
        else:
            break
    return tuple(reversed(places))
