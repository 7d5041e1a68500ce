"""Whether a stream keeps up with a broker that takes messages at a rate, and how late it is.

    spark_stream.py [--rate 200000] [--seconds 300] [--size 200] [--master local[2]]

A process publishes at the rate, in MPUBs of 200; a streaming query reads value and timestamp and
adds up the lengths.  The delay of a message runs from when the broker stored it until the batch
that has it is done.  The percentiles are those of all messages after the first 30 seconds.  It
keeps up if what is left to read at the end is what comes in between two batches.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.spark.letters import BATCH, OK, TOPIC, commands, expect_ok
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
    count: int
    stored_s: list[float]


def publish(address: str, rate: int, seconds: float, size: int) -> None:
    """Publish at a rate, and tell how many it was."""
    host, _, port = address.rpartition(":")
    ready = itertools.cycle(list(commands(50 * BATCH, size)))
    with socket.create_connection((host, int(port))) as connection:
        answers = connection.makefile("rb")
        settings = b'{"heartbeat_interval": -1}'
        connection.sendall(b"  V2IDENTIFY\n" + len(settings).to_bytes(4, "big") + settings)
        expect_ok(answers.read(len(OK)))
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


def _read(answers: object) -> None:
    while answer := answers.read(len(OK)):  # type: ignore[attr-defined]
        expect_ok(answer)


def percentiles(batches: list[Batch], from_s: float) -> dict[str, float]:
    """The delays of all messages, each batch's percentiles standing for its messages."""
    late = [batch for batch in batches if batch.done_s >= from_s]
    delays = np.concatenate([batch.done_s - np.array(batch.stored_s) for batch in late])
    weights = np.repeat([batch.count / _POINTS for batch in late], _POINTS)
    order = np.argsort(delays)
    reached = np.cumsum(weights[order]) / weights.sum()
    return {
        f"p{share:g}": float(
            delays[order][min(len(order) - 1, np.searchsorted(reached, share / 100))]
        )
        for share in (50, 90, 99, 100)
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=200_000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--size", type=int, default=200, help="bytes a message")
    parser.add_argument("--interval", default="1 second", help="between two micro-batches")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--folder", type=Path, help="where some 15 GB may go for the time being")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--publish", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.publish:
        publish(asked.publish, asked.rate, asked.seconds, asked.size)
        return

    folder = Path(tempfile.mkdtemp(prefix="martlet-bench-", dir=asked.folder))
    batches: list[Batch] = []

    def take(rows: DataFrame, _number: int) -> None:
        points = [number / (_POINTS - 1) for number in range(_POINTS)]
        stored = F.percentile_approx(F.unix_micros("timestamp"), points, 1000)
        found = rows.agg(F.count("*"), F.sum(F.length("value")), stored).collect()[0]
        if found[0]:
            assert found[1] == found[0] * asked.size
            batches.append(Batch(time.time(), found[0], [at / 1e6 for at in found[2]]))

    try:
        with BrokerProcess(folder / "data") as broker:
            spark = spark_session("martlet bench", master=asked.master)
            reader = spark.readStream.format("martlet").schema("value BINARY, timestamp TIMESTAMP")
            reader = reader.option("addresses", broker.http_address).option("topic", TOPIC)
            rows = reader.option("startingOffsets", "earliest").option("group", "bench").load()
            query = (
                rows.writeStream.foreachBatch(take)
                .option("checkpointLocation", str(folder / "checkpoint"))
                .trigger(processingTime=asked.interval)
                .start()
            )
            command = [sys.executable, "-m", __name__, "--publish", broker.tcp_address]
            command += [
                f"--rate={asked.rate}",
                f"--seconds={asked.seconds}",
                f"--size={asked.size}",
            ]
            began_s = time.time()
            told = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
            ).stdout
            ended_s = time.time()
            published = json.loads(told)
            read_then = sum(batch.count for batch in batches)
            query.processAllAvailable()
            caught_up_s = time.time() - ended_s
            query.stop()
            spark.stop()
    finally:
        shutil.rmtree(folder)

    found = sum(batch.count for batch in batches)
    if found != published["sent"]:
        raise SystemExit(f"{found:,} of {published['sent']:,} messages were read")
    delays = percentiles(batches, began_s + _WARM_S)
    figures = {
        "published_a_second": published["sent"] / published["seconds"],
        "left_at_the_end": published["sent"] - read_then,
        "caught_up_s": caught_up_s,
        "batches": len(batches),
        "delay_s": delays,
    }
    print(
        f"{platform.machine()}, {os.cpu_count()} processors, {asked.master}, {time.strftime('%F')}"
    )
    print(
        f"{published['sent']:,} messages, {figures['published_a_second']:,.0f} a second, all read"
    )
    print(f"left at the end: {figures['left_at_the_end']:,}, read {caught_up_s:.1f} s later")
    print("delay: " + ", ".join(f"{name} {value:.2f} s" for name, value in delays.items()))
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
