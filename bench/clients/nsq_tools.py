"""nsq's own ``bench_writer`` and ``bench_reader``, which speak by go-nsq: run, and read.

They work for a given time and not for a given number of messages, publish MPUBs of one size (each
waited for) or receive and finish without any handler, on one connection for each processor that
Go's ``GOMAXPROCS`` lets them use.  Their last line on stderr is::

    [bench_writer] DATE TIME duration: 1.0021s - 34.1mb/s - 178000.000ops/s - 5.6us/op
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
from dataclasses import dataclass
from pathlib import Path

from martlet.text import parse_duration

MAX_EXTRA_S = 60.0


@dataclass(frozen=True)
class ToolRun:
    """The figures of a tool's run, and the processor's time that it used."""

    messages: int
    seconds: float
    processor_s: float


def run_tool(path: Path, connections: int, seconds: float, arguments: list[str]) -> ToolRun:
    """Run a tool for some seconds, on as many processors as connections.

    Raises:
        SystemExit: it failed, or printed something else.
    """
    command = [str(path), f"-runfor={seconds:g}s", *arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=seconds + MAX_EXTRA_S,
        check=False,
        env={**os.environ, "GOMAXPROCS": str(connections)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = re.search(r"duration: (\S+) - \S+mb/s - ([\d.]+)ops/s", done.stderr)
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(command)} ended by {done.returncode}: {done.stderr.strip()}")
    took_s = parse_duration(found[1]) / 1e9
    return ToolRun(
        messages=round(float(found[2]) * took_s),
        seconds=took_s,
        processor_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )
