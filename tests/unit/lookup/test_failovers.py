"""Lookups wait while a broker with replicas has no primary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession
from tests.admin_page import lookup_daemon
from tests.polling import until

from martlet.lookup import failovers
from martlet.lookup.daemon import Lookup
from martlet.lookup.failovers import Failovers

LONG_S = 1000.0
"""How long lookups wait where a test shows that they do not."""
QUICK_S = 50.0


class World:
    """What waits for the primaries of brokers, and its clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.failovers = Failovers(lambda: self.now_s)
        self.waiting: list[asyncio.Task[None]] = []

    async def is_held(self, topic: str) -> bool:
        """Whether a lookup that begins now has to wait."""
        task = asyncio.create_task(self.failovers.returned(topic))
        self.waiting.append(task)
        await asyncio.sleep(0)
        return not task.done()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    for task in made.waiting:
        task.cancel()
    await asyncio.gather(*made.waiting, return_exceptions=True)


async def test_only_topics_of_lost_brokers_are_waited_for(world: World) -> None:
    assert not await world.is_held("t")
    world.failovers.lost("one", ["t", "u"])
    assert await world.is_held("t")
    assert not await world.is_held("other")
    world.failovers.registered("two", "t")
    assert await world.is_held("t")
    world.failovers.registered("one", "t")
    assert not await world.is_held("t")
    assert await world.is_held("u")


async def test_all_that_wait_go_on_when_the_topic_is_registered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failovers, "HOLD_S", LONG_S)
    world.failovers.lost("one", ["t"])
    world.failovers.lost("two", ["t"])
    for _ in range(3):
        assert await world.is_held("t")
    world.failovers.registered("one", "t")
    await asyncio.sleep(0)
    assert not any(task.done() for task in world.waiting), "the other broker has not come back"
    world.failovers.registered("two", "t")
    async with asyncio.timeout(QUICK_S):
        await asyncio.gather(*world.waiting)


async def test_a_wait_ends_some_time_after_the_loss(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failovers, "HOLD_S", 0.05)
    world.failovers.lost("one", ["t"])
    async with asyncio.timeout(QUICK_S):
        await world.failovers.returned("t")
    world.now_s += 0.05
    assert not await world.is_held("t")


async def test_a_broker_that_is_lost_again_is_waited_for_anew(world: World) -> None:
    world.failovers.lost("one", ["t", "u"])
    world.now_s += 1
    world.failovers.registered("one", "t")
    world.failovers.lost("one", ["t"])
    world.now_s += 1
    assert await world.is_held("t")
    assert await world.is_held("u")


async def test_what_is_remembered_and_what_waits_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failovers, "MAX_LOST", 2)
    monkeypatch.setattr(failovers, "MAX_HELD", 2)
    for broker in ("one", "two", "three"):
        world.failovers.lost(broker, [broker])
    assert not await world.is_held("one")
    assert await world.is_held("two")
    assert await world.is_held("three")
    assert not await world.is_held("three")
    world.failovers.registered("two", "two")
    await asyncio.gather(world.waiting[1])
    assert await world.is_held("three")


class Registrar:
    """A broker that registers at a lookup daemon."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, command: bytes, body: bytes = b"") -> bytes:
        """Send a command and return the answer."""
        size = len(body).to_bytes(4) if body else b""
        self.writer.write(command + b"\n" + size + body)
        return await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4)))


class Daemon:
    """A lookup daemon, and brokers."""

    def __init__(self, lookup: Lookup, http: ClientSession) -> None:
        self.lookup = lookup
        self._http = http
        self.registrars: list[Registrar] = []

    async def registrar(self, tcp_port: int, martlet: object, *topics: str) -> Registrar:
        """A broker that has registered these topics."""
        host, _, port = self.lookup.tcp_address.rpartition(":")
        made = Registrar(*await asyncio.open_connection(host, int(port)))
        self.registrars.append(made)
        fields = {"broadcast_address": "h", "tcp_port": tcp_port, "http_port": 1, "version": "1"}
        answer = await made.ask(b"  V1IDENTIFY", json.dumps(fields | {"martlet": martlet}).encode())
        assert answer.startswith(b"{"), answer
        for topic in topics:
            assert await made.ask(b"REGISTER " + topic.encode()) == b"OK"
        return made

    async def ports(self, topic: str) -> list[int]:
        """Where a topic is said to be."""
        url = f"http://{self.lookup.http_address}/lookup"
        async with self._http.get(url, params={"topic": topic}) as response:
            answer: dict[str, Any] = await response.json(content_type=None)
        return [producer["tcp_port"] for producer in answer["producers"]]

    async def end(self, registrar: Registrar) -> None:
        """Close a broker's connection, and wait until the daemon knows."""
        count = len(self.lookup.registry.peers)
        registrar.writer.close()
        await until(lambda: len(self.lookup.registry.peers) < count)


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    async with lookup_daemon() as lookup, ClientSession() as http:
        made = Daemon(lookup, http)
        yield made
        for registrar in made.registrars:
            registrar.writer.close()


def primary(epoch: int) -> object:
    return {"broker": "one", "replica": "a", "epoch": epoch}


async def test_a_lookup_waits_for_the_next_primary(daemon: Daemon) -> None:
    first = await daemon.registrar(1, primary(1), "t")
    assert await daemon.ports("t") == [1]
    await daemon.end(first)
    asking = asyncio.create_task(daemon.ports("t"))
    await daemon.registrar(2, primary(2), "t")
    assert await asking == [2]


@pytest.mark.parametrize("martlet", [None, 1, {"broker": "one"}, {"broker": 1, "replica": "a"}])
async def test_a_broker_without_replicas_is_not_waited_for(
    daemon: Daemon, martlet: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failovers, "HOLD_S", LONG_S)
    first = await daemon.registrar(1, martlet, "t")
    second = await daemon.registrar(2, martlet, "t")
    assert await daemon.ports("t") == [1, 2], "they have nothing in common"
    await daemon.end(first)
    await daemon.end(second)
    async with asyncio.timeout(QUICK_S):
        assert await daemon.ports("t") == []


async def test_a_new_primary_replaces_one_that_is_still_registered(daemon: Daemon) -> None:
    silent = await daemon.registrar(1, primary(1), "t")
    await daemon.registrar(9, {"broker": "two", "replica": "a", "epoch": 1}, "t")
    after = await daemon.registrar(2, primary(2))
    asking = asyncio.create_task(daemon.ports("t"))
    assert await after.ask(b"REGISTER t") == b"OK"
    assert await asking == [9, 2]
    assert await silent.reader.read() == b""


async def test_a_primary_of_an_earlier_epoch_replaces_none(daemon: Daemon) -> None:
    await daemon.registrar(2, primary(2), "t")
    with pytest.raises(AssertionError, match="E_INVALID a later primary"):
        await daemon.registrar(1, primary(1))
    assert await daemon.ports("t") == [2]


@pytest.mark.parametrize(
    ("second", "is_copy"),
    [
        ({"broker": "one", "run": "y"}, True),
        ({"broker": "one", "run": "x"}, False),
        ({"broker": "two", "run": "y"}, False),
        ({"broker": "one", "replica": "a", "epoch": 1}, False),
        ({"broker": "one"}, False),
        (None, False),
    ],
)
async def test_two_brokers_with_one_id_are_said(
    daemon: Daemon, second: object, is_copy: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await daemon.registrar(1, {"broker": "one", "run": "x"}, "t")
    await daemon.registrar(2, second, "t")
    assert ("both have the id one" in caplog.text) is is_copy
    assert await daemon.ports("t") == [1, 2], "lookups name both"
