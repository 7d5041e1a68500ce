"""Dead letters while their broker is killed: each message is finished, dead, or still to come."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.crash.wire import http_now, until

from martlet.broker.dead_letters.dead_letter import CHANNEL
from martlet.client import Backoff, ClientError, Consumer, FailureBackoff, Message, Producer
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

LIVES = 2
COUNT = 200
AMPLE_S = 60
CALM = FailureBackoff(max_s=0)
SOON = Backoff(first_s=0.02, max_s=0.1)
FLAGS = ("--journal-interval=20ms", "--checkpoint-interval=150ms", "--min-free-bytes=0")


def is_bad(body: bytes) -> bool:
    return int(body) % 3 == 0


class Ledger:
    """Messages answered OK, messages handled, and the fate of the rest."""

    def __init__(self) -> None:
        self.answered: set[bytes] = set()
        self.handled: set[bytes] = set()
        self.failures = 0
        self.is_mended = False
        """From now on no handler fails."""
        self._wanted = 0
        self._reached = asyncio.Event()

    def handle(self, message: Message) -> None:
        if is_bad(message.body) and not self.is_mended:
            self.failures += 1
            self._count()
            raise ConnectionError("as always")
        self.handled.add(message.body)
        self._count()

    def _count(self) -> None:
        if self.failures + len(self.handled) >= self._wanted:
            self._reached.set()

    async def until_more(self, count: int) -> None:
        """Wait until `count` more calls of handlers, or handled messages."""
        self._wanted = self.failures + len(self.handled) + count
        self._reached.clear()
        async with asyncio.timeout(AMPLE_S):
            await self._reached.wait()

    @property
    def bad(self) -> set[bytes]:
        return set(filter(is_bad, self.answered))


async def publish(ledger: Ledger, address: str) -> None:
    """Numbers, each again until it is answered."""
    number = 0
    while number < COUNT:
        with suppress(ClientError):
            async with Producer(address, backoff=SOON) as producer:
                while number < COUNT:
                    await producer.publish("t", b"%d" % number)
                    ledger.answered.add(b"%d" % number)
                    number += 1


def call(broker: BrokerProcess, method: str, **fields: object) -> dict[str, Any]:
    body = http_now(broker.http_address, f"/call/{method}", json.dumps(fields).encode())
    answer: dict[str, Any] = json.loads(body)
    return answer


def counts(broker: BrokerProcess, topic: str, channel: str) -> tuple[int, int, int]:
    """Of a channel: what waits, is in flight, and waits for a time."""
    stats = json.loads(http_now(broker.http_address, f"/stats?format=json&topic={topic}"))
    for found in stats["topics"] or ():
        for each in found["channels"]:
            if each["channel_name"] == channel:
                return each["depth"], each["in_flight_count"], each["deferred_count"]
    return 0, 0, 0


async def until_empty(broker: BrokerProcess, topic: str, channel: str) -> None:
    async def is_empty() -> bool:
        return not any(await asyncio.to_thread(counts, broker, topic, channel))

    await until(is_empty)


async def test_no_dead_letter_is_lost(tmp_path: Path) -> None:
    ledger = Ledger()
    with BrokerProcess(tmp_path, *FLAGS, "--max-bytes-per-file=1048576") as broker:
        http_now(broker.http_address, "/topic/create?topic=t", b"")
        http_now(broker.http_address, "/channel/create?topic=t&channel=c", b"")
        policy = {"max_attempts": 3, "retry_delays_ms": [1, 2]}
        call(broker, "channel.configure", topic="t", channel="c", policy=policy)
        async with Consumer(
            "t", "c", broker.tcp_address, failure_backoff=CALM, backoff=SOON
        ) as consumer:
            running = asyncio.create_task(consumer.run(ledger.handle, concurrency=4))
            publishing = asyncio.create_task(publish(ledger, broker.tcp_address))
            for _ in range(LIVES):
                await ledger.until_more(60)
                broker.kill()
                await asyncio.to_thread(broker.start)
            await asyncio.wait_for(publishing, AMPLE_S)
            await until_empty(broker, "t", "c")
            dead = _dead(broker)
            assert ledger.answered - ledger.handled == ledger.bad
            assert ledger.bad <= dead.keys()
            assert {letter["last_error"] for letter in dead.values()} == {
                "ConnectionError: as always"
            }
            ledger.is_mended = True
            await _redrive(broker)
            await until_empty(broker, "t", "c")
            await until_empty(broker, "t.c.dead", CHANNEL)
            consumer.stop()
            await running
    assert ledger.handled >= ledger.answered


def _dead(broker: BrokerProcess) -> dict[bytes, dict[str, Any]]:
    answer = call(broker, "dead_letters.show", topic="t", channel="c", limit=1000)
    return {letter["body"].encode(): letter for letter in answer["messages"]}


async def _redrive(broker: BrokerProcess) -> None:
    """Bring all back, some at a time, and kill the broker at once in between."""
    letters = list(_dead(broker).values())
    for number, start in enumerate(range(0, len(letters), 30)):
        ids = [letter["id"] for letter in letters[start : start + 30]]
        call(broker, "dead_letters.redrive", topic="t", channel="c", ids=ids)
        if number < 1:
            broker.kill()
            await asyncio.to_thread(broker.start)
    call(broker, "dead_letters.redrive", topic="t", channel="c", all=True)
