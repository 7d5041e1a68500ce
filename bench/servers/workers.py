"""One broker and several workers on the same processors, beside nsqd.

    ./run bench workers [--workers=2] [--connections=4] [--seconds=3] [--repeat=5] [--pin]

The workers are brokers as ``martlet up --workers=N`` starts them, and each takes an equal part of
the connections. The runs take turns; the ratios are to the one broker. With ``--pin`` the load is
bound to the last processor, and the servers take what they get of all. ``nsqd`` has to be on PATH:
``PATH=$PATH:$(.ci/nsqd)``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from bench.flags import parse
from bench.peers.daemons import Daemon, Missing, nsqd
from bench.servers.link import LoadFailed
from bench.servers.load import CHANNEL, TOPIC
from bench.servers.load_processes import LoadProcesses
from bench.servers.row import BACKLOG, ROWS, Row
from bench.servers.target import Target, TargetFailed
from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

_ROWS = ("mpub", "pub", "pub-50", "consume")


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a line for each row; the result is the exit code."""
    given = parse(__doc__, arguments, workers=2, connections=4, seconds=3.0, repeat=5, pin=False)
    try:
        with ExitStack() as stack:
            sides = _start(stack, given.workers)
            if given.pin:
                os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
            processes = stack.enter_context(LoadProcesses())
            for name in _ROWS:
                row = replace(ROWS[name], connections=given.connections)
                rates = _rates(processes, row, sides, given)
                print(_line(row.work, rates), flush=True)
    except (LoadFailed, Missing, OSError, TargetFailed) as error:
        print(f"martlet bench workers: {error}", file=sys.stderr)
        return 1
    return 0


def _start(stack: ExitStack, workers: int) -> dict[str, list[Target]]:
    def broker() -> Target:
        made = stack.enter_context(BrokerProcess(None, "--log-level=warn"))
        return Target.parse(f"{made.tcp_address},{made.http_address}")

    http_port = free_port()
    daemon = stack.enter_context(Daemon(nsqd(http_port)))
    return {
        "one broker": [broker()],
        f"{workers} workers": [broker() for _ in range(workers)],
        "nsqd": [Target.parse(f"127.0.0.1:{daemon.port},{http_port}")],
    }


def _rates(
    processes: LoadProcesses, row: Row, sides: dict[str, list[Target]], given: argparse.Namespace
) -> dict[str, list[float]]:
    """Return the rates of each side, in turns."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(given.repeat):
        for name, targets in list(sides.items())[:: -1 if number % 2 else 1]:
            rates[name].append(_measure(processes, row, targets, given.seconds))
    return rates


def _measure(
    processes: LoadProcesses, row: Row, targets: Sequence[Target], seconds: float
) -> float:
    for target in targets:
        target.fresh(TOPIC, CHANNEL)
    if row.backlog:
        _load(processes, replace(BACKLOG, connections=row.connections), targets, seconds)
        for target in targets:
            target.wait_for_channels(TOPIC)
    os.sync()  # What the last run left to be written is not this one's to pay.
    rate = _load(processes, row, targets, seconds)
    for target in targets:
        target.delete(TOPIC)
    return rate


def _load(processes: LoadProcesses, row: Row, targets: Sequence[Target], seconds: float) -> float:
    first, *more = [(target.host, target.port) for target in targets]
    (rate,) = row.evaluate(processes.run(*first, row.loads(seconds), *more))
    return rate


def _line(work: str, rates: dict[str, list[float]]) -> str:
    medians = {name: statistics.median(each) for name, each in rates.items()}
    first = next(iter(medians.values()))
    shown = ", ".join(
        f"{name} {median:,.0f}/s ({median / first:.2f} x)" for name, median in medians.items()
    )
    return f"{work}: {shown}"
