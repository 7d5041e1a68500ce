"""``martlet demo``: the main job on real data, with a kill -9 in the middle.

Exit codes: 0 when nothing was lost and all adds up, 1 when not, 2 when the command line is wrong,
130 and 143 when it was interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from examples.flights.account import DemoTotals
from examples.flights.board import DemoBoard, DemoFailed
from examples.flights.flights import FLIGHTS
from examples.flights.job import DemoJob
from examples.flights.place import DemoFolder
from examples.flights.report import table

_RATE = 20_000
_SPACE = "1 GB of disk"
_DESCRIPTION = """\
The main job on real data. A broker of its own takes the flights that left New York City in 2013;
four consumers handle them and sometimes fail; Spark archives them; the broker is killed in the
middle, and started again. At the end it is accounted for every flight."""


def main(argv: Sequence[str]) -> int:
    """Run the demonstration; the result is the exit code of the process."""
    given = _parser().parse_args(argv)
    try:
        place = DemoFolder(given.out, keep=given.keep)
    except DemoFailed as error:
        print(f"martlet demo: {error}", file=sys.stderr)
        return 2
    console = Console()
    try:
        return _demo(given, place, console)
    except DemoFailed as error:
        print(f"martlet demo: {error}; logs are in {place.folder}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _interrupted(place, signal.SIGINT)
    except asyncio.CancelledError:
        return _interrupted(place, signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="martlet demo", description=_DESCRIPTION)
    add = parser.add_argument
    add("--out", type=Path, metavar="DIR", help="put all data there, and leave it there")
    add("--keep", action="store_true", help="leave the data in the temporary folder")
    add("--flights", type=_count, metavar="N", help=f"only so many (default: all {FLIGHTS:,})")
    add(
        "--rate",
        type=_count,
        default=_RATE,
        metavar="N",
        help="publish so many a second at most (default: %(default)s)",
    )
    return parser


def _count(text: str) -> int:
    digits = text.replace(",", "").replace("_", "")
    if not digits.isdecimal() or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    if int(digits) > 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is more than 1,000,000,000")
    return int(digits)


def _demo(given: argparse.Namespace, place: DemoFolder, console: Console) -> int:
    _log_to(place.client_log)
    for line in _plan(given):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"broker's data   {place.data}", highlight=False, soft_wrap=True)
    console.print(f"Parquet archive {place.parquet}", highlight=False, soft_wrap=True)
    with DemoBoard(console) as board:
        account = asyncio.run(_run(DemoJob(place, board, given.flights, given.rate)))
        seconds = board.seconds
    return _print_summary(account, place, console, seconds)


def _plan(given: argparse.Namespace) -> Iterator[str]:
    """Say what the demonstration is about to do, and how long that takes."""
    count = given.flights or FLIGHTS
    seconds = 25 + count / given.rate
    yield f"This takes about {seconds:.0f} s on 2 processors, and {_SPACE}. A broker of its own"
    yield f"takes {count:,} flights at {given.rate:,}/s; 4 consumers handle them and fail at times;"
    yield "Spark archives them; the broker is killed with SIGKILL in the middle, and started again."


async def _run(job: DemoJob) -> DemoTotals:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await job.run()


def _log_to(file: Path) -> None:
    """Write the client's log to a file: it has a traceback for each failure of the handler."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("martlet.client")
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)


def _print_summary(account: DemoTotals, place: DemoFolder, console: Console, seconds: float) -> int:
    if account.found is not None:
        reports = {
            "source": account.source,
            "archive": account.found.report,
            "consumers": account.handled,
        }
        console.print(table(reports))
    console.print(account.table())
    console.print(f"martlet log verify: {account.log[1]}", highlight=False, soft_wrap=True)
    faults = account.faults()
    for fault in faults:
        console.print(f"FAULT: {fault}", highlight=False, soft_wrap=True)
    if faults or place.is_kept:
        kept = f"data, archive and logs are in {place.folder}"
    else:
        place.remove()
        kept = "data and archive are removed; --keep would have left them"
    verdict = f"FAILED, {len(faults)} faults" if faults else "nothing was lost, and all is equal"
    console.print(f"{verdict}; {seconds:.0f} s; {kept}", highlight=False, soft_wrap=True)
    return 1 if faults else 0


def _interrupted(place: DemoFolder, number: signal.Signals) -> int:
    print("martlet demo: interrupted; all its processes are ended", file=sys.stderr)
    if not place.is_kept:
        place.remove()
    return 128 + number
