"""Delayed messages while brokers are killed: none is lost, or comes before its time, or twice, and
what was cancelled does not come.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tests import brokers
from tests.crash.load import EARLY_NS, JOURNAL_INTERVAL_S, until_gone
from tests.crash.wire import ERROR, MESSAGE, Refused, Wire, drain, http, message, mpub

from martlet.addresses import Address
from martlet.cli.main import main
from martlet.client import Identity
from martlet.client.transport.connection import Connection
from martlet.protocol.nsq import commands
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

ANSWERED = 40
"""In each life, at least."""
LIFE_S = (0.1, 0.4)
FLAGS = (
    f"--journal-interval={int(JOURNAL_INTERVAL_S * 1000)}ms",
    "--checkpoint-interval=150ms",
    "--max-bytes-per-file=1048576",
    "--min-free-bytes=0",
    "--log-level=warn",
)


@dataclass
class DelayLedger:
    """The promises about delayed messages."""

    random: random.Random
    answered: dict[bytes, int] = field(default_factory=dict)
    """When each body that was answered OK is due, in nanoseconds since 1970."""
    ids: dict[bytes, bytes] = field(default_factory=dict)
    """Of those that may yet be cancelled, the body by the id."""
    cancelled: set[bytes] = field(default_factory=set)
    maybe_cancelled: set[bytes] = field(default_factory=set)
    """Their cancelling was not answered."""
    came: dict[bytes, bytes] = field(default_factory=dict)
    """The id that each body came with."""
    complaints: list[str] = field(default_factory=list)
    made: int = 0

    def delivered(self, id: bytes, body: bytes) -> None:
        """A message has come: may it?"""
        number, due_ns = body.split(b" ")[:2]
        name = number.decode()
        early_ns = int(due_ns) - time.time_ns()
        if early_ns > EARLY_NS:
            self.complaints.append(f"{name} came {early_ns} ns before its time")
        if body in self.cancelled:
            self.complaints.append(f"{name} was cancelled, and comes")
        if self.came.setdefault(body, id) != id:
            self.complaints.append(f"{name} is there twice")

    def bodies(self, count: int, due_ns: int) -> list[bytes]:
        """Some that no other message has."""
        size = self.random.choice((20, 60, 900))
        self.made += count
        first = self.made - count
        return [(b"%d %d " % (first + n, due_ns)).ljust(size, b".") for n in range(count)]


@asynccontextmanager
async def connected(broker: BrokerProcess) -> AsyncIterator[Connection]:
    """A connection of the client, until the broker goes."""
    host, _, port = broker.tcp_address.rpartition(":")
    connection = await Connection.open(Address(host, int(port)), Identity())
    try:
        yield connection
    finally:
        connection.abort()
        await connection.wait_lost()


@asynccontextmanager
async def wired(wire: Wire) -> AsyncIterator[Wire]:
    """A plain connection, until the broker goes."""
    try:
        yield wire
    finally:
        wire.close()


async def send(ledger: DelayLedger, broker: BrokerProcess) -> None:
    """Send messages for a second or a minute from now, until the broker goes."""
    async with connected(broker) as connection:
        chance = ledger.random
        while True:
            due_ms = time.time_ns() // 10**6 + chance.choice((1, 30, 200, 200, 900, 4000))
            bodies = ledger.bodies(chance.choice((1, 1, 1, 7)), due_ms * 10**6)
            sent = commands.send("t", bodies, {"deliver_at_ms": due_ms})
            answer = json.loads(await connection.ask(sent))
            assert answer["status"] == "OK"
            for number, body in enumerate(bodies):
                ledger.answered[body] = due_ms * 10**6
                ledger.ids[b"%016x" % (int(answer["id"], 16) + number)] = body


async def cancel(ledger: DelayLedger, broker: BrokerProcess) -> None:
    """Cancel one here and there, until the broker goes."""
    async with connected(broker) as connection:
        while True:
            await asyncio.sleep(0.004)
            if not ledger.ids:
                continue
            id = ledger.random.choice(list(ledger.ids)[-200:])
            body = ledger.ids.pop(id)
            ledger.maybe_cancelled.add(body)
            fields = (await connection.call("delay.cancel", topic="t", id=id.decode())).fields
            ledger.maybe_cancelled.discard(body)
            if fields["cancelled"]:
                if body in ledger.came:
                    ledger.complaints.append(f"{body[:10]!r} came, and then it was cancelled")
                ledger.cancelled.add(body)


async def consume(ledger: DelayLedger, broker: BrokerProcess) -> None:
    """Finish what comes, until the broker goes."""
    async with wired(await Wire.subscribed(broker.tcp_address, "t", "c")) as wire:
        wire.send(b"RDY 100\n")
        while True:
            frame = await wire.answer()
            if frame.type == ERROR:
                raise Refused(frame.data.decode())
            if frame.type == MESSAGE:
                got = message(frame)
                if not got.body.startswith(b"plain"):
                    ledger.delivered(got.id, got.body)
                wire.send(b"FIN %b\n" % got.id)


async def others(broker: BrokerProcess) -> None:
    """Plain messages between them, so that segments come and go."""
    async with wired(await Wire.open(broker.tcp_address)) as wire:
        while True:
            wire.send(mpub("t", [b"plain".ljust(300, b".")] * 20))
            await wire.ok()
            await asyncio.sleep(0.003)


broker = brokers.process(*FLAGS, scope="function")


@pytest.mark.timeout(120)
async def test_kills_with_messages_that_wait(broker: BrokerProcess) -> None:
    await torture(broker, 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_many_kills_with_messages_that_wait(broker: BrokerProcess) -> None:
    await torture(broker, 25)


async def torture(broker: BrokerProcess, lives: int) -> None:
    """Lives and deaths, and at last all that is left."""
    ledger = DelayLedger(random.Random(5))
    await http(broker.http_address, "/topic/create?topic=t", b"")
    await http(broker.http_address, "/channel/create?topic=t&channel=c", b"")
    for life in range(lives):
        work = [
            asyncio.create_task(task)
            for task in (
                send(ledger, broker),
                send(ledger, broker),
                cancel(ledger, broker),
                consume(ledger, broker),
                others(broker),
            )
        ]
        answered, came = len(ledger.answered), len(ledger.came)
        while len(ledger.answered) < answered + ANSWERED or len(ledger.came) == came:
            await asyncio.wait(work, timeout=ledger.random.uniform(*LIFE_S))
            assert not [task for task in work if task.done()]
        broker.kill()
        await until_gone(*work)
        assert main(["log", "verify", str(broker.data_path)]) == 0, f"life {life}"
        broker.start()
        assert ledger.complaints == [], f"life {life}"
    await until_none_waits(broker)
    for got in await drain(broker.tcp_address, broker.http_address, "t", "c"):
        if not got.body.startswith(b"plain"):
            ledger.delivered(got.id, got.body)
    assert ledger.complaints == []
    missing = ledger.answered.keys() - ledger.came.keys() - ledger.cancelled
    assert missing <= ledger.maybe_cancelled
    assert ledger.cancelled
    assert "lost" not in broker.log()


async def until_none_waits(broker: BrokerProcess) -> None:
    """Return when the last is due."""
    while True:
        body = await http(broker.http_address, "/call/delay.list", b'{"topic": "t"}')
        if not json.loads(body)["pending_count"]:
            return
        await asyncio.sleep(0.1)
