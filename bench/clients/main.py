"""Publishing and consuming: Martlet's client beside pynsq, ansq, gnsq and go-nsq's bench tools.

    python bench/clients.py [--work consume,publish,publish-many,consume-three]
        [--bench-writer PATH] [--bench-reader PATH]
        [--messages 200000] [--repeat 5] [--ready 2500] [--clients martlet,...] [--json FILE]

For each work a new Martlet broker serves all of them, each client is a process of its own, and the
clients take turns.  The works, all in one run unless some are chosen:

``consume``
    A handler for each message of the same stored messages, each run on a channel of its own.
``publish``
    Single messages, 50 at once on one connection.
``publish-many``
    Batches of 200, each answered before the next.
``consume-three``
    Martlet's consumer with a handler over three brokers, and over one: as many messages and the
    same ready count in all.

After each run the broker is asked: a run of which it does not know every message as stored, or as
finished, does not count, and the script fails.

``bench_writer`` and ``bench_reader`` are nsq's own, built on go-nsq's protocol.  They work for a
time (``--tool-seconds``) instead of for a number of messages, and without a handler; they run with
one connection (and GOMAXPROCS=1), as the others have, and with one for each processor, as they do
by themselves; each connection has the ready count for itself.  What counts is what the broker has
stored, which must be what the writer says, or knows as finished.  The writer's messages are as long
as the others', but all zeros.  They have no work like ``publish``.

The processor's time is the client's, and says more than the rate on a machine that does other
things as well.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from bench.clients.consume import CLIENTS
from bench.clients.works import WORKS
from martlet.testing import BrokerProcess

BROKERS = 3


def main() -> int:
    """Let the clients take turns, and print what they did."""
    given = parse()
    runs = {}
    flags = ("--log-level=warn", f"--max-rdy-count={given.ready}")
    for name in given.work:
        with ExitStack() as stack:
            count = BROKERS if name == "consume-three" else 1
            brokers = [stack.enter_context(BrokerProcess(None, *flags)) for _ in range(count)]
            contest = WORKS[name](brokers, given)
            done = contest.take_turns(given.repeat)
        runs[name] = {client: [asdict(run) for run in each] for client, each in done.items()}
        Console().print(contest.table(done))
    if given.json:
        given.json.write_text(json.dumps({"ready": given.ready, "runs": runs}, indent=1))
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=some_of(WORKS), default=list(WORKS))
    parser.add_argument("--messages", type=at_least_one, default=200_000)
    parser.add_argument("--repeat", type=at_least_one, default=5)
    parser.add_argument(
        "--ready", type=at_least_one, default=2500, help="the ready count of each client"
    )
    parser.add_argument("--clients", type=some_of(CLIENTS), default=list(CLIENTS))
    parser.add_argument("--bench-writer", type=Path, help="nsq's program of that name")
    parser.add_argument("--bench-reader", type=Path, help="nsq's program of that name")
    parser.add_argument(
        "--tool-seconds", type=float, default=0.5, help="how long each run of those two takes"
    )
    parser.add_argument("--json", type=Path, help="where to write each run")
    return parser.parse_args()


def at_least_one(text: str) -> int:
    """A number above 0.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """What reads some of these names, with commas between them."""
    every = list(known)

    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in every]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(every)}")
        return names

    return read


if __name__ == "__main__":
    sys.exit(main())
