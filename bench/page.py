"""Measures what the page of benchmarks compares, and writes its tables.

    ./run bench page [--seconds 3] [--repeat 5] [--json FILE] [--again] [--nsqd-only]

Martlet stands beside nsqd (`bench.servers`) and beside other brokers (`bench.peers`), with the
compiled hot path and without. The tables replace those in ``docs/reference/benchmarks.md``, and
where Martlet is behind, its ratio is bold. `--json` keeps every run; with `--again` nothing is
measured, and the tables are written from that file; with `--nsqd-only` the table of other brokers
stays as it is. ``nsqd`` has to be on PATH:
``PATH=$PATH:$(.ci/nsqd)``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import bench.peers.main as peers
from bench.flags import parse
from bench.peers.daemons import Daemon, Missing, nsqd
from bench.servers.comparison import Comparison, Side
from bench.servers.link import LoadFailed
from bench.servers.main import PureBroker
from bench.servers.report import document, machine, times
from bench.servers.row import ROWS
from bench.servers.target import Target, TargetFailed
from martlet import __version__
from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

PAGE = Path(__file__).parents[1] / "docs/reference/benchmarks.md"
_BEGIN, _END = "<!-- begin of {} -->", "<!-- end of {} -->"


def main(arguments: Sequence[str]) -> int:
    """Measure, and write the page; the result is the exit code."""
    given = parse(
        __doc__,
        arguments,
        seconds=3.0,
        repeat=5,
        json=None,
        again=False,
        nsqd_only=False,
        page=PAGE,
    )
    try:
        if given.again and given.json:
            measured = json.loads(given.json.read_text(encoding="utf-8"))
        else:
            measured = measure(given.seconds, given.repeat, nsqd_only=given.nsqd_only)
            if given.json:
                given.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    except (LoadFailed, Missing, OSError, TargetFailed) as error:
        print(f"martlet bench page: {error}", file=sys.stderr)
        return 1
    write(given.page, measured)
    return 0


def measure(seconds: float, repeat: int, *, nsqd_only: bool) -> dict[str, Any]:
    """Measure all rows. Raises LoadFailed, Missing, OSError and TargetFailed."""
    measured = {"nsqd": _beside_nsqd(seconds, repeat)}
    if not nsqd_only:
        measured["peers"] = peers.measure(list(peers.ROWS), seconds, repeat)
    return measured


def _beside_nsqd(seconds: float, repeat: int) -> dict[str, Any]:
    about = machine()
    with ExitStack() as stack:

        def ours(kind: type[BrokerProcess], *flags: str) -> Target:
            broker = stack.enter_context(kind(None, "--log-level=warn", *flags))
            return Target.parse(f"{broker.tcp_address},{broker.http_address}")

        def theirs(*flags: str) -> tuple[Target, str]:
            http_port = free_port()
            daemon = stack.enter_context(Daemon(nsqd(http_port, *flags)))
            return Target.parse(f"127.0.0.1:{daemon.port},{http_port}"), daemon.version()

        plain, version = theirs()
        sync, _ = theirs("-mem-queue-size=0", "-sync-every=1")
        comparison = Comparison(
            ours=Side(ours(BrokerProcess), ours(BrokerProcess, "--flush=sync")),
            theirs=Side(plain, sync),
            seconds=seconds,
            repeat=repeat,
            pure=Side(ours(PureBroker), ours(PureBroker, "--flush=sync")),
        )
        lines = comparison.run(
            list(ROWS.values()), lambda row, target: print(row.work, file=sys.stderr)
        )
        return document(lines, comparison, about, {"martlet": __version__, "nsqd": version})


def write(page: Path, measured: dict[str, Any]) -> None:
    """Replace the tables of a page.

    Raises:
        ValueError: the page has no place for them.
    """
    text = page.read_text(encoding="utf-8")
    tables = {"nsqd": nsqd_table(measured["nsqd"])}
    if "peers" in measured:
        tables["peers"] = _peers_table(measured["peers"])
    for name, table in tables.items():
        begin, end = _BEGIN.format(name), _END.format(name)
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{page}: the lines {begin!r} and {end!r} have to be there once")
        head, rest = text.split(begin)
        text = f"{head}{begin}\n\n{table}\n{end}{rest.split(end)[1]}"
    page.write_text(text, encoding="utf-8")


def _when(measured: dict[str, Any]) -> str:
    about = measured["machine"]
    return (
        f"Measured {about['time'][:10]} on {about['cores']} cores of {about['processor']},"
        f" {about['system']}, Python {about['python']}, load average {about['load_average']:.1f}"
        f" at the start. Medians of {measured['repeat']} runs of {measured['seconds']:g} s."
    )


def nsqd_table(measured: dict[str, Any]) -> str:
    """The table beside nsqd, as Markdown."""
    nsqd_version = measured["servers"]["nsqd"]
    heads = (
        *("work", "`--rows`", "Martlet", f"nsqd {nsqd_version}", "ratio", "pairs of runs"),
        "pure Python, ratio",
    )
    lines = [_when(measured), "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in measured["rows"]:
        pairs = row["pair_ratios"]
        cells = [
            f"{row['work']} {row['measure']}".strip(),
            f"`{row['row']}`",
            _value(row["martlet"], row["unit"]),
            _value(row["other"], row["unit"]),
            _bold(row["ratio"]),
            f"{min(pairs):.3g} to {max(pairs):.3g}",
            _bold(row["pure_ratio"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _peers_table(measured: dict[str, Any]) -> str:
    return f"{_when(measured)}\n\n{peers.markdown(measured)}"


def _value(value: float, unit: str) -> str:
    return f"{value:,.0f}/s" if unit == "msg/s" else f"{value:,.0f} {unit}"


def _bold(ratio: float) -> str:
    return times(ratio) if ratio >= 1 else f"**{times(ratio)}**"
