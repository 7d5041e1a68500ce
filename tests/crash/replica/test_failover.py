"""Clients when primaries are killed: each send is stored once, keys stay in order, and a member of
a group goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.crash.replica_cluster import LIMIT_S, Cluster, Clusters
from tests.interop.lookup_process import LookupProcess

from martlet.addresses import Address
from martlet.client import (
    BroadcastConsumer,
    Consumer,
    Identity,
    Message,
    Producer,
    PublishSettings,
    PullConsumer,
    SendResult,
    sync,
)
from martlet.client.group.base import PullConsumerBase
from martlet.client.transport.connection import Connection

pytestmark = pytest.mark.crash

TOPIC = "t"
KEYS = 8
PATIENT = PublishSettings(send_timeout_s=60, send_retries=None)
Send = Callable[[bytes, str], Awaitable[SendResult]]


class Load:
    """Sends messages of several keys, one or a few of each at once."""

    def __init__(self, send: Send) -> None:
        self.results: dict[bytes, SendResult] = {}
        self.sent: list[list[bytes]] = [[] for _ in range(KEYS)]
        self._send = send
        self._is_over = False
        self._tasks = [asyncio.create_task(self._run(key)) for key in range(KEYS)]
        self._wanted = 0
        self._is_there = asyncio.Event()

    async def _run(self, key: int) -> None:
        sent = self.sent[key]
        while not self._is_over:
            bodies = [b"%d %d" % (key, len(sent) + number) for number in range(1 + len(sent) % 3)]
            sent += bodies
            answers = await asyncio.gather(*(self._send(body, f"k{key}") for body in bodies))
            self.results.update(zip(bodies, answers, strict=True))
            if len(self.results) >= self._wanted:
                self._is_there.set()

    async def more(self, count: int) -> None:
        """Wait until so many more are answered. Raises what sending raised."""
        self._wanted = len(self.results) + count
        self._is_there.clear()
        async with asyncio.timeout(LIMIT_S):
            there = asyncio.create_task(self._is_there.wait())
            done, _ = await asyncio.wait([there, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def stuck(self) -> None:
        """Wait until no more answers come, of a broker that was stopped."""
        answered = -1
        while answered != len(self.results):
            answered = len(self.results)
            await asyncio.sleep(0.02)  # What does not come has no event.

    async def end(self) -> None:
        """Wait until all is answered, and mark the end."""
        self._is_over = True
        await asyncio.gather(*self._tasks)
        await self._send(b"end", "")


@asynccontextmanager
async def loading(addresses: list[str]) -> AsyncIterator[tuple[Producer, Load]]:
    """Have a producer of these brokers send all the while, which outlasts a failover."""
    async with Producer(addresses, publishing=PATIENT) as producer:
        yield producer, Load(sends_of(producer))


def sends_of(producer: Producer) -> Send:
    return lambda body, key: producer.send(TOPIC, body, order_key=key)


async def fail_over(cluster: Cluster, load: Load) -> None:
    """Kill the primary three times, each time with sends that it has not answered."""
    for _ in range(3):
        await load.more(300)
        victim = await cluster.primary()
        cluster.hang(victim)
        await load.stuck()
        cluster.kill(victim)
        await load.more(300)
        cluster.start_one(victim)
        await cluster.in_sync(3)
    await load.end()


async def check(load: Load, consumer: Consumer) -> None:
    """Compare all that the topic has with what was sent."""
    replies: dict[bytes, list[bytes]] = {}
    async with consumer, asyncio.timeout(LIMIT_S):
        async for message in consumer:
            if message.body == b"end":
                message.finish()
                break
            ids = replies.setdefault(message.body, [])
            if message.id not in ids:
                ids.append(message.id)
            message.finish()
    assert {body: [result.id] for body, result in load.results.items()} == replies
    for key, sent in enumerate(load.sent):
        assert [body for body in replies if body.startswith(b"%d " % key)] == sent


async def test_each_send_is_stored_once_when_primaries_are_killed(cluster: Cluster) -> None:
    async with loading(cluster.brokers) as (producer, load):
        await fail_over(cluster, load)
        assert producer.stats.retried
        assert producer.stats.connected == 1
    await check(load, Consumer(TOPIC, "c", cluster.brokers[:1], max_in_flight=1000))


async def test_sends_go_on_when_a_primary_is_paused_and_keeps_its_connections(
    cluster: Cluster,
) -> None:
    async with loading(cluster.brokers) as (_, load):
        await load.more(300)
        paused = await cluster.primary()
        cluster.hang(paused)
        await load.more(300)
        assert await cluster.primary() != paused
        cluster.resume(paused)
        await load.more(300)
        await cluster.in_sync(3)
        await load.end()
    await check(load, Consumer(TOPIC, "c", cluster.brokers[:1], max_in_flight=1000))


async def test_each_send_is_stored_once_for_producers_that_find_the_primary_by_lookup(
    clusters: Clusters,
) -> None:
    with LookupProcess() as lookup:
        cluster = await clusters.start(arguments=[f"--lookupd-tcp-address={lookup.tcp_address}"])
        async with Producer(lookup=lookup.http_address, publishing=PATIENT) as producer:
            load = Load(sends_of(producer))
            await fail_over(cluster, load)
            assert producer.stats.retried
        await check(load, Consumer(TOPIC, "c", lookup=lookup.http_address, max_in_flight=1000))
        await cluster.stop()


async def test_each_send_of_the_blocking_producer_is_stored_once(cluster: Cluster) -> None:
    with sync.Producer(cluster.brokers, publishing=PATIENT) as producer:

        def send(body: bytes, key: str) -> Awaitable[SendResult]:
            return asyncio.wrap_future(producer.send_async(TOPIC, body, order_key=key))

        load = Load(send)
        await fail_over(cluster, load)
        assert producer.stats.retried
    await check(load, Consumer(TOPIC, "c", cluster.brokers[:1], max_in_flight=1000))


async def test_requests_get_their_replies_when_primaries_are_killed(cluster: Cluster) -> None:
    handled: list[bytes] = []

    async def handle(message: Message) -> None:
        handled.append(message.body)
        await asyncio.sleep(0.05)  # So that some are begun and have no reply when it happens.
        message.reply(b"re: " + message.body)

    async def ask(body: bytes) -> None:
        reply = await producer.request(TOPIC, body, timeout_s=LIMIT_S)
        assert reply.body == b"re: " + body

    async with (
        Producer(cluster.brokers, publishing=PATIENT) as producer,
        Consumer(TOPIC, "workers", cluster.brokers, max_in_flight=100) as consumer,
    ):
        working = asyncio.create_task(consumer.run(handle, concurrency=20))
        for number in range(2):
            requests = [asyncio.create_task(ask(b"%d %d" % (number, n))) for n in range(100)]
            begun = len(handled) + 30
            while len(handled) < begun:  # noqa: ASYNC110, many things change it
                await asyncio.sleep(0.005)
            victim = await cluster.primary()
            cluster.kill(victim)
            await asyncio.gather(*requests)
            cluster.start_one(victim)
            await cluster.in_sync(3)
        assert len(set(handled)) == 200
        assert producer.stats.waiting_requests == 0
        consumer.stop()
        await working


async def received_by(consumer: PullConsumerBase, bodies: list[bytes]) -> None:
    """Add what comes until the end of the load."""
    async for message in consumer:
        bodies.append(message.body)
        if message.body == b"end":
            message.finish()
            return


async def member_count(address: str) -> int:
    """Ask the broker how many members the group has."""
    connection = await Connection.open(Address.parse(address), Identity())
    try:
        described = await connection.call("group.describe", topic=TOPIC, group="g")
        return len(described.fields["members"])
    finally:
        connection.abort()


async def test_a_member_given_all_replicas_joins_once_and_goes_on_at_the_next_primary(
    cluster: Cluster,
) -> None:
    """It joined once for each address, as several members."""
    bodies: list[bytes] = []
    member = PullConsumer(TOPIC, "g", cluster.brokers, start="first", commit_every_s=0.05)
    async with loading(cluster.brokers) as (_, load), member:
        receiving = asyncio.create_task(received_by(member, bodies))
        for _ in range(2):
            await load.more(300)
            owed = set(load.results)
            async with asyncio.timeout(LIMIT_S):
                while not owed <= set(bodies):  # noqa: ASYNC110, a task appends to it
                    await asyncio.sleep(0.05)
            assert member.connected_count == 1
            assert len(member.assignment) == 1
            victim = await cluster.primary()
            assert await member_count(cluster.tcp[victim]) == 1
            cluster.kill(victim)
            await load.more(300)
            cluster.start_one(victim)
            await cluster.in_sync(3)
        await load.end()
        async with asyncio.timeout(LIMIT_S):
            await receiving
        await member.commit()
    assert set(bodies) == {*load.results, b"end"}
    async with PullConsumer(TOPIC, "g", cluster.brokers[::-1]) as other:
        assert other.committed(0) == len(load.results) + 1


@pytest.mark.parametrize("is_broadcast", [False, True])
async def test_a_member_leaves_a_primary_that_hangs(
    tmp_path: Path, cluster: Cluster, is_broadcast: bool
) -> None:
    """Its connection stays open, and another one tells that there is a newer primary."""
    hung = await cluster.primary()
    # The first one is tried first, so that the consumer is connected to the primary itself.
    addresses = [cluster.tcp[hung], *(at for name, at in cluster.tcp.items() if name != hung)]
    bodies: list[bytes] = []
    member: PullConsumerBase
    if is_broadcast:
        member = BroadcastConsumer(TOPIC, addresses, offsets=tmp_path / "offsets", start="first")
    else:
        member = PullConsumer(TOPIC, "g", addresses, start="first", lease_s=2)
    async with loading(addresses) as (_, load), member:
        receiving = asyncio.create_task(received_by(member, bodies))
        await load.more(300)
        cluster.hang(hung)
        await load.more(300)
        await load.end()
        async with asyncio.timeout(LIMIT_S):
            await receiving
        cluster.resume(hung)
    assert set(bodies) == {*load.results, b"end"}
    if is_broadcast:
        await continues_at_another_replica(tmp_path / "offsets", addresses)
    await cluster.in_sync(3)


async def continues_at_another_replica(offsets: Path, addresses: list[str]) -> None:
    """Check that the file of offsets counts for all replicas."""
    async with Producer(addresses) as producer:
        await producer.send(TOPIC, b"more")
    for address in addresses[1:]:
        async with BroadcastConsumer(
            TOPIC, address, offsets=offsets, start="first", auto_commit=False
        ) as again:
            async for message in again:
                assert message.body == b"more"
                break
