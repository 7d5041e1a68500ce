"""Ways to do the same work, beside Spark's own, in turns and in one run.

Times of one machine are of little use on another, and on a shared one of little use an hour later.
So ways are compared by the median of some rounds, in each of which all take their turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench.flags import parse
from bench.spark.letters import fill
from martlet.spark.java import spark_session
from martlet.testing import BrokerProcess

Way = Callable[[], float]
"""Does the work, checks that it was done, and returns the seconds that it took."""
Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class Setting:
    """The flags, a temporary folder, a session of Spark, and a broker with messages of letters."""

    given: argparse.Namespace
    folder: Path
    spark: SparkSession
    broker: BrokerProcess


@contextmanager
def setting(
    doc: str | None, arguments: Sequence[str], *, is_filled: bool = True, **defaults: object
) -> Iterator[Setting]:
    """What all comparisons need; `--folder` names where some 15 GB may go while they run."""
    common = {"messages": 10_000_000, "size": 200, "rounds": 3, "master": "local[2]"}
    given = parse(doc, arguments, **common | {"folder": None, "json": None} | defaults)
    with ExitStack() as stack:
        prefix = "martlet-bench-"
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, dir=given.folder))
        )
        broker = stack.enter_context(BrokerProcess(folder / "broker"))
        if is_filled:
            took_s = timed(lambda: fill(broker.tcp_address, given.messages, given.size))
            print(f"stored, {given.messages / took_s:,.0f} messages a second")
        spark = spark_session("martlet bench", master=given.master)
        stack.callback(spark.stop)
        yield Setting(given, folder, spark, broker)


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that some work takes."""
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s


def machine(master: str = "") -> str:
    """The machine, for the head of a table."""
    parts = [platform.machine(), f"{os.cpu_count()} processors", master, time.strftime("%F")]
    return ", ".join(filter(None, parts))


def take_turns(rounds: int, ways: Mapping[str, Way]) -> Seconds:
    """Let each do its work in some rounds, after one that does not count."""
    seconds: Seconds = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            os.sync()  # What one left to be written is not the other's.
            took_s = way()
            if number:
                seconds[name].append(took_s)
            print(f"  round {number}: {name} {took_s:.2f} s", flush=True)
    return seconds


def compare(given: argparse.Namespace, ways: Mapping[str, Way], *beside: str) -> dict[str, float]:
    """Take turns and print the medians, and how many times as fast each is as those of `beside`.

    Returns the medians.
    """
    seconds = take_turns(given.rounds, ways)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    print(f"\n{machine(given.master)}, {given.messages:,} messages of {given.size} bytes")
    width = max(map(len, seconds)) + 2
    heads = "".join(f"{'x ' + name:>{len(name) + 5}}" for name in beside)
    print(f"{'':{width}}{'M rows/s':>9}{heads}{'seconds':>19}")
    for name, median_s in medians.items():
        ratios = "".join(f"{medians[other] / median_s:{len(other) + 5}.2f}" for other in beside)
        print(
            f"{name:{width}}{given.messages / median_s / 1e6:9.2f}{ratios}"
            f"{min(seconds[name]):>9.2f} to {max(seconds[name]):.2f}"
        )
    write_json(given, {"messages": given.messages, "size": given.size, "seconds": seconds})
    return medians


def write_json(given: argparse.Namespace, figures: object) -> None:
    """Write the figures to the file of `--json`, if there is one."""
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))
