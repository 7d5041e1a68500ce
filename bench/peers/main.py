"""Martlet beside Redis streams, JetStream, RabbitMQ, beanstalkd and nsqd, in turns.

    ./run bench peers [--rows publish-200,publish,consume] [--seconds 2] [--repeat 5] [--json FILE]

Each writes to disk. In one table an answer means that the operating system has the message, in the
other that it was flushed. Bodies have 200 bytes, and 2 connections do the work. Martlet runs with
its compiled hot path and without. A broker that is not installed is skipped, with the reason.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from bench.flags import parse
from bench.peers import load
from bench.peers.daemons import KINDS, Daemon, Missing, nsqd
from bench.peers.load import PeerConsuming, PeerPublishing
from bench.servers.link import LoadFailed
from bench.servers.load import CHANNEL, Consuming, Load, PublishLoad
from bench.servers.load_processes import LoadProcesses
from bench.servers.main import PureBroker
from bench.servers.report import machine, times
from bench.servers.row import Row
from bench.servers.target import Target
from martlet import __version__
from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

PREFETCH = 1000
CONNECTIONS = 2
ROWS = {
    "publish-200": "publish 200 at a time",
    "publish": "publish one at a time",
    "consume": "consume, acknowledge each",
}
SYNC = {False: "page cache", True: "flushed to disk"}


@dataclass
class Contestant:
    """A broker that takes part.

    Attributes:
        loads: the load of each row, for a queue.
        fresh: makes a queue.
        runs: messages a second, by row.
    """

    name: str
    version: str
    host: str
    port: int
    loads: Callable[[str, str, float], Load]
    fresh: Callable[[str], None]
    drop: Callable[[str], None] = lambda queue: None
    runs: dict[str, list[float]] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether it is Martlet."""
        return self.name.startswith("Martlet")

    def median(self, row: str) -> float | None:
        """Messages a second; None where it was not measured."""
        return statistics.median(self.runs[row]) if self.runs.get(row) else None


def main(arguments: Sequence[str]) -> int:
    """Measure; the result is the exit code."""
    given = parse(__doc__, arguments, rows=",".join(ROWS), seconds=2.0, repeat=5, json=None)
    document = measure(given.rows.split(","), given.seconds, given.repeat)
    print(markdown(document))
    if given.json:
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(rows: Sequence[str], seconds: float, repeat: int) -> dict[str, Any]:
    """Measure rows on all brokers that are here. Raises LoadFailed."""
    about, found, skipped = machine(), {}, dict[str, str]()
    for sync, title in SYNC.items():
        with ExitStack() as stack:
            contestants = _contestants(stack, sync, skipped)
            _take_turns(contestants, rows, seconds, repeat)
            found[title] = contestants
    return report(about, found, skipped, seconds, repeat)


def _contestants(stack: ExitStack, sync: bool, skipped: dict[str, str]) -> list[Contestant]:
    flags = ["--log-level=warn", *(["--flush=sync"] if sync else [])]
    found = []
    for name, broker_type in (("Martlet", BrokerProcess), ("Martlet, pure Python", PureBroker)):
        broker = stack.enter_context(broker_type(None, *flags))
        target = Target.parse(f"{broker.tcp_address},{broker.http_address}")
        found.append(_of_nsq(name, __version__, target))
    if sync:
        skipped["nsqd, flushed"] = "it does not flush before it answers"
        skipped["JetStream, flushed"] = "version 2.9 flushes by time alone"
    else:
        try:
            found.append(_nsqd(stack))
        except Missing as missing:
            skipped["nsqd"] = str(missing)
    for kind in KINDS:
        if kind.sync == sync:
            try:
                found.append(_peer(stack.enter_context(Daemon(kind))))
            except Missing as missing:
                skipped[kind.name] = str(missing)
    return found


def _of_nsq(name: str, version: str, target: Target) -> Contestant:
    def loads(row: str, queue: str, seconds: float) -> Load:
        if row == "consume":
            return Consuming(topic=queue, ready=PREFETCH, seconds=seconds)
        return PublishLoad(topic=queue, batch=200 if row == "publish-200" else 1, seconds=seconds)

    def fresh(queue: str) -> None:
        target.fresh(queue, CHANNEL)

    return Contestant(name, version, target.host, target.port, loads, fresh, target.delete)


def _nsqd(stack: ExitStack) -> Contestant:
    http_port = free_port()
    daemon = stack.enter_context(Daemon(nsqd(http_port, "-mem-queue-size=0")))
    target = Target.parse(f"127.0.0.1:{daemon.port},{http_port}")
    return _of_nsq("nsqd, on disk", daemon.version(), target)


def _peer(daemon: Daemon) -> Contestant:
    protocol, host = daemon.kind.protocol, "127.0.0.1"

    def loads(row: str, queue: str, seconds: float) -> Load:
        if row == "consume":
            return PeerConsuming(topic=queue, seconds=seconds, protocol=protocol, prefetch=PREFETCH)
        batch = 200 if row == "publish-200" else 1
        return PeerPublishing(topic=queue, seconds=seconds, protocol=protocol, batch=batch)

    def fresh(queue: str) -> None:
        load.create(host, daemon.port, protocol, queue)

    return Contestant(daemon.kind.name, daemon.version(), host, daemon.port, loads, fresh)


def _take_turns(
    contestants: list[Contestant], rows: Sequence[str], seconds: float, repeat: int
) -> None:
    with LoadProcesses() as processes:
        for row in rows:
            for number in range(repeat):
                for each in contestants[:: -1 if number % 2 else 1]:
                    queue = f"bench{row}{number}".replace("-", "")
                    each.fresh(queue)
                    try:
                        if row == "consume":
                            _run(processes, each, "publish-200", queue, seconds)
                        rate = _run(processes, each, row, queue, seconds)
                    except (LoadFailed, OSError) as error:
                        raise LoadFailed(f"{each.name}, {ROWS[row]}: {error}") from error
                    finally:
                        each.drop(queue)
                    each.runs.setdefault(row, []).append(rate)
                    print(f"{ROWS[row]}: {each.name}: {rate:,.0f}/s", file=sys.stderr)


def _run(
    processes: LoadProcesses, contestant: Contestant, row: str, queue: str, seconds: float
) -> float:
    one = contestant.loads(row, queue, seconds)
    results = processes.run(contestant.host, contestant.port, [one] * CONNECTIONS)
    (rate,) = Row(name=row, work=ROWS[row], load=one).evaluate(results)
    return rate


def report(
    about: dict[str, Any],
    found: dict[str, list[Contestant]],
    skipped: dict[str, str],
    seconds: float,
    repeat: int,
) -> dict[str, Any]:
    """All that was measured, for programs."""
    return {
        "machine": about,
        "seconds": seconds,
        "repeat": repeat,
        "skipped": skipped,
        "tables": {
            title: [
                {"name": each.name, "version": each.version, "runs": each.runs}
                for each in contestants
            ]
            for title, contestants in found.items()
        },
    }


def markdown(document: dict[str, Any]) -> str:
    """The tables for the docs: where Martlet is behind, its ratio is bold."""
    lines = []
    for title, contestants in document["tables"].items():
        names = [" ".join((each["name"], each["version"])).strip() for each in contestants]
        heads = ["before an answer: " + title, *names, "Martlet / best other", "pure / best other"]
        lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        for row, work in ROWS.items():
            rates = [
                statistics.median(each["runs"][row]) if each["runs"].get(row) else None
                for each in contestants
            ]
            if rates[0] is None:
                continue
            best = max((rate for rate in rates[2:] if rate is not None), default=None)
            cells = [f"{rate:,.0f}/s" if rate is not None else "" for rate in rates]
            ratios = (
                ["", ""] if best is None else [_shown((rate or 0) / best) for rate in rates[:2]]
            )
            lines.append("| " + " | ".join([work, *cells, *ratios]) + " |")
        lines.append("")
    reasons = "; ".join(f"{name}, as {why}" for name, why in document["skipped"].items())
    if reasons:
        lines.append(f"Not measured: {reasons}.")
    return "\n".join(lines).rstrip() + "\n"


def _shown(ratio: float) -> str:
    return times(ratio) if ratio >= 1 else f"**{times(ratio)}**"
