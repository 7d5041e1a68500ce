"""Replicas as processes: the primary is killed again and again, and nothing answered OK is lost."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Self

import aiohttp
import pytest
from tests.crash.replica_cluster import LIMIT_S, ROOT, Cluster, Clusters
from tests.crash.wire import GONE, HttpRefused, Refused, Wire, channels_of, http, mpub, pub, until
from tests.etcd import running_etcd
from tests.interop.certificates import Certificates

from martlet.client import Admin, Consumer
from martlet.log.record import RecordKind
from martlet.log.recovery import RecoveryReport, scan
from martlet.log.storage import DiskStorage
from martlet.protocol.nsq.commands import identify, send
from martlet.server.replication.operations import Operations
from martlet.testing.ports import free_port

pytestmark = pytest.mark.crash

TOPIC = "t"


class Publisher:
    """Publishes batch after batch, to whoever is primary, and remembers what was answered OK."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.made = 0
        self.answered: set[bytes] = set()
        self.answer_count = 0
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        await self.answered_again()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
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

    async def fail_over(self) -> None:
        """Kill the primary, and start it again once another one has taken messages."""
        victim = await self.cluster.primary()
        self.cluster.kill(victim)
        is_alone = len(self.cluster.tcp) == 2  # The other one alone confirms nothing.
        if is_alone:
            self.cluster.start_one(victim)
        await self.answered_again()
        if not is_alone:
            self.cluster.start_one(victim)
        await self.cluster.in_sync(len(self.cluster.tcp))

    async def receive_all(self) -> set[bytes]:
        """Consume until all that was answered has come; return all that came."""
        return await received_all(self.cluster, self.answered)


@pytest.mark.parametrize(("names", "flush"), [("abc", "async"), ("abc", "sync"), ("ab", "async")])
async def test_nothing_answered_is_lost_when_primaries_are_killed(
    clusters: Clusters, names: str, flush: str
) -> None:
    # Else consumed segments go, at each replica in its time, and no logs are left to compare.
    cluster = await clusters.start(
        names, flush, arguments=["--retention=1h", "--disk-force-percent=0"]
    )
    async with Publisher(cluster) as publisher:
        for _ in range(3):
            await publisher.answered_again()
            await publisher.fail_over()
    await publisher.receive_all()
    await cluster.alike()
    await cluster.stop()
    logs = [records_of(cluster.folders[name]) for name in names]
    # One that stops as the primary writes some more.
    shortest = min(map(len, logs))
    assert shortest > 100
    is_same = all(log[:shortest] == logs[0][:shortest] for log in logs)
    assert is_same


async def test_a_channel_that_sub_was_answered_ok_for_is_there_after_a_failover(
    cluster: Cluster,
) -> None:
    first, standbys = await _subscribe_without_standbys(cluster)
    for name in standbys:
        cluster.start_one(name)
    await cluster.primary(but=first)
    cluster.start_one(first)
    await cluster.in_sync(3)
    wire = await cluster.connect()
    wire.send(b"SUB t new\n")
    await wire.ok()
    second = await cluster.primary()
    cluster.kill(second)
    third = await cluster.primary(but=second)
    publisher = await cluster.connect()
    publisher.send(pub(TOPIC, b"after"))
    await publisher.ok()
    wire.close()
    again = await Wire.subscribed(cluster.tcp[third], TOPIC, "new")
    again.send(b"RDY 2\n")
    assert [(await again.message()).body for _ in range(2)] == [b"x", b"after"]
    again.close()
    publisher.close()
    cluster.start_one(second)
    await cluster.in_sync(3)


async def _subscribe_without_standbys(cluster: Cluster) -> tuple[str, list[str]]:
    """Have SUB make a channel that no standby gets, and kill all replicas. Returns the primary and
    the standbys.
    """
    wire = await cluster.connect()
    wire.send(pub(TOPIC, b"x"))
    await wire.ok()
    primary = await cluster.primary()
    standbys = [name for name in cluster.http if name != primary]
    for name in standbys:
        cluster.hang(name)
    wire.send(b"SUB t new\n")
    answer = asyncio.create_task(wire.ok())

    async def is_there() -> bool:
        return (TOPIC, "new") in await channels_of(cluster.http[primary])

    await until(is_there)
    for name in (primary, *standbys):  # With what lies in their sockets.
        cluster.kill(name)
    with pytest.raises(GONE):  # Else it was answered OK, and is lost.
        await answer
    wire.close()
    return primary, standbys


async def test_replicas_with_certificates_and_a_secret_fail_over(
    tmp_path: Path, certificates: Certificates, clusters: Clusters
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"the secret that all replicas share")
    cluster = await clusters.start(
        arguments=[
            f"--replica-tls-cert={certificates.certificate}",
            f"--replica-tls-key={certificates.key}",
            f"--replica-tls-ca-file={certificates.authority}",
            f"--replica-secret-file={secret}",
        ]
    )
    async with Publisher(cluster) as publisher:
        await publisher.fail_over()
    await publisher.receive_all()
    await cluster.stop()


async def is_ready(address: str) -> bool:
    """Whether a replica takes clients: a standby, whether it follows the primary."""
    try:
        return b"martlet_ready 1\n" in await http(address, "/metrics")
    except OSError:
        return False  # It starts.


async def test_a_standby_whose_folder_comes_from_a_backup_says_so_and_counts_no_more(
    cluster: Cluster,
) -> None:
    async with Publisher(cluster) as publisher:
        name = await cluster.standby()
        folder, backup = cluster.folder / name, cluster.folder / "backup"
        for source, target in ((folder, backup), (backup, folder)):
            await publisher.answered_again()
            cluster.terminate(name)
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
            cluster.start_one(name)
            await until(lambda: is_ready(cluster.http[name]))
        await cluster.in_sync(3)
    assert cluster.log(name).count("lacks records that it had acknowledged") == 1
    await publisher.receive_all()


async def test_a_primary_that_was_paused_finds_another_one(cluster: Cluster) -> None:
    """Its connections are open all the time, and it believes that it is primary."""
    publisher = Publisher(cluster)
    async with publisher:
        paused = await cluster.primary()
        waiting = await Wire.open(cluster.tcp[paused])
        cluster.hang(paused)
    # Whoever is connected to it waits; others find the new primary.
    waiting.send(mpub(TOPIC, [b"never answered"]))
    await cluster.primary(but=paused)
    async with publisher:
        cluster.resume(paused)
        assert await waiting.ended() == b""
        waiting.writer.close()
        await cluster.in_sync(3)
    assert b"never answered" not in await publisher.receive_all()
    await cluster.alike()
    assert "is no primary any more" in cluster.log(paused)


async def test_clients_of_standbys_leave_a_primary_that_hangs(cluster: Cluster) -> None:
    """Those connected before are closed, and those that come meanwhile are held."""
    hung = await cluster.primary()
    standbys = [address for name, address in cluster.tcp.items() if name != hung]
    before = [await Wire.subscribed(address, TOPIC, "c") for address in standbys]
    cluster.hang(hung)
    meanwhile = [await Wire.open(address) for address in standbys]
    for wire in meanwhile:
        wire.send(mpub(TOPIC, [b"held"]))
    requests = [
        asyncio.create_task(http(cluster.http[name], f"/pub?topic={TOPIC}", b"by HTTP"))
        for name in cluster.http
        if name != hung
    ]
    await cluster.primary(but=hung)
    for answer in await asyncio.gather(*requests, return_exceptions=True):
        # It may have been sent to the one that hangs.
        assert answer == b"OK" or (
            isinstance(answer, HttpRefused) and str(answer) == "502 PRIMARY_UNREACHABLE"
        )
    for wire in meanwhile:
        await wire.ok()
    for wire in before:
        assert await wire.ended() == b""
    cluster.resume(hung)
    await cluster.alike()
    for wire in (*before, *meanwhile):
        wire.close()


async def test_clients_of_standbys_are_answered_as_by_the_primary(cluster: Cluster) -> None:
    primary, standby = await cluster.primary(), await cluster.standby()

    # One that sends no more gets all its answers.
    wire = await Wire.open(cluster.tcp[standby])
    wire.send(mpub(TOPIC, [b"one"]) * 50)
    wire.writer.write_eof()
    for _ in range(50):
        await wire.ok()
    assert await wire.ended() == b""
    wire.close()

    await Operations(cluster.store, LIMIT_S).set(copies=None, min_in_sync=3)
    (other,) = set(cluster.tcp) - {primary, standby}
    cluster.hang(other)
    async with aiohttp.ClientSession(f"http://{cluster.http[standby]}") as session:
        path = f"/pub?topic={TOPIC}"
        async with asyncio.timeout(LIMIT_S):
            while True:
                async with session.post(path, data=b"two") as answer:
                    text = await answer.text()
                    if answer.status != 200:
                        break
        assert "are reached, and 3 must be" in text
        # The connection goes on behind the refusal.
        async with session.get("/ping") as answer:
            assert await answer.text() == "OK"
        cluster.resume(other)
        await cluster.alike()
        await Operations(cluster.store, LIMIT_S).set(copies=None, min_in_sync=2)

        async def pieces() -> AsyncIterator[bytes]:
            yield b"in"
            yield b" pieces"

        async with session.post(path, data=pieces(), expect100=True) as answer:
            assert (answer.status, await answer.text()) == (200, "OK")
        async with session.post(path, data=io.BytesIO(bytes(2 << 20))) as answer:
            assert (answer.status, await answer.text()) == (413, '{"message":"MSG_TOO_BIG"}')
        async with session.post(path, data=io.BytesIO(bytes(10 << 20))) as answer:
            assert (answer.status, await answer.text()) == (413, '{"message":"BODY_TOO_BIG"}')


async def test_a_standby_stands_for_its_broker_where_it_alone_is_named(cluster: Cluster) -> None:
    """Topics were made there, and reported as not there."""
    async with Admin([cluster.http[await cluster.standby()]]) as admin:
        assert [*(await admin.topics.create("made", queues=3)).values.values()] == [3]
        await admin.channels.create("made", "c")
        (topics,) = (await admin.topics.list("made")).values.values()
        assert [(row.topic, row.queue_count) for row in topics] == [("made", 3)]
        (channels,) = (await admin.channels.list("made")).values.values()
        assert [row.channel for row in channels] == ["c"]
    async with Admin([*cluster.http.values()]) as admin:
        answers = (await admin.topics.list("made")).values
        assert sorted(len(topics) for topics in answers.values()) == [0, 0, 1]


async def test_what_is_damaged_under_a_primary_comes_from_another_replica(
    clusters: Clusters,
) -> None:
    cluster = await clusters.start()
    wire = await cluster.connect()
    bodies = {b"%d " % number + b"x" * 5000 for number in range(300)}
    for body in bodies:
        wire.send(mpub(TOPIC, [body]))
    for _ in bodies:
        await wire.ok()
    wire.close()
    await cluster.alike()
    # A record of its own epoch is not checked again before it is delivered.
    operations = Operations(cluster.store, LIMIT_S)
    primary = (await operations.hand_over()).primary
    assert primary is not None
    segments = (cluster.folders[primary] / "log").glob("*.log")
    damaged = next(path for path in segments if b"x" * 5000 in path.read_bytes())
    with damaged.open("r+b") as segment:
        segment.seek(segment.read().index(b"x" * 5000))
        segment.write(b"flipped")
    received: list[bytes] = []
    async with Consumer(TOPIC, "c", cluster.brokers) as consumer, asyncio.timeout(LIMIT_S):
        while not bodies <= set(received):
            message = await anext(consumer)
            received.append(message.body)
            message.finish()
    assert set(received) == bodies
    await cluster.alike()
    await cluster.stop()
    assert "no primary any more: its log is damaged" in cluster.log(primary)
    assert "are good again" in cluster.log(primary)
    first, *others = map(records_of, cluster.folders.values())
    assert others == [first] * 2


async def test_a_document_that_was_lost_is_made_anew(cluster: Cluster) -> None:
    wire = await cluster.connect()
    wire.send(mpub(TOPIC, [b"before"]))
    await wire.ok()
    with closing(sqlite3.connect(cluster.folder / "replicas.db")) as database, database:
        database.execute("DELETE FROM replica_set")
    wire.send(mpub(TOPIC, [b"while it is lost"]))
    await wire.ok()
    wire.close()
    replica_set = await Operations(cluster.store, LIMIT_S).recreate("abc", min_in_sync=None)
    assert replica_set.epoch == 2
    after = await cluster.in_sync(3)
    assert after.epoch > 2
    wire = await cluster.connect()
    wire.send(mpub(TOPIC, [b"after"]))
    await wire.ok()
    wire.close()
    bodies = {b"before", b"while it is lost", b"after"}
    assert await received_all(cluster, bodies) == bodies


async def test_a_second_process_of_the_same_name_takes_no_part(cluster: Cluster) -> None:
    before = await cluster.in_sync(3)
    cluster.processes["second"] = second = subprocess.Popen(
        [
            *(sys.executable, "-m", "martlet", "broker", "--replica-name=b", "--http-address="),
            *(f"--replica-address=127.0.0.1:{free_port()}", f"--metadata={cluster.store_address}"),
            *(f"--data-path={cluster.folder / 'second'}", f"--tcp-address=127.0.0.1:{free_port()}"),
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    assert second.stderr is not None
    lines = iter(second.stderr.readline, b"")
    said = await asyncio.to_thread(lambda: next(line for line in lines if b"another proc" in line))
    assert b"another process is replica b, at " + cluster.addresses["b"].encode() in said
    assert (await cluster.store.read()).replica_set == before
    second.terminate()
    assert second.wait(LIMIT_S) == 0
    second.stderr.close()


async def test_many_clients_of_standbys_go_to_the_next_primary_at_once(cluster: Cluster) -> None:
    """Their connections are not taken for those of replicas, which are limited."""
    killed = await cluster.primary()
    standbys = [name for name in cluster.tcp if name != killed]
    cluster.kill(killed)
    addresses = [cluster.tcp[name] for name in standbys for _ in range(150)]
    wires = await asyncio.gather(*map(Wire.open, addresses))
    for wire in wires:
        wire.send(b"SUB t c\n")
    for wire in wires:
        await wire.ok()
        wire.close()
    assert "connections of replicas" not in "".join(map(cluster.log, standbys))


async def test_a_standby_imports_nothing_more_when_it_becomes_primary(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients would wait for it: a third of a hand-over was imports once."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # Of its processes.
    # From a folder, since what is forked from the template of the tests has its imports already.
    cluster = await clusters.start(source=ROOT / "src")
    async with Publisher(cluster) as publisher:
        before = await cluster.primary()
        cluster.processes[before].send_signal(signal.SIGTERM)
        await cluster.primary(but=before)
        await publisher.answered_again()
        after = await cluster.primary()
    as_standby, _, as_primary = cluster.log(after).partition(f"{after} is candidate")
    assert "import time:" in as_standby
    assert "begins epoch" in as_primary
    assert [line for line in as_primary.splitlines() if "import time:" in line] == []
    await cluster.stop()


async def test_admin_shows_each_replica_and_which_is_down(cluster: Cluster) -> None:
    replica_set = await cluster.in_sync(3)
    await cluster.alike()
    async with Admin(cluster.http.values()) as admin:
        reports = (await admin.replicas.show()).check().values
        assert {report.replica: report.role for report in reports.values()} == {
            name: "primary" if name == replica_set.primary else "standby" for name in "abc"
        }
        assert {report.epoch for report in reports.values()} == {replica_set.epoch}
        assert replica_set.primary is not None
        seen = reports[f"http://{cluster.http[replica_set.primary]}"]
        assert (seen.primary, seen.in_sync) == (replica_set.primary, ("a", "b", "c"))
        addresses = {name: report.address for name, report in seen.replicas.items()}
        assert addresses == cluster.addresses
        standbys = {name: report for name, report in seen.replicas.items() if name != seen.primary}
        assert {report.is_connected for report in standbys.values()} == {True}
        assert all(report.lag_bytes is not None for report in standbys.values())
        gone, *_ = standbys
        cluster.kill(gone)
        answers = await admin.replicas.show()
        assert list(answers.errors) == [f"http://{cluster.http[gone]}"]
    await cluster.in_sync(2)


async def test_a_primary_that_stops_hands_over(cluster: Cluster) -> None:
    async with Publisher(cluster) as publisher:
        for _ in range(3):
            await publisher.answered_again()
            await cluster.alike(but_for_bytes=1 << 20)
            before = await cluster.in_sync(3)
            stopped = await cluster.primary()
            cluster.processes[stopped].send_signal(signal.SIGTERM)
            await publisher.answered_again()
            replica_set = (await cluster.store.read()).replica_set
            assert replica_set is not None
            assert replica_set.epoch == before.epoch + 1, "one election is enough"
            assert cluster.processes[stopped].wait(LIMIT_S) == 0
            cluster.start_one(stopped)
            await cluster.in_sync(3)
        # Before the publisher is cancelled: to reset its connection is an error of its own.
        logs = "".join(map(cluster.log, "abc"))
    await publisher.receive_all()
    assert ", and hands over to " in logs
    assert "ERROR" not in logs


async def test_all_goes_on_while_etcd_is_away(tmp_path: Path, clusters: Clusters) -> None:
    with running_etcd(tmp_path) as (address, etcd):
        cluster = await clusters.start(store=f"etcd:{address}")
        async with Publisher(cluster) as publisher:
            first = await cluster.primary()
            etcd.send_signal(signal.SIGSTOP)
            await asyncio.sleep(5)  # Longer than a presence lasts.
            await publisher.answered_again()
            etcd.send_signal(signal.SIGCONT)
            await publisher.answered_again()
            assert await cluster.primary() == first
            cluster.kill(first)
            await publisher.answered_again()
            assert await cluster.primary() != first
        await publisher.receive_all()
        await cluster.stop()


async def test_the_status_of_a_send_says_what_replicas_lack(clusters: Clusters) -> None:
    cluster = await clusters.start("ab")
    wire = await cluster.connect()
    await say_martlet(wire)
    assert await status_of(wire, b"one") == "OK"
    cluster.kill("b")
    assert await status_of(wire, b"two", flush_timeout_ms=200) == "FLUSH_SLAVE_TIMEOUT"
    assert await status_of(wire, b"three", wait=False) == "OK"
    async with asyncio.timeout(LIMIT_S):
        while (status := await status_of(wire, b"four", flush_timeout_ms=200)) != "REFUSED":
            assert status == "FLUSH_SLAVE_TIMEOUT"
    wire.send(mpub(TOPIC, [b"five"]))
    with pytest.raises(Refused, match=r"E_MPUB_FAILED.*1 of the replicas a, b in sync are reached"):
        await wire.ok()
    wire.writer.close()
    await Operations(cluster.store, LIMIT_S).set(copies=None, min_in_sync=1)
    wire = await cluster.connect()
    await say_martlet(wire)
    async with asyncio.timeout(LIMIT_S):
        while await status_of(wire, b"six") == "REFUSED":  # noqa: ASYNC110, it tells nobody
            await asyncio.sleep(0.05)  # Until the primary has looked.
    assert await status_of(wire, b"seven") == "SLAVE_NOT_AVAILABLE"
    cluster.start_one("b")
    await cluster.in_sync(2)
    assert await status_of(wire, b"eight") == "OK"
    wire.writer.close()
    bodies = {b"one", b"two", b"three", b"seven", b"eight"}
    assert await received_all(cluster, bodies) >= bodies
    await cluster.stop()


async def say_martlet(wire: Wire) -> None:
    """Ask for what NSQ's protocol does not have."""
    wire.send(identify({"feature_negotiation": True, "martlet": True}))
    await wire.answer()


async def status_of(wire: Wire, body: bytes, **options: object) -> str:
    """Send a message; return the status of the answer."""
    wire.send(send(TOPIC, [body], options))
    return str(json.loads((await wire.answer()).data)["status"])


async def received_all(cluster: Cluster, bodies: set[bytes]) -> set[bytes]:
    """Consume until all that is wanted has come; return all that came."""
    received: set[bytes] = set()
    missing = set(bodies)
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
        records = scan(storage.segments(), 0, RecoveryReport())
        return [bytes(r) for header, r in records if header.kind != RecordKind.SEGMENT_END]
    finally:
        storage.close()
