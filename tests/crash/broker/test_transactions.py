"""Brokers killed in the middle of transactions, and what plain NSQ consumers see of these."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from tests.crash.wire import drain, http

from martlet.cli.main import main
from martlet.client import Backoff, Outcome, PendingTransaction, Producer, TransactionError
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

TOPICS = ("orders", "mails")
TIGHT = (
    "--journal-interval=10ms",
    "--checkpoint-interval=150ms",
    f"--max-bytes-per-file={1 << 20}",
    "--min-free-bytes=0",
    "--log-level=warn",
    "--transaction-check-after=300ms",
    "--transaction-check-interval=100ms",
    "--transaction-checks=10000",
)


@dataclass
class ProducerDatabase:
    """What producers added to transactions and decided about them."""

    added: dict[str, Counter[tuple[str, bytes]]] = field(default_factory=dict)
    decided: dict[str, Outcome] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)
    """Those that are committed in one request, which the broker has done, or not."""
    numbers: count[int] = field(default_factory=count)

    async def grown(self, count: int) -> None:
        """Wait until `count` more transactions were begun."""
        target = len(self.added) + count
        async with asyncio.timeout(60):
            while len(self.added) < target:  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def check(self, pending: PendingTransaction) -> Outcome:
        return self.decided.get(pending.id, Outcome.UNKNOWN)


async def produce(database: ProducerDatabase, address: str, chance: random.Random) -> None:
    """Transactions, one after the other; some are left without a word."""
    async with Producer(
        address, group="g", backoff=Backoff(first_s=0.01, max_s=0.1), timeout_s=60
    ) as producer:
        while True:
            transaction = producer.transaction()
            added = database.added[transaction.id] = Counter()
            if chance.random() < 0.3:
                topic = chance.choice(TOPICS)
                bodies = [b"%08d" % next(database.numbers) for _ in range(chance.randint(1, 3))]
                added.update((topic, body) for body in bodies)
                transaction.add(topic, bodies)
                database.unanswered.add(transaction.id)
                await transaction.commit()
                database.unanswered.remove(transaction.id)
                database.decided[transaction.id] = Outcome.COMMIT
                continue
            try:
                for _ in range(chance.randint(1, 5)):
                    topic = chance.choice(TOPICS)
                    bodies = [b"%08d" % next(database.numbers) for _ in range(chance.randint(1, 3))]
                    bodies[0] += b"." * chance.choice((0, 50, 5000))
                    await transaction.publish_many(topic, bodies)
                    added.update((topic, body) for body in bodies)
                if chance.random() < 0.3:
                    await transaction.prepare()
            except TransactionError:
                # It was asked about before it was complete, and is given up.
                database.decided[transaction.id] = Outcome.ROLLBACK
                continue
            outcome = chance.choice((Outcome.COMMIT, Outcome.COMMIT, Outcome.ROLLBACK))
            # This is what a database's own commit is to an application.
            database.decided[transaction.id] = outcome
            if chance.random() < 0.2:
                continue
            if outcome is Outcome.COMMIT:
                await transaction.commit()
            else:
                await transaction.rollback()


async def answer_checks(database: ProducerDatabase, address: str) -> None:
    """A member of the group that is there all the time."""
    backoff = Backoff(first_s=0.01, max_s=0.1)
    async with Producer(address, group="g", check=database.check, backoff=backoff, timeout_s=60):
        await asyncio.Event().wait()


async def open_count(broker: BrokerProcess) -> int:
    """How many transactions have not ended."""
    body = await http(broker.http_address, "/call/transaction.list", b"{}")
    return int(json.loads(body)["count"])


async def settled(broker: BrokerProcess) -> None:
    """Wait until nothing is undecided any more."""
    async with asyncio.timeout(60):
        while await open_count(broker):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def torture(folder: Path, kills: int, seed: int, *arguments: str) -> None:
    database, chance = ProducerDatabase(), random.Random(seed)
    with BrokerProcess(folder, *TIGHT, *arguments) as broker:
        address = broker.tcp_address
        checker = asyncio.create_task(answer_checks(database, address))
        work = [
            asyncio.create_task(produce(database, address, random.Random(seed + n)))
            for n in range(4)
        ]
        for _ in range(kills):
            await database.grown(chance.randint(5, 30))
            broker.kill()
            assert await asyncio.to_thread(main, ["log", "verify", str(folder)]) == 0
            await asyncio.to_thread(broker.start)
        await database.grown(5)
        for task in work:
            task.cancel()
        ended = await asyncio.gather(*work, return_exceptions=True)
        assert {type(end) for end in ended} == {asyncio.CancelledError}
        # A producer that died before it had decided anything has done nothing.
        for id in database.added:
            database.decided.setdefault(id, Outcome.ROLLBACK)
        await settled(broker)
        checker.cancel()
        await asyncio.gather(checker, return_exceptions=True)
        seen: Counter[tuple[str, bytes]] = Counter()
        for topic in TOPICS:
            got = await drain(broker.tcp_address, broker.http_address, topic, "plain")
            seen.update((topic, message.body) for message in got)
        for id in database.unanswered:
            if database.added[id] <= seen:
                database.decided[id] = Outcome.COMMIT
        committed: Counter[tuple[str, bytes]] = Counter()
        for id, outcome in database.decided.items():
            if outcome is Outcome.COMMIT:
                committed.update(database.added[id])
        assert seen == committed
        assert len(committed) > 5 * kills
        assert "lost" not in broker.log()


async def test_transactions_are_whole_though_their_broker_is_killed(tmp_path: Path) -> None:
    await torture(tmp_path, 2, 1)


async def test_a_large_commit_goes_on_though_its_broker_is_killed(tmp_path: Path) -> None:
    """In steps of 16 MiB, which a kill comes between, or before, or after."""
    chance = random.Random(3)
    blocks, body_bytes = 24, 1 << 19
    names: Counter[bytes] = Counter()
    with BrokerProcess(tmp_path, *TIGHT) as broker:
        async with Producer(
            broker.tcp_address, backoff=Backoff(first_s=0.01, max_s=0.1), timeout_s=60
        ) as producer:
            for kill in range(3):
                transaction = producer.transaction()
                for number in range(blocks):
                    pair = [b"%d.%d.%d " % (kill, number, half) for half in (0, 1)]
                    bodies = [name.ljust(body_bytes, b"x") for name in pair]
                    await transaction.publish_many("orders", bodies)
                    names.update(pair)
                committing = asyncio.create_task(transaction.commit())
                await asyncio.sleep(chance.random() / 10)
                broker.kill()
                await asyncio.to_thread(broker.start)
                await committing
        got = await drain(broker.tcp_address, broker.http_address, "orders", "plain")
        assert names == Counter(message.body.split()[0] + b" " for message in got)
        assert "lost" not in broker.log()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_many_kills(tmp_path: Path, flush: str) -> None:
    await torture(tmp_path, 40, 7, f"--flush={flush}")
