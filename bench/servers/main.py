"""``martlet bench``: measures a broker, and beside it another NSQ server.

Exit codes: 0 when all was measured, 1 when a server or the load generator failed, 2 when the
command line is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from rich.console import Console

from bench.servers.comparison import Comparison, Measurement, Side
from bench.servers.link import LoadFailed
from bench.servers.report import document, machine, notes, table
from bench.servers.row import ROWS, Row
from bench.servers.target import Target, TargetFailed
from martlet import __version__
from martlet.cli import pipe
from martlet.testing.broker_process import BrokerProcess

_HTTP = "HOST:PORT[,HTTP_PORT]"
_WIDTH = 100
"""Columns of a table that goes to a file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; the result is the exit code of the process."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        with ExitStack() as stack:
            return _bench(given, stack)
    except (LoadFailed, TargetFailed, OSError, RuntimeError) as error:
        if isinstance(error, BrokenPipeError) and pipe.is_closed():
            raise
        print(f"martlet bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("martlet bench: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {row.name:<12} {row.work}" for row in ROWS.values())
    parser = argparse.ArgumentParser(
        prog="martlet bench",
        description="Measure a broker of its own, started for that in a temporary folder,"
        " and beside it another NSQ server.",
        epilog=f"rows:\n{listing}\n\nHTTP_PORT is the TCP port + 1 unless given. The other server"
        " gets and loses the topic 'martlet-bench'.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=_rows, default=list(ROWS.values()), metavar="NAME,NAME")
    parser.add_argument("--seconds", type=_seconds, default=3.0, help="of each run (default: 3)")
    parser.add_argument("--repeat", type=_count, default=5, help="runs of each row (default: 5)")
    parser.add_argument(
        "--against", type=_target, metavar=_HTTP, help="measure this NSQ server in turns with ours"
    )
    parser.add_argument(
        "--against-sync",
        type=_target,
        metavar=_HTTP,
        help="the same for the row that flushes before OK: nsqd -mem-queue-size=0 -sync-every=1",
    )
    parser.add_argument(
        "--pure", action="store_true", help="also measure ours without the compiled hot path"
    )
    parser.add_argument(
        "--broker",
        type=_target,
        metavar=_HTTP,
        help="measure this running broker; without it, one is started",
    )
    parser.add_argument(
        "--data-path", type=Path, metavar="DIR", help="make the temporary folder in this one"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run there")
    parser.add_argument(
        "--nsqload", metavar="PATH", help="let this binary make the load, in place of ours"
    )
    return parser


def _rows(text: str) -> list[Row]:
    for name in text.split(","):
        if name not in ROWS:
            raise argparse.ArgumentTypeError(f"no row {name!r}; there are: {', '.join(ROWS)}")
    return [ROWS[name] for name in text.split(",")]


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1000")
    return int(text)


def _target(text: str) -> Target:
    try:
        return Target.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _bench(given: argparse.Namespace, stack: ExitStack) -> int:
    rows: list[Row] = given.rows
    about = machine()
    comparison = Comparison(
        ours=_ours(given, stack),
        theirs=Side(given.against, given.against_sync),
        seconds=given.seconds,
        repeat=given.repeat,
        nsqload_path=given.nsqload,
        pure=_ours(given, stack, pure=True) if given.pure else Side(None, None),
    )
    sides = (comparison.ours, comparison.theirs, comparison.pure)
    targets = {id(t): t for side in sides for row in rows if (t := side.target(row)) is not None}
    versions = {target.name: target.version() for target in targets.values()}
    console = Console(stderr=True)
    lines = _measure(comparison, rows, console)
    theirs = given.against or given.against_sync
    for note in notes(comparison, about):
        print(note)
    heading = None if theirs is None else f"{theirs.name} ({versions.get(theirs.name, '')})"
    width = None if sys.stdout.isatty() else _WIDTH
    Console(width=width).print(table(lines, f"martlet {__version__}", heading))
    if given.json:
        text = json.dumps(document(lines, comparison, about, versions), indent=1)
        given.json.write_text(text + "\n", encoding="utf-8")
    return 0


def _ours(given: argparse.Namespace, stack: ExitStack, *, pure: bool = False) -> Side:
    """The broker that was named, else brokers of our own, as the rows want them."""
    if given.broker is not None and not pure:
        return Side(given.broker, None)
    sides: dict[bool, Target | None] = {False: None, True: None}
    for sync in {row.sync for row in given.rows}:
        flags = ["--log-level=warn", *(["--flush=sync"] if sync else [])]
        kind = PureBroker if pure else BrokerProcess
        broker = stack.enter_context(kind(_folder(given, stack), *flags))
        http_port = broker.http_address.rpartition(":")[2]
        name = "martlet, pure Python" if pure else "martlet"
        name += " --flush=sync" if sync else ""
        sides[sync] = Target.parse(f"{broker.tcp_address},{http_port}", name)
    return Side(sides[False], sides[True])


class PureBroker(BrokerProcess):
    """A broker without the compiled hot path."""

    @staticmethod
    def _spawn(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "MARTLET_PURE": "1"}
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _folder(given: argparse.Namespace, stack: ExitStack) -> Path | None:
    if given.data_path is None:
        return None
    from tempfile import TemporaryDirectory

    return Path(stack.enter_context(TemporaryDirectory(prefix="martlet-", dir=given.data_path)))


def _measure(comparison: Comparison, rows: list[Row], console: Console) -> list[Measurement]:
    runs = comparison.run_count(rows)
    number = 0
    with console.status("") as status:

        def show(row: Row, target: Target) -> None:
            nonlocal number
            number += 1
            status.update(f"{number} of {runs}: {row.work}: {target.name}")

        return comparison.run(rows, show)
