"""Streams from source to sink, without state and with it, whose processes are killed by turns while
queues are added: each row counts once in each of them.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tests.spark.kills import LONG_S, Feed, Started, finished
from tests.spark.publish import post
from tests.spark.read.stream_job import NAMES, OFFSETS_A_WINDOW, TOPIC
from tests.spark.reader.brokers.test_failover import Loop, loop, started, stopped
from tests.spark.stored import rows_at

from martlet.testing import BrokerProcess

__all__ = ["loop"]
pytestmark = [
    pytest.mark.spark,
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
]


def command(addresses: str, folder: Path, *more: str) -> list[str]:
    checkpoints = str(folder / "checkpoints")
    return [sys.executable, "-m", "tests.spark.read.stream_job", addresses, checkpoints, *more]


def lines_of(addresses: str, topic: str) -> list[str]:
    return [row["value"].decode() for row in rows_at(addresses, topic)]


def check(addresses: str, bodies: set[bytes]) -> None:
    """Compare the streams' outputs with their input, which is to have some bodies."""
    rows = rows_at(addresses, TOPIC)
    assert bodies <= {row["value"] for row in rows}
    offsets: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        offsets[row["partition"]].append(row["offset"])
    assert all(of_queue == list(range(len(of_queue))) for of_queue in offsets.values())

    copies = Counter(lines_of(addresses, "copied"))
    assert copies == Counter(f"{queue}-{n}" for queue, some in offsets.items() for n in some)

    windows = [json.loads(line) for line in lines_of(addresses, "windows")]
    starts = range(0, len(windows) * OFFSETS_A_WINDOW, OFFSETS_A_WINDOW)
    sums = [
        {
            "start": start // 100,
            "count": OFFSETS_A_WINDOW,
            "total": sum(range(start, start + OFFSETS_A_WINDOW)),
        }
        for start in starts
    ]
    assert sorted(windows, key=lambda window: window["start"]) == sums
    # Those that are not final yet end at most a second of event time before the newest row.
    assert len(windows) >= len(offsets[0]) // OFFSETS_A_WINDOW - 1

    totals: dict[str, tuple[int, int]] = {}
    for queue, some in offsets.items():
        for rest in range(3):
            if own := some[rest::3]:
                totals[f"{queue}-{rest}"] = len(own), sum(own)
    for topic in ("pandas", "state"):
        summed: dict[str, tuple[int, int]] = {}
        for line in lines_of(addresses, topic):
            sums_of = json.loads(line)
            before, _ = summed.get(sums_of["key"], (0, 0))
            assert sums_of["before"] == before, (topic, line)
            summed[sums_of["key"]] = sums_of["count"], sums_of["total"]
        assert summed == totals, topic


def test_each_row_counts_once_whichever_process_is_killed(tmp_path: Path) -> None:
    chance = random.Random(8)
    with BrokerProcess(tmp_path / "data", start_timeout_s=LONG_S) as broker:
        address = broker.http_address
        with Feed([address], TOPIC) as feed:
            for queues, victim in enumerate(("driver", "broker", "java", "worker"), 2):
                with Started(command(address, tmp_path), tmp_path) as streams:
                    if victim == "broker":
                        streams.await_moment(chance, NAMES)
                        broker.kill()
                        broker.restart()
                        post(address, f"/topic/create?topic={TOPIC}&queues={queues}")
                        streams.await_moment(chance, NAMES)
                    else:
                        post(address, f"/topic/create?topic={TOPIC}&queues={queues}")
                        streams.strike(victim, chance, NAMES)
        for _ in range(2):  # New queues are taken in by the first run, and read by the second.
            finished(command(address, tmp_path, "once"))
        check(address, {b"%d" % number for number in range(feed.count)})


def test_each_row_counts_once_while_primaries_are_killed(tmp_path: Path, loop: Loop) -> None:
    chance = random.Random(9)
    cluster = loop.run(started(tmp_path))
    replicas = list(cluster.http.values())
    addresses = ",".join(replicas)
    try:
        with Feed(replicas, TOPIC) as feed:
            for victim in ("java", "driver"):
                with Started(command(addresses, tmp_path), tmp_path) as streams:
                    for _ in range(2):
                        streams.await_moment(chance, NAMES)
                        dead = loop.run(cluster.primary())
                        cluster.kill(dead)
                        streams.await_moment(chance, NAMES)
                        cluster.start_one(dead)
                        loop.run(cluster.in_sync(3))
                    streams.strike(victim, chance, NAMES)
        finished(command(addresses, tmp_path, "once"))
        check(addresses, {b"%d" % number for number in range(feed.count)})
    finally:
        loop.run(stopped(cluster))
