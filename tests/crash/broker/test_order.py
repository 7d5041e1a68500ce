"""Ordered channels while their broker is killed: no message overtakes one of its key."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from tests.crash.wire import http_now

from martlet.addresses import Address
from martlet.client import ClientError, Consumer, FailureBackoff, Identity, Message
from martlet.client.transport.connection import Connection
from martlet.properties.block import pack_block
from martlet.properties.model import Properties
from martlet.protocol.nsq import commands
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

KEYS = [f"customer {number}" for number in range(8)]
LIVES = 3


class Ledger:
    """Messages answered OK and messages handled, by key."""

    def __init__(self) -> None:
        self.stored: dict[str, int] = dict.fromkeys(KEYS, 0)
        """Number of messages of each key that were answered OK: those from 0 up."""
        self.handled: dict[str, set[int]] = defaultdict(set)
        self.is_ending = False
        self.wanted = 0
        self.reached = asyncio.Event()

    @property
    def handled_count(self) -> int:
        return sum(map(len, self.handled.values()))

    async def until_more(self, count: int) -> None:
        """Wait until `count` more messages were handled."""
        self.wanted = self.handled_count + count
        self.reached.clear()
        await self.reached.wait()

    def handle(self, key: str, number: int) -> None:
        self.handled[key].add(number)
        if self.handled_count >= self.wanted:
            self.reached.set()

    @property
    def is_done(self) -> bool:
        return self.is_ending and all(
            len(self.handled[key]) >= count for key, count in self.stored.items()
        )


async def publish(ledger: Ledger, key: str, host: str, port: int) -> None:
    """Numbers of one key, each again until it is answered."""
    block = pack_block([(0, Properties(order_key=key).pack())])
    while not ledger.is_ending:
        try:
            connection = await Connection.open(Address(host, port), Identity(), timeout_s=5)
        except (ClientError, OSError):
            await asyncio.sleep(0.02)
            continue
        with suppress(ClientError):
            while not ledger.is_ending:
                body = b"%d" % ledger.stored[key]
                answer = await connection.ask(commands.send("t", [body], {"order_key": key}, block))
                assert json.loads(answer)["status"] == "OK"
                ledger.stored[key] += 1
        connection.abort()


async def consume(
    ledger: Ledger,
    address: str,
    order: Literal["key", "queue"],
    chance: random.Random,
    done: asyncio.Event,
) -> None:
    async def handle(message: Message) -> None:
        key, number = message.properties.order_key, int(message.body)
        missing = set(range(number)) - ledger.handled[key]
        assert not missing, f"{number} of {key!r} came before {sorted(missing)}"
        await asyncio.sleep(0)
        if chance.random() < 0.05:
            message.requeue(chance.choice([0, 5]), backoff=False)
            return
        ledger.handle(key, number)
        if ledger.is_done:
            done.set()

    calm = FailureBackoff(max_s=0)
    async with Consumer("t", "c", address, order=order, failure_backoff=calm) as consumer:
        task = asyncio.create_task(consumer.run(handle, concurrency=4))
        await done.wait()
    await task


@pytest.mark.parametrize("order", ["key", "queue"])
async def test_no_message_overtakes_one_of_its_key(
    order: Literal["key", "queue"], tmp_path: Path
) -> None:
    ledger, chance, done = Ledger(), random.Random(5), asyncio.Event()
    flags = ("--journal-interval=50ms", "--checkpoint-interval=150ms", "--min-free-bytes=0")
    with BrokerProcess(tmp_path, *flags, "--max-bytes-per-file=1048576") as broker:
        address = broker.tcp_address
        host, _, port = address.rpartition(":")
        http_now(broker.http_address, "/topic/create?topic=t&queues=3", b"")
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(consume(ledger, address, order, chance, done))
            producers = [group.create_task(publish(ledger, key, host, int(port))) for key in KEYS]
            for _ in range(LIVES):
                await ledger.until_more(200)
                broker.kill()
                await asyncio.to_thread(broker.start)
            ledger.is_ending = True
            await asyncio.wait(producers)
            if ledger.is_done:
                done.set()
            await asyncio.wait_for(done.wait(), 60)
    for key, count in ledger.stored.items():
        assert ledger.handled[key] >= set(range(count))
