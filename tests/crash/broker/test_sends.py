"""Sends through brokers that are killed and connections that are cut: each stored exactly once.

The ledger is the list of what was sent and where the broker said it is.  A proxy between producer
and broker swallows answers and cuts connections, so that many stored sends are never answered
the first time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from tests.interop.cutting_proxy import CuttingProxy

from martlet.client import Backoff, Consumer, Producer, PublishTimeout, SendResult
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

TOPICS = ("a", "b")
TIGHT = (
    "--journal-interval=10ms",
    "--checkpoint-interval=100ms",
    "--max-bytes-per-file=262144",
    "--min-free-bytes=0",
    "--log-level=warn",
)
SOON = Backoff(first_s=0.01, max_s=0.05)


class Ledger:
    """Messages sent and messages answered."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sent = 0
        self.answered: dict[bytes, SendResult] = {}
        self.unanswered: set[bytes] = set()
        self.duplicates = 0
        self._wanted = 0
        self._is_there = asyncio.Event()

    async def more(self, count: int) -> None:
        """Return when `count` more are answered."""
        self._wanted = len(self.answered) + count
        self._is_there.clear()
        await asyncio.wait_for(self._is_there.wait(), 60)

    async def send(self, producer: Producer, until: asyncio.Event) -> None:
        """Send one after the other, or some at once, until it is enough."""
        while not until.is_set():
            topic = self.random.choice(TOPICS)
            bodies = []
            for _ in range(self.random.choice((1, 1, 1, 5, 40))):
                self.sent += 1
                bodies.append(
                    b"%s %d " % (topic.encode(), self.sent) + bytes(self.random.choice((0, 500)))
                )
            key = f"k{self.random.randrange(3)}" if self.random.random() < 0.5 else ""
            try:
                if self.random.random() < 0.3:
                    results = await producer.send_many(topic, bodies, order_key=key)
                else:
                    tagged = self.random.choice(("", "tag"))
                    sends = [
                        producer.send(topic, body, tag=tagged, order_key=key) for body in bodies
                    ]
                    results = await asyncio.gather(*sends)
            except PublishTimeout:
                self.unanswered.update(bodies)
                continue
            self.duplicates += sum(each.is_duplicate for each in results)
            self.answered.update(zip(bodies, results, strict=True))
            if len(self.answered) >= self._wanted:
                self._is_there.set()


async def everything(address: str, topic: str) -> list[tuple[bytes, bytes]]:
    """Id and body of all messages of a topic."""
    found: list[tuple[bytes, bytes]] = []
    async with Consumer(topic, "all", address, max_in_flight=2500) as consumer:
        with suppress(TimeoutError):
            while True:
                # The last message of each queue is the one with this body.
                message = await asyncio.wait_for(anext(consumer), 50)
                if message.body == b"end":
                    return found
                found.append((message.id, message.body))
                message.finish()
    raise AssertionError(f"{topic}: the end did not come")


async def torture(folder: Path, lives: int, seed: int, flush: str) -> Ledger:
    ledger = Ledger(seed)
    chance = ledger.random
    with BrokerProcess(folder, *TIGHT, f"--flush={flush}") as broker:
        async with (
            CuttingProxy(broker.tcp_address) as proxy,
            Producer(proxy.address, send_timeout_s=60, send_retries=None, backoff=SOON) as producer,
        ):
            enough = asyncio.Event()
            senders = [asyncio.create_task(ledger.send(producer, enough)) for _ in range(6)]
            for _ in range(lives):
                await ledger.more(chance.randrange(100))
                for _ in range(chance.randrange(3)):
                    proxy.swallow()
                    await asyncio.wait_for(proxy.swallowed.wait(), 60)
                    proxy.go_on()
                    await ledger.more(chance.randrange(1, 20))
                if chance.random() < 0.7:
                    proxy.swallow()
                    await asyncio.wait_for(proxy.swallowed.wait(), 60)
                await asyncio.to_thread(broker.kill)
                proxy.go_on()
                await asyncio.to_thread(broker.start)
            enough.set()
            await asyncio.gather(*senders)
            assert producer.stats.pending_messages == 0
        for topic in TOPICS:
            async with Producer(broker.tcp_address) as producer:
                await producer.send(topic, b"end")
            found = await everything(broker.tcp_address, topic)
            counts = Counter(body for _, body in found)
            assert [body for body, count in counts.items() if count > 1] == []
            mine = {b: r for b, r in ledger.answered.items() if b.startswith(topic.encode())}
            assert mine.keys() <= counts.keys(), "what was answered is stored"
            assert counts.keys() <= mine.keys() | ledger.unanswered
            ids = {body: id for id, body in found}
            assert all(ids[body] == result.id for body, result in mine.items())
    return ledger


@pytest.mark.parametrize(("flush", "lives"), [("async", 2), ("sync", 1)])
async def test_each_send_is_stored_once_despite_kills_and_cuts(
    tmp_path: Path, flush: str, lives: int
) -> None:
    ledger = await torture(tmp_path, lives, 1, flush)
    assert ledger.duplicates


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("seed", range(3))
async def test_many_lives(tmp_path: Path, flush: str, seed: int) -> None:
    ledger = await torture(tmp_path, 20, seed, flush)
    assert ledger.duplicates > 20
