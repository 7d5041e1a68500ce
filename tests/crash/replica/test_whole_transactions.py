"""Transactions that are one request each, while primaries are killed and hand over: each one that
was answered is there once and whole, and each one that was not, once and whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.crash.replica_cluster import LIMIT_S, Cluster, Clusters
from tests.crash.wire import drain

from martlet.client import Backoff, Producer

pytestmark = pytest.mark.crash

TOPICS = ("orders", "mails")
SIZE = 3
"""The number of messages of each transaction."""
SOON = Backoff(first_s=0.01, max_s=0.1)


class WholeTransactions:
    """Commits one transaction after the other.

    Args:
        addresses: those of all replicas.
        name: begins the messages.
        timeout_s: the time limit of one commit, after which it is unclear.
        cancel_s: the time after which a commit is cancelled, and called again.
    """

    def __init__(self, addresses: list[str], name: str, timeout_s: float, cancel_s: float) -> None:
        self.committed: list[tuple[str, bytes]] = []
        """The topic of each, and what its messages begin with."""
        self.unclear_count = 0
        self._addresses = addresses
        self._name = name
        self._timeout_s = timeout_s
        self._cancel_s = cancel_s
        self._is_over = False
        self._wanted = 0
        self._is_there = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with Producer(self._addresses, backoff=SOON, timeout_s=self._timeout_s) as producer:
            while not self._is_over:
                number = len(self.committed)
                topic = TOPICS[number % len(TOPICS)]
                prefix = b"%s-%d" % (self._name.encode(), number)
                transaction = producer.transaction()
                transaction.add(topic, [b"%s/%d" % (prefix, n) for n in range(SIZE)], tag="red")
                while True:
                    try:
                        async with asyncio.timeout(self._cancel_s):
                            await transaction.commit()
                        break
                    except TimeoutError:  # Or TransactionUnclear, which is one.
                        self.unclear_count += 1
                self.committed.append((topic, prefix))
                if len(self.committed) >= self._wanted:
                    self._is_there.set()

    async def more(self, count: int) -> None:
        """Wait until so many more are committed. Raises what committing raised."""
        self._wanted = len(self.committed) + count
        self._is_there.clear()
        there = asyncio.create_task(self._is_there.wait())
        async with asyncio.timeout(LIMIT_S):
            await asyncio.wait([there, self._task], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def end(self) -> None:
        """Wait until the last one is committed."""
        self._is_over = True
        async with asyncio.timeout(LIMIT_S):
            await self._task


async def check(cluster: Cluster, works: list[WholeTransactions]) -> None:
    """Compare all that the topics have with what was committed."""
    ids: dict[tuple[str, bytes], set[bytes]] = {}
    (await cluster.connect()).close()
    primary = await cluster.primary()
    for topic in TOPICS:
        got = await drain(cluster.tcp[primary], cluster.http[primary], topic, "c", rdy=2500)
        for message in got:
            ids.setdefault((topic, message.body), set()).add(message.id)
    counts = Counter({body: len(of_it) for body, of_it in ids.items()})
    committed = [body for work in works for body in work.committed]
    expected = Counter(
        (topic, b"%s/%d" % (prefix, n)) for topic, prefix in committed for n in range(SIZE)
    )
    assert counts == expected


async def kill(cluster: Cluster, works: list[WholeTransactions], *, hangs: bool = False) -> None:
    """Kill the primary, which others miss, and start it again."""
    victim = await cluster.primary()
    if hangs:  # Its clients wait for answers, and some have given up.
        cluster.hang(victim)
        await cluster.primary(but=victim)
    cluster.kill(victim)
    await cluster.primary(but=victim)
    for work in works:
        await work.more(5)
    cluster.start_one(victim)


async def kill_one_that_hangs(cluster: Cluster, works: list[WholeTransactions]) -> None:
    await kill(cluster, works, hangs=True)


async def hand_over(cluster: Cluster, works: list[WholeTransactions]) -> None:
    """Let another one be primary."""
    await cluster.hand_over()


Change = Callable[[Cluster, list[WholeTransactions]], Coroutine[Any, Any, None]]


@pytest.mark.parametrize(
    ("change", "flush"),
    [
        (kill, "async"),
        (hand_over, "async"),
        pytest.param(kill, "sync", marks=pytest.mark.slow),
        pytest.param(kill_one_that_hangs, "async", marks=pytest.mark.slow),
    ],
)
async def test_each_transaction_of_one_request_is_there_once_and_whole(
    clusters: Clusters, change: Change, flush: str
) -> None:
    cluster = await clusters.start(flush=flush)
    addresses = list(cluster.tcp.values())
    works = [
        WholeTransactions(addresses, "patient", LIMIT_S, LIMIT_S),
        WholeTransactions(addresses, "unclear", 1, LIMIT_S),
        WholeTransactions(addresses, "cancelled", LIMIT_S, 0.05),
    ]
    for _ in range(3):
        for work in works:
            await work.more(20)
        await change(cluster, works)
        await cluster.in_sync(3)
    for work in works:
        await work.more(20)
        await work.end()
    assert any(work.unclear_count for work in works)
    await check(cluster, works)
    await cluster.stop()
