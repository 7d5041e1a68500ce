"""Brokers killed at random moments under load, and what their clients find afterwards."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.crash.load import JOURNAL_INTERVAL_S, Ledger, consume, produce, until_gone
from tests.crash.wire import drain, http, http_now

from martlet.cli.main import main
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

SEGMENT_BYTES = 1 << 20
"""Small, so that segments are rolled, cleaned, let go and used again while brokers are killed."""
LOAD_S = (0.15, 0.7)
START_S = 0.6
"""About how long a broker takes to start; some are killed before that."""
TIGHT = (
    f"--journal-interval={int(JOURNAL_INTERVAL_S * 1000)}ms",
    "--checkpoint-interval=150ms",
    f"--max-bytes-per-file={SEGMENT_BYTES}",
    "--min-free-bytes=0",
    "--log-level=warn",
)


def broker_on(folder: Path, *arguments: str) -> BrokerProcess:
    return BrokerProcess(folder, *TIGHT, *arguments)


@dataclass
class Topology:
    """Topics, channels and pauses as the broker has answered for them."""

    paused: dict[tuple[str, str], bool] = field(default_factory=dict)
    topics: dict[str, bool] = field(default_factory=dict)
    deleted: set[tuple[str, str]] = field(default_factory=set)

    def change(self, address: str, chance: random.Random, number: int) -> None:
        """Make, pause and delete, as an operator does."""

        def post(target: str) -> None:
            http_now(address, target, b"")

        name, channel = f"made{number}", f"channel{number}"
        post(f"/topic/create?topic={name}")
        self.topics[name] = False
        post(f"/channel/create?topic={name}&channel={channel}")
        self.paused[name, channel] = False
        for pair in chance.sample(sorted(self.paused), min(3, len(self.paused))):
            paused = chance.random() < 0.5
            verb = "pause" if paused else "unpause"
            post(f"/channel/{verb}?topic={pair[0]}&channel={pair[1]}")
            self.paused[pair] = paused
        topic = chance.choice(sorted(self.topics))
        post(f"/topic/pause?topic={topic}")
        self.topics[topic] = True
        if number % 3 == 2:
            gone = chance.choice(sorted(self.paused))
            post(f"/channel/delete?topic={gone[0]}&channel={gone[1]}")
            del self.paused[gone]
            self.deleted.add(gone)

    def differences(self, address: str) -> list[str]:
        report = json.loads(http_now(address, "/stats?format=json"))
        topics = {topic["topic_name"]: topic for topic in report["topics"]}
        differences = []
        for name, paused in self.topics.items():
            if name not in topics:
                differences.append(f"topic {name} has gone")
            elif topics[name]["paused"] != paused:
                differences.append(f"topic {name}: paused is {not paused}")
        channels = {
            (name, channel["channel_name"]): channel["paused"]
            for name, topic in topics.items()
            for channel in topic["channels"]
        }
        for pair, is_paused in self.paused.items():
            if channels.get(pair) is not is_paused:
                differences.append(f"{pair}: paused should be {is_paused}, is {channels.get(pair)}")
        return differences + [f"{gone} has come back" for gone in self.deleted & channels.keys()]


def kill_while_starting(broker: BrokerProcess, after_s: float) -> None:
    """Begin a life that ends before the broker is ready."""
    with subprocess.Popen(broker.command, stderr=subprocess.DEVNULL) as process:
        time.sleep(after_s)
        process.kill()


async def live(broker: BrokerProcess, ledger: Ledger, seconds: float, journaled: int = 0) -> None:
    """One life of a broker under load, with a sudden end.

    It is longer where fewer messages than `journaled` are known to be finished and written down.
    """
    address = broker.tcp_address
    work = [
        asyncio.create_task(task)
        for task in (
            produce(ledger, address, "work", ()),
            produce(ledger, address, "work", (20, 200, 2500)),
            produce(ledger, address, "quiet", ()),
            consume(ledger, address, "work", "all", finish=0.9, requeue=0.08),
            consume(ledger, address, "work", "all", finish=0.5, requeue=0.2),
            consume(ledger, address, "work", "some", finish=0.95, requeue=0.04),
        )
    ]
    await asyncio.sleep(seconds)
    while len(ledger.channel("work", "all").journaled) < journaled:
        assert not any(task.done() for task in work)
        await asyncio.sleep(0.01)
    broker.kill()
    await until_gone(*work)
    ledger.died()


async def finish_all(broker: BrokerProcess, ledger: Ledger, topic: str, channel: str) -> None:
    """Consume the rest, and check that no message answered OK is missing."""
    for got in await drain(broker.tcp_address, broker.http_address, topic, channel):
        ledger.delivered(topic, channel, got.body)
    assert ledger.missing(topic, channel) == set(), f"{topic}:{channel}"


async def grow(broker: BrokerProcess, topic: str, queues: int) -> None:
    """Give a topic more queues, and see that none has gone."""
    listed = json.loads(await http(broker.http_address, "/log/topics"))
    counts = {topic["topic"]: len(topic["queues"]) for topic in listed["topics"]}
    assert counts[topic] == max(1, queues - 1)
    await http(broker.http_address, f"/topic/create?topic={topic}&queues={queues}", b"")


async def torture(folder: Path, rounds: int, seed: int, *arguments: str, queues: int = 1) -> None:
    """Lives and deaths. Where topics have several queues, one of them gets more in each life."""
    ledger, topology = Ledger(seed), Topology()
    chance = ledger.random
    with broker_on(folder, *arguments) as broker:
        for target in (
            "/topic/create?topic=work" + (f"&queues={queues}" if queues > 1 else ""),
            "/topic/create?topic=quiet",
            "/channel/create?topic=work&channel=all",
            "/channel/create?topic=work&channel=some",
            "/channel/create?topic=work&channel=still",
            "/channel/pause?topic=work&channel=still",
        ):
            await http(broker.http_address, target, b"")
        for number in range(rounds):
            topology.change(broker.http_address, chance, number)
            if queues > 1:
                await grow(broker, "quiet", number + 1)
            await live(broker, ledger, chance.uniform(*LOAD_S), 20 * (number // 2))
            if number % 4 == 1:
                kill_while_starting(broker, chance.uniform(0.2, START_S))
            assert main(["log", "verify", str(folder)]) == 0, f"round {number}"
            broker.start()
            assert topology.differences(broker.http_address) == [], f"round {number}"
            assert ledger.complaints == [], f"round {number}"
        await http(broker.http_address, "/channel/unpause?topic=work&channel=still", b"")
        await finish_all(broker, ledger, "work", "still")
        await finish_all(broker, ledger, "work", "all")
        await finish_all(broker, ledger, "work", "some")
        await finish_all(broker, ledger, "quiet", "first")
        assert ledger.complaints == []
        assert "lost" not in broker.log()
        published = {topic: len(bodies) for topic, bodies in ledger.answered.items()}
        assert min(published[topic] for topic in ("work", "quiet")) > 100 * rounds
        assert len(ledger.channel("work", "all").journaled) >= 20 * ((rounds - 1) // 2)


@pytest.mark.timeout(300)
async def test_twenty_kills(tmp_path: Path) -> None:
    await torture(tmp_path, 20, seed=20)


async def test_kills_with_sync_flush(tmp_path: Path) -> None:
    await torture(tmp_path, 6, 6, "--flush=sync")


async def test_kills_with_several_queues(tmp_path: Path) -> None:
    await torture(tmp_path, 3, 4, queues=4)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("seed", range(3))
async def test_many_kills(tmp_path: Path, flush: str, seed: int) -> None:
    await torture(tmp_path, 60, seed, f"--flush={flush}", queues=1 + 2 * seed)
