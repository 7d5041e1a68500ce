"""Ways to do the same work, beside Spark's own, in turns and in one run.

What one machine takes is of little use on another, and on a shared one of little use an hour later.
So ways are compared by the median of some rounds, in each of which all take their turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Way = Callable[[], float]
"""Does the work, sees that it was done, and tells how many seconds it took."""
Seconds = dict[str, list[float]]


def parser(doc: str, *, rounds: int = 3) -> argparse.ArgumentParser:
    """The options that all have."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=200, help="bytes a message")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--folder", type=Path, help="where some 15 GB may go for the time being")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    return parser


@contextmanager
def folder_for(asked: argparse.Namespace) -> Iterator[Path]:
    """A folder that is there for the time being."""
    folder = Path(tempfile.mkdtemp(prefix="martlet-bench-", dir=asked.folder))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def timed(work: Callable[[], object]) -> float:
    """The seconds that some work takes."""
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s


def take_turns(ways: Mapping[str, Way], rounds: int) -> Seconds:
    """What each way takes, round by round, after one that does not count."""
    seconds: Seconds = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            os.sync()  # What one left to be written is not the other's.
            took_s = way()
            if number:
                seconds[name].append(took_s)
            print(f"  round {number}: {name} {took_s:.2f} s", flush=True)
    return seconds


def tell(seconds: Seconds, asked: argparse.Namespace, *beside: str) -> dict[str, float]:
    """Print the medians, and how many times as fast each way is as those that it stands beside.

    Returns the medians.
    """
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    machine = f"{platform.machine()}, {os.cpu_count()} processors, {asked.master}"
    print(f"\n{machine}, {asked.messages:,} messages of {asked.size} bytes, {time.strftime('%F')}")
    width = max(map(len, seconds)) + 2
    heads = "".join(f"{'x ' + name:>{len(name) + 5}}" for name in beside)
    print(f"{'':{width}}{'M rows/s':>9}{heads}{'seconds':>19}")
    for name, median_s in medians.items():
        ratios = "".join(f"{medians[other] / median_s:{len(other) + 5}.2f}" for other in beside)
        print(
            f"{name:{width}}{asked.messages / median_s / 1e6:9.2f}{ratios}"
            f"{min(seconds[name]):>9.2f} to {max(seconds[name]):.2f}"
        )
    if asked.json:
        told = {"messages": asked.messages, "size": asked.size, "seconds": seconds}
        asked.json.write_text(json.dumps(told, indent=1))
    return medians
