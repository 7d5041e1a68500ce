"""A producer whose broker goes on at another address."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.polling import until
from tests.unit.client.scripted_broker import Command, Script, ScriptedBroker, as_any_broker, at

from martlet.addresses import Address
from martlet.client import Backoff, Health, Producer, PublishTimeout
from martlet.client.producer import accumulator
from martlet.client.transactions.session import PinnedSession
from martlet.client.transport import discovery
from martlet.client.transport.connection import Connection
from martlet.client.transport.discovery import Discovery

FAST = Backoff(first_s=0.01, max_s=0.05)
SLOW = Backoff(first_s=30, max_s=30, jitter=0)


class Log:
    """The log of one broker, whose replicas remember numbered sends."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.numbers: dict[tuple[str, int], int] = {}
        self.seen: list[tuple[str, int]] = []

    def store(self, command: Command) -> bytes:
        """Store a SEND once, and return the answer."""
        data = command.bodies[0]
        size = int.from_bytes(data[:4], "big")
        options = json.loads(data[4 : 4 + size])
        number = options["producer"], options["sequence"]
        self.seen.append(number)
        is_duplicate = number in self.numbers
        if not is_duplicate:
            self.numbers[number] = len(self.bodies)
            self.bodies.append(data)
        answer = {"status": "OK", "queue": 0, "offset": self.numbers[number], "id": "0" * 16}
        return json.dumps(answer | {"duplicate": is_duplicate}).encode()


class Replica:
    """A script that stores what is sent, and answers unless the test wants silence."""

    def __init__(self, log: Log, *, is_silent: bool = False) -> None:
        self.log = log
        self.is_silent = is_silent
        self.sends = 0

    async def __call__(self, command: Command) -> bool:
        if command.name != "SEND":
            return False
        self.sends += 1
        answer = self.log.store(command)
        if not self.is_silent:
            command.peer.answer(answer)
        return True


def replica(script: Script, broker: str = "x", epoch: int = 1) -> ScriptedBroker:
    fields = {"broker": broker, "epoch": epoch, "replicas": True} if broker else {}
    return ScriptedBroker(script, martlet={"version": 1} | fields)


@asynccontextmanager
async def away(broker: ScriptedBroker) -> AsyncIterator[ScriptedBroker]:
    """A broker that has a port, and does not listen there yet."""
    async with broker:
        await broker.go_away()
        yield broker


def sends(replicas: list[Replica]) -> list[int]:
    return [replica.sends for replica in replicas]


async def all_up(producer: Producer, count: int) -> None:
    """Wait until the producer has connected to so many addresses."""
    links = producer._pool.links
    await until(lambda: sum(link.connection is not None for link in links) == count)


@asynccontextmanager
async def at_two_addresses(
    first: Script, second: Script, epoch: int = 1, **settings: Any
) -> AsyncIterator[tuple[Producer, ScriptedBroker, ScriptedBroker]]:
    """A producer that is connected to the first address of its broker; the second is away."""
    settings = {"backoff": FAST, "send_timeout_s": 20.0, **settings}
    async with (
        asyncio.timeout(50),
        away(replica(second, epoch=epoch)) as two,
        replica(first) as one,
        Producer([one.address, two.address], **settings) as producer,
    ):
        await all_up(producer, 1)
        yield producer, one, two


async def test_addresses_of_one_broker_share_its_numbers() -> None:
    log = Log()
    scripts = [Replica(log), Replica(log)]
    async with (
        asyncio.timeout(50),
        replica(scripts[0]) as one,
        replica(scripts[1]) as two,
        Producer([one.address, two.address]) as producer,
    ):
        await all_up(producer, 2)
        for number in range(10):
            await producer.send("t", b"%d" % number)
        assert sorted(sends(scripts)) == [0, 10], "the other connection is spare"
        assert [number for _, number in log.seen] == list(range(1, 11))
        assert len({name for name, _ in log.seen}) == 1
        assert len(producer.stats.brokers) == producer.stats.connected == 1


@pytest.mark.parametrize("is_spare", [True, False])
async def test_a_send_is_repeated_under_its_number_at_another_address(is_spare: bool) -> None:
    log = Log()
    first, second = Replica(log, is_silent=True), Replica(log)
    async with at_two_addresses(first, second) as (producer, one, two):
        if is_spare:
            await two.listen()
            await all_up(producer, 2)
        sent = [producer.send_async("t", b"0", order_key="k")]
        await one.until(lambda: first.sends)
        sent += [producer.send_async("t", b"%d" % number, order_key="k") for number in (1, 2)]
        await one.go_away()
        if not is_spare:
            await two.listen()
        results = await asyncio.gather(*sent)
        assert [result.is_duplicate for result in results] == [True, False, False]
        assert {result.broker for result in results} == {two.address}
        assert log.seen[0] == log.seen[1]
        assert len({name for name, _ in log.seen}) == 1


async def test_the_newest_run_of_a_broker_is_sent_to() -> None:
    """A primary that is paused keeps its connections, and answers nothing."""
    log = Log()
    paused, new, old = Replica(log, is_silent=True), Replica(log), Replica(log)
    async with (
        asyncio.timeout(50),
        away(replica(new, epoch=5)) as two,
        away(replica(old, epoch=3)) as three,
        replica(paused, epoch=4) as one,
        Producer(
            [one.address, two.address, three.address], backoff=FAST, send_timeout_s=20
        ) as producer,
    ):
        send = producer.send_async("t", b"x")
        await one.until(lambda: paused.sends)
        await three.listen()
        await all_up(producer, 2)
        assert not send.done()
        await two.listen()
        assert (await send).broker == two.address
        assert sends([paused, new, old]) == [1, 1, 0]
        assert "the broker is at" in str(producer._pool.links[0].last_error)


async def test_a_send_that_a_leaving_primary_refused_goes_to_the_next_one_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its delay is for a broker that may store it later, and not for another run of it."""
    monkeypatch.setattr(accumulator, "_BACKOFF", SLOW)
    log = Log()
    refusal = b'{"status": "REFUSED", "text": "replica b becomes primary"}'
    leave = at("SEND", act=lambda peer: peer.answer(refusal))
    async with at_two_addresses(leave, Replica(log), 2) as (producer, one, two):
        sent = producer.send_async("t", b"0")
        await until(lambda: producer.stats.retried > 0)
        await two.listen()
        await one.go_away()
        assert (await sent).broker == two.address


async def test_a_publish_that_a_leaving_primary_refused_is_repeated_at_the_next_one() -> None:
    """It raised PublishRefused, although the next primary was there a moment later."""
    refusal = b"E_PUB_FAILED PUB failed replica b becomes primary: publish again"
    leave = at("PUB", "MPUB", act=lambda peer: peer.fail(refusal))
    async with at_two_addresses(leave, as_any_broker, 2, retries=0) as (producer, one, two):
        sent = [producer.submit("t", b"0"), producer.submit("t", b"1", order_key="k")]
        await one.until(lambda: len(one.named("PUB", "MPUB")) > 2)
        assert not any(result.done() for result in sent)
        await two.listen()
        await one.go_away()
        await asyncio.gather(*sent)
        assert sorted(two.bodies()) == [b"0", b"1"]


async def test_a_failover_does_not_wait_for_the_longest_delay() -> None:
    log = Log()
    backoff = Backoff(first_s=0.01, max_s=1000, jitter=0)
    replicas = Replica(log), Replica(log)
    async with at_two_addresses(*replicas, backoff=backoff) as (producer, one, two):
        dialer = producer._pool.links[1]._dialer
        await until(lambda: dialer._failures > 0)
        dialer._failures = 100
        await producer.send("t", b"0")
        await until(lambda: dialer._failures > 100)
        await two.listen()
        await one.go_away()
        assert (await producer.send("t", b"1")).broker == two.address


async def test_a_broker_that_has_another_address_in_lookup_keeps_its_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    first, second = Replica(log, is_silent=True), Replica(log)
    lookups: asyncio.Queue[list[str]] = asyncio.Queue()

    async def watch(self: Discovery) -> None:
        while True:
            self._on_found([Address.parse(item) for item in await lookups.get()], True)
            lookups.task_done()

    monkeypatch.setattr(Discovery, "watch", watch)
    async with asyncio.timeout(50), replica(first) as one, replica(second) as two:
        await lookups.put([one.address])
        async with Producer(lookup="127.0.0.1:1", backoff=FAST, send_timeout_s=20) as producer:
            send = producer.send_async("t", b"x")
            await one.until(lambda: first.sends)
            await one.go_away()
            await until(lambda: producer.stats.connected == 0)
            await lookups.put([])
            await lookups.join()
            assert not producer._pool.links
            assert not send.done()
            await lookups.put([two.address])
            assert (await send).is_duplicate
            assert [broker.address for broker in producer.stats.brokers] == [two.address]
            assert len(producer._accumulator.brokers) == 1


async def test_another_broker_at_the_address_gets_none_of_the_numbered_sends() -> None:
    before, after = Replica(Log(), is_silent=True), Replica(Log())
    async with (
        asyncio.timeout(50),
        replica(before, "x") as broker,
        Producer(broker.address, backoff=FAST, send_timeout_s=0.5) as producer,
    ):
        send = producer.send_async("t", b"x")
        await broker.until(lambda: before.sends)
        await broker.go_away()
        broker._features["martlet"] = {"version": 1, "broker": "y", "epoch": 1, "replicas": True}
        broker.script = after
        await broker.listen()
        with pytest.raises(PublishTimeout):
            await send
        assert (await producer.send("t", b"y")).offset == 0
        assert len(after.log.bodies) == 1
        producer._pool._check_all()
        assert len(producer._accumulator.brokers) == 1


async def test_brokers_that_tell_no_id_are_known_by_their_addresses() -> None:
    log = Log()
    scripts = [Replica(log), Replica(log)]
    async with (
        asyncio.timeout(50),
        replica(scripts[0], "") as one,
        replica(scripts[1], "") as two,
        Producer([one.address, two.address]) as producer,
    ):
        await all_up(producer, 2)
        for number in range(10):
            await producer.send("t", b"%d" % number)
        assert sends(scripts) == [5, 5]
        assert len({name for name, _ in log.seen}) == 2
        assert [broker.health for broker in producer.stats.brokers] == 2 * [Health.CONNECTED]


async def test_the_broker_of_a_key_is_the_same_at_all_its_addresses() -> None:
    logs = [Log(), Log()]
    scripts = [Replica(logs[0]), Replica(logs[0]), Replica(logs[1])]
    async with (
        asyncio.timeout(50),
        replica(scripts[0], "x") as one,
        away(replica(scripts[1], "x")) as two,
        replica(scripts[2], "y") as other,
        Producer([one.address, two.address, other.address], backoff=FAST) as producer,
    ):
        await all_up(producer, 2)
        keys = [f"k{number}" for number in range(20)]
        before = [(await producer.send("t", b"0", order_key=key)).broker for key in keys]
        await one.go_away()
        await two.listen()
        await until(lambda: producer.stats.connected == 2)
        after = [(await producer.send("t", b"1", order_key=key)).broker for key in keys]
        assert {one.address, other.address} == set(before)
        assert after == [two.address if item == one.address else item for item in before]


async def test_lookup_daemons_are_polled_again_soon_after_a_lost_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "MIN_PAUSE_S", 0.01)
    polls = 0

    async def ask(self: Discovery, _url: str) -> discovery._Answer:
        nonlocal polls
        polls += 1
        return discovery._Answer([], True)

    monkeypatch.setattr(Discovery, "_ask", ask)
    search = Discovery(None, ["127.0.0.1:1"], 60.0, lambda _found, _is_all: None)
    watch = asyncio.create_task(search.watch())
    await until(lambda: polls == 1)
    await asyncio.sleep(0.1)
    assert polls == 1
    search.poll_now()
    await until(lambda: polls >= 4)
    watch.cancel()


async def test_a_transaction_goes_on_at_once_where_a_spare_connection_becomes_active() -> None:
    scripts = [Replica(Log()), Replica(Log())]

    async def ask(connection: Connection) -> str:
        if str(connection.address) == one.address:
            await connection.ask(b"SEND t\n\x00\x00\x00\x06\x00\x00\x00\x02{}")
        return str(connection.address)

    async with at_two_addresses(scripts[0], scripts[1], backoff=SLOW) as (producer, one, two):
        await two.listen()
        producer._pool.links[1].hasten()
        await all_up(producer, 2)
        session = PinnedSession(producer._pool, 40, "")
        asking = asyncio.create_task(session._until_answered("tx", ask))
        await asyncio.sleep(0)
        await one.go_away()
        assert await asking == two.address
