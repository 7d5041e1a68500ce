"""Publishing and consuming: Martlet's client beside pynsq, ansq, gnsq and go-nsq's bench tools.

    ./run bench clients [--work consume,publish,publish-many,consume-three]
        [--bench-writer PATH] [--bench-reader PATH] [--tool-seconds 0.5]
        [--messages 200000] [--repeat 5] [--ready 2500] [--clients martlet,...] [--json FILE]

For each work a new Martlet broker serves all of them, each client is a process of its own, and the
clients take turns.  The works, all in one run unless some are named:

``consume``
    A handler for each message of the same stored messages, each run on a channel of its own.
``publish``
    Single messages, 50 at once on one connection.
``publish-many``
    Batches of 200, each answered before the next.
``consume-three``
    Martlet's consumer with a handler over three brokers, and over one: as many messages and the
    same ready count in all.

After each run the broker is asked: where it does not know every message as stored, or as finished,
the benchmark fails.

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

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict

from bench.clients.consume import CLIENTS
from bench.clients.works import WORKS
from bench.flags import parse
from martlet.testing import BrokerProcess

BROKERS = 3


def main(arguments: Sequence[str]) -> int:
    """Let the clients take turns, and print their medians."""
    given = parse(
        __doc__,
        arguments,
        work=",".join(WORKS),
        messages=200_000,
        repeat=5,
        ready=2500,
        clients=",".join(CLIENTS),
        bench_writer=None,
        bench_reader=None,
        tool_seconds=0.5,
        json=None,
    )
    given.clients = known(given.clients, CLIENTS)
    runs = {}
    flags = ("--log-level=warn", f"--max-rdy-count={given.ready}")
    for name in known(given.work, WORKS):
        with ExitStack() as stack:
            count = BROKERS if name == "consume-three" else 1
            brokers = [stack.enter_context(BrokerProcess(None, *flags)) for _ in range(count)]
            done = WORKS[name](brokers, given).hold(given.repeat)
        runs[name] = {client: [asdict(run) for run in each] for client, each in done.items()}
    if given.json:
        given.json.write_text(json.dumps({"ready": given.ready, "runs": runs}, indent=1))
    return 0


def known(text: str, names: Iterable[str]) -> list[str]:
    """Split names at commas, and refuse those that do not exist."""
    every = list(names)
    for name in text.split(","):
        if name not in every:
            raise SystemExit(f"{name!r} is none of {', '.join(every)}")
    return text.split(",")
