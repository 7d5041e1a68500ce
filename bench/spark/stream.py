"""Whether a stream keeps up with a broker that takes messages at a rate, and how late it is.

    ./run bench spark-stream [--rate 200000] [--seconds 300] [--size 200] [--master local[2]]
                             [--interval "1 second"] [--folder DIR] [--json FILE]

A process publishes at the rate, in MPUBs of 200; a streaming query reads value and timestamp and
adds up the lengths.  The delay of a message runs from when the broker stored it until the batch
that has it is done.  The percentiles are those of all messages after the first 30 seconds.  It
keeps up if what is left to read at the end is what comes in between two batches. `--interval` is
the time between two micro-batches; `--folder` is where some 15 GB may go while it runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.flags import parse
from bench.spark.beside import machine, write_json
from bench.spark.letters import BATCH, TOPIC, commands, connected, expect_ok
from martlet.spark.java import spark_session
from martlet.testing import BrokerProcess

ROOT = Path(__file__).parents[2]
_WARM_S = 30
_POINTS = 101
"""Percentiles that are kept of each batch."""
_PERIOD_S = 0.05
"""What is published in this time goes out at once."""


class Batch(NamedTuple):
    """A micro-batch: when it was done, how many messages, and percentiles of when they came."""

    done_s: float
    messages: int
    stored_s: list[float]


def publish(address: str, rate: int, seconds: float, size: int) -> None:
    """Publish at a rate, and print how many messages it was."""
    ready = itertools.cycle(list(commands(50 * BATCH, size)))
    with connected(address) as (connection, answers):
        answered = threading.Thread(target=_read, args=(answers,), daemon=True)
        answered.start()
        began_s = time.monotonic()
        sent = 0
        while (passed_s := time.monotonic() - began_s) < seconds:
            due = int(rate * passed_s) - sent
            for _ in range(due // BATCH):
                connection.sendall(next(ready))
            sent += due // BATCH * BATCH
            time.sleep(_PERIOD_S)
        connection.shutdown(socket.SHUT_WR)
        answered.join()
    print(json.dumps({"sent": sent, "seconds": time.monotonic() - began_s}))


def _read(answers: BinaryIO) -> None:
    while expect_ok(answers, may_end=True):
        pass


def percentiles(batches: list[Batch], from_s: float) -> dict[str, float]:
    """The delays of all messages, each batch's percentiles standing for its messages."""
    late = [batch for batch in batches if batch.done_s >= from_s]
    delays = np.concatenate([batch.done_s - np.array(batch.stored_s) for batch in late])
    weights = np.repeat([batch.messages / _POINTS for batch in late], _POINTS)
    order = np.argsort(delays)
    reached = np.cumsum(weights[order]) / weights.sum()
    last = len(order) - 1
    return {
        f"p{share:g}": float(delays[order][min(last, int(np.searchsorted(reached, share / 100)))])
        for share in (50, 90, 99, 100)
    }


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    given = parse(
        __doc__,
        arguments,
        rate=200_000,
        seconds=300.0,
        size=200,
        interval="1 second",
        master="local[2]",
        folder=None,
        json=None,
    )
    folder = Path(tempfile.mkdtemp(prefix="martlet-bench-", dir=given.folder))
    try:
        figures = measure(given, folder)
    finally:
        shutil.rmtree(folder)
    print(machine(given.master))
    rate = figures["published_a_second"]
    print(f"{figures['messages']:,} messages, {rate:,.0f} a second, all read")
    left, later_s = figures["left_at_the_end"], figures["caught_up_s"]
    print(f"left at the end: {left:,}, read {later_s:.1f} s later")
    delays = ", ".join(f"{name} {value:.2f} s" for name, value in figures["delay_s"].items())
    print(f"delay: {delays}")
    write_json(given, figures)


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Read while another process publishes, until all is read."""
    batches: list[Batch] = []

    def take(rows: DataFrame, _number: int) -> None:
        points = [number / (_POINTS - 1) for number in range(_POINTS)]
        stored = F.percentile_approx(F.unix_micros("timestamp"), points, 1000)
        found = rows.agg(F.count("*"), F.sum(F.length("value")), stored).collect()[0]
        if found[0]:
            assert found[1] == found[0] * given.size
            batches.append(Batch(time.time(), found[0], [at / 1e6 for at in found[2]]))

    with BrokerProcess(folder / "data") as broker:
        spark = spark_session("martlet bench", master=given.master)
        reader = spark.readStream.format("martlet").schema("value BINARY, timestamp TIMESTAMP")
        reader = reader.option("addresses", broker.http_address).option("topic", TOPIC)
        rows = reader.option("startingOffsets", "earliest").option("group", "bench").load()
        query = (
            rows.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(processingTime=given.interval)
            .start()
        )
        command = [sys.executable, "-m", __name__, broker.tcp_address]
        command += [str(each) for each in (given.rate, given.seconds, given.size)]
        began_s = time.time()
        published = json.loads(subprocess.check_output(command, text=True, cwd=ROOT))
        ended_s = time.time()
        read_then = sum(batch.messages for batch in batches)
        query.processAllAvailable()
        caught_up_s = time.time() - ended_s
        query.stop()
        spark.stop()
    found = sum(batch.messages for batch in batches)
    if found != published["sent"]:
        raise SystemExit(f"{found:,} of {published['sent']:,} messages were read")
    return {
        "messages": found,
        "published_a_second": published["sent"] / published["seconds"],
        "left_at_the_end": published["sent"] - read_then,
        "caught_up_s": caught_up_s,
        "batches": len(batches),
        "delay_s": percentiles(batches, began_s + _WARM_S),
    }


if __name__ == "__main__":
    publish(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
