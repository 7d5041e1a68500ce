"""The time that a client's work took, on the wall and on the processor."""

from __future__ import annotations

import time


class Stopwatch:
    """Runs from ``begin`` until ``result``."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin to measure, or begin again."""
        self._began_s = time.monotonic(), time.process_time()

    def result(self) -> dict[str, float]:
        """The seconds since it began, and the processor's seconds that this process used."""
        wall_s, processor_s = time.monotonic(), time.process_time()
        return {
            "seconds": wall_s - self._began_s[0],
            "processor_s": processor_s - self._began_s[1],
        }
