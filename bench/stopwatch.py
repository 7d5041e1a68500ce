"""The time of a client's work, on the wall and on the processor."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path


def processor_s(process_id: int) -> float:
    """The processor's seconds that a process has used."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def anonymous_bytes(process_id: int) -> int:
    """The memory of a process that is no part of a file: the log's pages are the system's cache."""
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    (found,) = re.findall(r"^RssAnon:\s+(\d+) kB$", status, re.M)
    return int(found) << 10


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
