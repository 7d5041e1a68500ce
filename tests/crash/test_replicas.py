"""Replicas as processes: the primary is killed again and again, and nothing answered OK is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.wire import GONE, Refused, Wire, mpub
from tests.etcd import running_etcd

from martlet.log.record import RecordKind
from martlet.log.recovery import RecoveryReport, scan
from martlet.log.storage import DiskStorage
from martlet.replica.replica_set import ReplicaSet
from martlet.server.metadata.address import open_store
from martlet.server.metadata.store import StoreUnreachable
from martlet.testing.ports import free_port

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parents[2]
LIMIT_S = 30
TOPIC = "t"


class Cluster:
    """Replicas on one machine, and the store that they share."""

    def __init__(self, folder: Path, names: str, flush: str, store: str = "") -> None:
        self.folder = folder
        self.store_address = store or f"sqlite:{folder / 'replicas.db'}"
        self.flush = flush
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in names}
        self.tcp = {name: f"127.0.0.1:{free_port()}" for name in names}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.store = open_store(self.store_address, "broker-1")

    async def start(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    await self.store.look()
                    break
                except StoreUnreachable:
                    await asyncio.sleep(0.05)  # It starts, and calls nobody.
        assert await self.store.swap(ReplicaSet.first("a", self.addresses), 0)
        for name in self.addresses:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        given = {
            "name": name,
            "address": self.addresses[name],
            "tcp": self.tcp[name],
            "http": "",
            "folder": str(self.folder / name),
            "flush": self.flush,
            "store": self.store_address,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.replica_process", json.dumps(given)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    async def primary(self) -> str | None:
        """The name of the primary, whoever is that now."""
        found = (await self.store.look()).replica_set
        return found.primary if found is not None else None

    async def in_sync(self, count: int) -> ReplicaSet:
        """Wait until so many replicas are in sync."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = (await self.store.look()).replica_set
                assert found is not None
                if len(found.in_sync) == count and found.primary is not None:
                    return found
                await asyncio.sleep(0.02)  # The store tells nobody when it changes.

    async def alike(self, but_for_bytes: int = 0) -> None:
        """Wait until all replicas say that they have the same log, up to some bytes."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                seen = await self.store.look()
                assert seen.replica_set is not None
                epochs = {one.epoch for one in seen.presences.values()}
                ends = [one.end_position for one in seen.presences.values()]
                is_one = epochs == {seen.replica_set.epoch} and len(ends) == len(self.addresses)
                if is_one and max(ends) - min(ends) <= but_for_bytes:
                    return
                await asyncio.sleep(0.05)

    async def connect(self) -> Wire:
        """Connect to the primary, as soon as it takes clients."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                name = await self.primary()
                try:
                    if name is not None:
                        return await Wire.open(self.tcp[name])
                except OSError:
                    pass  # It is not there any more, or does not listen yet.
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for name, process in self.processes.items():
            status = process.wait(LIMIT_S)
            # Or it was killed while it started.
            assert status in (0, -signal.SIGTERM), (self.folder / f"{name}.log").read_text()
        await self.store.close()


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[list[Cluster]]:
    made: list[Cluster] = []
    yield made
    for cluster in made:
        for process in cluster.processes.values():
            process.kill()
            process.wait()


class Publisher:
    """Publishes batch after batch, to whoever is primary, and remembers what was answered OK."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.made = 0
        self.answered: set[bytes] = set()
        self.answer_count = 0

    async def run(self) -> None:
        while True:
            wire = await self.cluster.connect()
            try:
                while True:
                    bodies = [b"%d" % (self.made + number) for number in range(10)]
                    self.made += len(bodies)
                    wire.send(mpub(TOPIC, bodies))
                    await wire.ok()
                    self.answered.update(bodies)
                    self.answer_count += 1
            except (*GONE, Refused):
                pass  # It publishes others to the next primary.
            finally:
                wire.writer.close()

    async def answered_again(self) -> None:
        """Wait until something that is published from now on was answered."""
        count = self.answer_count
        async with asyncio.timeout(LIMIT_S):
            while self.answer_count < count + 20:  # noqa: ASYNC110, a task appends to it
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(("names", "flush"), [("abc", "async"), ("abc", "sync"), ("ab", "async")])
async def test_nothing_answered_is_lost_when_primaries_are_killed(
    tmp_path: Path, clusters: list[Cluster], names: str, flush: str
) -> None:
    cluster = Cluster(tmp_path, names, flush)
    clusters.append(cluster)
    await cluster.start()
    await cluster.in_sync(len(names))
    publisher = Publisher(cluster)
    publishing = asyncio.create_task(publisher.run())
    for _ in range(3):
        await publisher.answered_again()
        victim = await cluster.primary()
        assert victim is not None
        cluster.kill(victim)
        if len(names) == 2:
            cluster.start_one(victim)  # One alone confirms nothing.
        await publisher.answered_again()
        if len(names) > 2:
            cluster.start_one(victim)
        await cluster.in_sync(len(names))
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)

    assert publisher.answered <= await received_all(cluster, publisher.answered)
    await cluster.alike()
    await cluster.stop()
    logs = [records_of(tmp_path / name) for name in names]
    # One that stops as the primary writes some more.
    shortest = min(map(len, logs))
    assert shortest > 100
    is_same = all(log[:shortest] == logs[0][:shortest] for log in logs)
    assert is_same


async def test_a_primary_that_was_paused_finds_another_one(
    tmp_path: Path, clusters: list[Cluster]
) -> None:
    """Its connections are open all the time, and it believes that it is primary."""
    cluster = Cluster(tmp_path, "abc", "async")
    clusters.append(cluster)
    await cluster.start()
    await cluster.in_sync(3)
    publisher = Publisher(cluster)
    publishing = asyncio.create_task(publisher.run())
    await publisher.answered_again()
    paused = await cluster.primary()
    assert paused is not None
    waiting = await Wire.open(cluster.tcp[paused])
    cluster.processes[paused].send_signal(signal.SIGSTOP)
    # Whoever is connected to it waits; others find the new primary.
    publishing.cancel()
    waiting.send(mpub(TOPIC, [b"never answered"]))
    async with asyncio.timeout(LIMIT_S):
        while await cluster.primary() == paused:  # noqa: ASYNC110, the store calls nobody
            await asyncio.sleep(0.05)
    publishing = asyncio.create_task(publisher.run())
    await publisher.answered_again()
    cluster.processes[paused].send_signal(signal.SIGCONT)
    assert await waiting.ended() == b""
    waiting.writer.close()
    await cluster.in_sync(3)
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)
    received = await received_all(cluster, publisher.answered)
    assert publisher.answered <= received
    assert b"never answered" not in received
    await cluster.alike()
    await cluster.stop()
    assert "SteppedDown" not in (tmp_path / f"{paused}.log").read_text()
    assert "another replica is primary" in (tmp_path / f"{paused}.log").read_text()


async def test_a_primary_that_stops_hands_over(tmp_path: Path, clusters: list[Cluster]) -> None:
    cluster = Cluster(tmp_path, "abc", "async")
    clusters.append(cluster)
    await cluster.start()
    await cluster.in_sync(3)
    publisher = Publisher(cluster)
    publishing = asyncio.create_task(publisher.run())
    for _ in range(3):
        await publisher.answered_again()
        await cluster.alike(but_for_bytes=1 << 20)
        before = await cluster.in_sync(3)
        stopped = await cluster.primary()
        assert stopped is not None
        cluster.processes[stopped].send_signal(signal.SIGTERM)
        await publisher.answered_again()
        found = (await cluster.store.look()).replica_set
        assert found is not None
        assert found.epoch == before.epoch + 1, "one election is enough"
        assert cluster.processes[stopped].wait(LIMIT_S) == 0
        cluster.start_one(stopped)
        await cluster.in_sync(3)
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)
    assert publisher.answered <= await received_all(cluster, publisher.answered)
    await cluster.stop()


async def test_all_goes_on_while_etcd_is_away(tmp_path: Path, clusters: list[Cluster]) -> None:
    with running_etcd(tmp_path) as (address, etcd):
        cluster = Cluster(tmp_path, "abc", "async", f"etcd:{address}")
        clusters.append(cluster)
        await cluster.start()
        await cluster.in_sync(3)
        publisher = Publisher(cluster)
        publishing = asyncio.create_task(publisher.run())
        await publisher.answered_again()
        first = await cluster.primary()
        assert first is not None
        etcd.send_signal(signal.SIGSTOP)
        await asyncio.sleep(5)  # Longer than a presence lasts.
        await publisher.answered_again()
        etcd.send_signal(signal.SIGCONT)
        await publisher.answered_again()
        assert await cluster.primary() == first
        cluster.kill(first)
        await publisher.answered_again()
        assert await cluster.primary() != first
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        assert publisher.answered <= await received_all(cluster, publisher.answered)
        del cluster.processes[first]
        await cluster.stop()


async def received_all(cluster: Cluster, wanted: set[bytes]) -> set[bytes]:
    """Consume until all that is wanted has come; return all that came."""
    received: set[bytes] = set()
    missing = set(wanted)
    wire = await cluster.connect()
    wire.send(f"SUB {TOPIC} c\n".encode())
    await wire.ok()
    wire.send(b"RDY 1000\n")
    while missing:
        message = await wire.message()
        received.add(message.body)
        missing.discard(message.body)
        wire.send(b"FIN " + message.id + b"\n")
    wire.writer.close()
    return received


def records_of(folder: Path) -> list[bytes]:
    storage = DiskStorage(folder)
    try:
        found = scan(storage.segments(), 0, RecoveryReport())
        return [bytes(r) for header, r in found if header.kind != RecordKind.SEGMENT_END]
    finally:
        storage.close()
