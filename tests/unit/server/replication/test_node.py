"""A replica as a process: its sockets, its files and the metadata store."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import aiohttp
import pytest
from tests.crash.wire import GONE, Wire, mpub
from tests.interop.calling import Caller, caller
from tests.interop.certificates import Certificates
from tests.polling import until

from martlet.log.folder import read_boot_id
from martlet.log.storage import DiskSegment
from martlet.options import BrokerOptions
from martlet.replica.frames import CLIENT_IS_OPERATOR, CLIENT_SPEAKS_HTTP, Frame, FrameKind
from martlet.replica.note import Life, ReplicaFailed, ReplicaNote
from martlet.replica.replica_set import Presence, ReplicaSet, Seen
from martlet.server.build import build_server
from martlet.server.http import server as http_server
from martlet.server.http.access import Operators
from martlet.server.metadata import sqlite_store
from martlet.server.metadata.sqlite_store import SqliteStore
from martlet.server.metadata.store import StoreUnreachable, SwapUnclear
from martlet.server.replication import process as replica_process
from martlet.server.replication import splice
from martlet.server.replication.link import MAX_STRANGERS, ReplicaLink, connect
from martlet.server.replication.node import ReplicaNode, SteppedDown
from martlet.server.replication.process import ReplicaProcess
from martlet.server.replication.repeated_lines import RepeatedLines
from martlet.server.replication.splice import SplicedConnection, open_splice
from martlet.server.replication.trust import LinkTrust
from martlet.server.server import Server
from martlet.testing.ports import free_port

log = logging.getLogger("martlet")


def options_of(folder: Path, **others: Any) -> BrokerOptions:
    """The flags of replica a, without HTTP."""
    settings: dict[str, Any] = {
        "tcp_address": "127.0.0.1:0",
        "http_address": "",
        "data_path": str(folder / "a"),
        "replica_name": "a",
        "replica_address": f"127.0.0.1:{free_port()}",
        "metadata": f"sqlite:{folder / 'replicas.db'}",
    }
    return BrokerOptions(**(settings | others))


def options_alone(folder: Path) -> BrokerOptions:
    """Those of a broker without replicas in the folder of a."""
    data_path = str(folder / "a")
    return BrokerOptions(tcp_address="127.0.0.1:0", http_address="", data_path=data_path)


@asynccontextmanager
async def started(options: BrokerOptions) -> AsyncIterator[ReplicaProcess]:
    """A process of a replica, whatever becomes of it."""
    process = ReplicaProcess(options, log)
    going = asyncio.create_task(process.run())
    try:
        yield process
    finally:
        process.stop()
        await going


@asynccontextmanager
async def running(folder: Path, **others: Any) -> AsyncIterator[ReplicaNode]:
    """The only replica of a broker, with its clients served."""
    options = options_of(folder, tcp_address=f"127.0.0.1:{free_port()}", **others)
    await make_set(folder, options.replica_address)
    process = ReplicaProcess(options, log)

    def is_serving() -> bool:  # A later node may be the one.
        return process.node.is_serving.is_set()

    running = asyncio.create_task(process.run())
    serving = asyncio.create_task(until(is_serving))
    done, _ = await asyncio.wait({running, serving}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if running in done:
            await running
        yield process.node
    finally:
        serving.cancel()
        process.stop()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def store_of(folder: Path) -> AsyncIterator[SqliteStore]:
    """The metadata store of the replicas."""
    store = SqliteStore(folder / "replicas.db", "martlet")
    yield store
    await store.close()


async def make_set(folder: Path, address: str, broker: str = "broker-1") -> None:
    """Make the set of the only replica, unless there is one."""
    async with store_of(folder) as store:
        await store.swap(ReplicaSet.first("a", {"a": address}, broker=broker), 0)


def server_of(node: ReplicaNode) -> Server:
    assert node.server is not None
    return node.server


def stored_count(node: ReplicaNode) -> int:
    return server_of(node).broker.topics["t"].queue.end_offset


async def publish(where: ReplicaNode | str, *bodies: bytes) -> None:
    """Publish messages to topic t, at a primary or at an address."""
    wire = await Wire.open(where if isinstance(where, str) else server_of(where).tcp_address)
    wire.send(mpub("t", bodies))
    await wire.ok()
    wire.writer.close()


async def link_to(node: ReplicaNode, trust: LinkTrust, logger: logging.Logger = log) -> ReplicaLink:
    address = node.options.replica_address
    return await connect(
        address, trust, lambda: ReplicaLink(node, trust, logger, is_acceptor=False)
    )


async def check_trust(node: ReplicaNode, strangers: Sequence[LinkTrust]) -> None:
    """Who has what the replica's options name is connected, and each stranger closed."""
    (await link_to(node, LinkTrust.load(node.options))).close()
    for trust in strangers:
        stranger = await link_to(node, trust)
        stranger.send(Frame(FrameKind.SPLICE, 0, body=b"10.0.0.1:1"))
        await until(partial(getattr, stranger, "is_closed"))
    await publish(node, b"one")


@pytest.fixture
def secret(tmp_path: Path) -> dict[str, str]:
    """The flag of a file with the secret."""
    file = tmp_path / "secret"
    file.write_bytes(b"the secret that all replicas share")
    return {"replica_secret_file": str(file)}


async def test_one_replica_alone_serves_clients_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await publish(node, b"one")
        boot = tmp_path / "a" / "boot"
        assert boot.read_text().split()[0] == read_boot_id()
    assert boot.read_bytes() == b"", "all of the log is on the disk"
    note = json.loads((tmp_path / "a" / "replica.json").read_text())
    assert (note["pledged"], note["is_whole"]) == (1, True)
    async with running(tmp_path) as node:
        await publish(node, b"two")
        assert stored_count(node) == 2


async def test_a_replica_whose_disk_is_full_when_it_opens_its_log_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that steps down while a flush fails, and opens its log anew."""
    monkeypatch.setattr(replica_process, "RETRY_S", 0.01)
    async with running(tmp_path) as node:
        await publish(node, b"one")
    failures = 3
    flush = DiskSegment.flush

    def fail_at_first(segment: DiskSegment) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(segment)

    monkeypatch.setattr(DiskSegment, "flush", fail_at_first)
    async with running(tmp_path) as node:
        assert stored_count(node) == 1
        await publish(node, b"two")
    assert failures == 0
    said = [record.message for record in caplog.records if "begins anew" in record.message]
    assert said
    assert all("No space left on device" in text for text in said)


async def test_a_replica_whose_disk_fails_when_it_opens_its_log_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:
        await publish(node, b"one")

    def fail(segment: DiskSegment) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(DiskSegment, "flush", fail)
    with pytest.raises(ReplicaFailed, match=r"the log could not be opened: .*Input/output error"):
        async with running(tmp_path):
            raise AssertionError


async def test_a_held_client_is_served_as_soon_as_its_replica_is_primary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the next try."""
    monkeypatch.setattr(splice, "_RETRY_S", splice.HOLD_S)
    options = options_of(tmp_path)
    async with started(options) as process:
        wire = await Wire.open(process.listeners.tcp_address)
        wire.send(mpub("t", [b"held"]))
        await until(lambda: process.spliced)
        await make_set(tmp_path, options.replica_address)
        await wire.ok()  # It would be closed after HOLD_S.
        wire.writer.close()


async def test_a_power_cut_is_noticed_by_another_boot(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await publish(node, b"one")
    (tmp_path / "a" / "boot").write_text("another-boot")
    async with running(tmp_path) as node:
        # It is the only replica, so there is nobody who could know more.
        assert stored_count(node) == 1
    assert json.loads((tmp_path / "a" / "replica.json").read_text())["pledged"] == 2


async def test_a_replica_set_of_another_broker_is_not_joined(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        address = node.options.replica_address
    (tmp_path / "replicas.db").unlink()
    await make_set(tmp_path, address, broker="broker-2")
    async with started(node.options) as process:
        await until(lambda: hasattr(process.node, "replica") and process.node.replica.problem)
        report = process.node.status.report()
    assert report["problem"] == (
        "the data folder is of another broker, broker-1, than the replica set, which is of"
        " broker-2: give this replica an empty --data-path, into which it copies the set's log, or,"
        " if the folder is of another replica set, the --metadata and --replica-set of that one"
    )
    assert report["role"] == "waiting"


async def test_a_primary_that_was_replaced_says_so_whoever_announced_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It steps down, reads its log again, and then was told to wait until the other one ends."""
    other = Presence(instance="other", address="127.0.0.1:1")
    announce = SqliteStore.announce

    async def announce_last(store: SqliteStore, name: str, presence: Presence) -> None:
        await announce(store, name, other if name == "a" else presence)

    async with running(tmp_path) as node:
        process = node._ports
        assert isinstance(process, ReplicaProcess)
        monkeypatch.setattr(SqliteStore, "announce", announce_last)
        monkeypatch.setattr(sqlite_store, "PRESENCE_S", 1000)
        seen = await node._store.read()
        # An announcement of its own may still be on its way.
        while seen.presences["a"].instance != "other":
            await node.membership.announce(node.replica, node.now_ns(), 0)
            seen = await node._store.read()
        assert seen.replica_set is not None
        life = Life(seen.replica_set.last_life + 1, "other", "another folder")
        claimed = seen.replica_set.claimed("a", life, other.address)
        assert await node._store.swap(claimed, seen.version)
        await until(lambda: process.node is not node)
        await until(lambda: "for good" in process.node.status.report()["problem"])
        assert process.node.status.report()["role"] == "waiting"


async def test_a_process_that_is_stopped_while_another_has_its_name_leaves_the_folder_alone(
    tmp_path: Path,
) -> None:
    """It read the whole log, and noted that it had been the replica, before it ended."""
    async with running(tmp_path) as node:
        options = node.options
    note = (tmp_path / "a" / "replica.json").read_bytes()
    async with store_of(tmp_path) as store:
        await store.announce("a", Presence(instance="other", address="10.0.0.9:4153"))
    async with started(options) as process:
        await until(lambda: "another process is replica a" in process.node.membership.waits_for)
    assert (tmp_path / "a" / "replica.json").read_bytes() == note


async def test_a_broker_without_replicas_refuses_the_folder_of_one(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    with pytest.raises(OSError, match="is that of a replica: start it with --replica-name"):
        build_server(options_alone(tmp_path))


async def test_the_folder_of_a_broker_without_replicas_becomes_the_first_one(
    tmp_path: Path,
) -> None:
    alone = build_server(options_alone(tmp_path))
    await alone.start()
    await publish(alone.tcp_address, b"one", b"two")
    await alone.stop()
    address = f"127.0.0.1:{free_port()}"
    replicated = options_of(tmp_path, replica_address=address, initial_replicas=f"a={address}")
    async with started(replicated) as process:
        await process.useful()
        assert stored_count(process.node) == 2
        report = process.node.status.report()
        assert (report["epoch"], report["broker_id"]) == (2, alone.folder.broker_id)


async def test_strangers_at_the_replica_port_harm_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        address = node.options.replica_address
        host, _, port = address.rpartition(":")
        for data in (b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\nAccept: */*\r\n\r\n", bytes(100)):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data)
            assert await reader.read() == b""
            writer.close()
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(MAX_STRANGERS + 20)]
        link = await connect(address, LinkTrust(), node._own_link)
        link.send(Frame(FrameKind.HELLO, 1, body=b"{}"))
        await until(lambda: link.is_closed)
        assert len(node.strangers) <= MAX_STRANGERS
        await publish(node, b"one")
        for _, writer in silent:
            writer.close()


async def test_a_wrong_secret_is_refused_and_does_not_flood_the_log(
    tmp_path: Path, secret: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "martlet")
    async with running(tmp_path, **secret) as node:
        other = RepeatedLines.above(log)
        for _ in range(20):
            with pytest.raises(OSError, match="secret"):
                await link_to(node, LinkTrust(b"another secret of 32 bytes"), other)
    said = [line for line in caplog.messages if "closing the connection to" in line]
    assert 1 <= len(said) <= 2, said
    assert "closing the connection to 127.0.0.1:" in said[0], "as its address is written"


async def test_clients_that_wait_for_a_primary_do_not_flood_the_log(
    tmp_path: Path,
    secret: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each of them tries again every 50 ms, and was a line when it was closed."""
    monkeypatch.setattr(splice, "HOLD_S", 0.2)
    caplog.set_level(logging.INFO, "martlet")
    other = tmp_path / "other"
    other.write_bytes(b"another secret of 32 bytes")
    async with running(tmp_path, **secret) as node:
        options = node.options.replace(
            replica_name="b",
            replica_secret_file=str(other),
            replica_address=f"127.0.0.1:{free_port()}",
            tcp_address=f"127.0.0.1:{free_port()}",
            data_path=str(tmp_path / "b"),
        )
        process = ReplicaProcess(options, log)
        monkeypatch.setattr(process, "primary_address", lambda: node.options.replica_address)
        await process.answer_as_standby()
        for _ in range(10):
            wire = await Wire.open(options.tcp_address)
            with pytest.raises(GONE):
                await wire.ok()
            wire.writer.close()
        process.listeners.close()
        await process.listeners.close_http()
        await process._store.close()
    gc.collect()  # asyncio logs an exception that is lost.
    assert not [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    for words in ("closing the connection to", "there is no primary since"):
        said = [record for record in caplog.messages if words in record]
        assert 1 <= len(said) <= 2, said


async def test_a_replica_without_the_secret_is_closed(
    tmp_path: Path, secret: dict[str, str]
) -> None:
    async with running(tmp_path, **secret) as node:
        await check_trust(node, [LinkTrust(b"")])


async def test_messages_are_refused_still_when_a_hand_over_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        primary = node.replica.primary
        assert primary is not None
        primary.shortage = lambda now_ns: "too few"  # type: ignore[method-assign]
        node._tick()
        assert primary.log.refusal == "too few"
        primary._give_up_hand_over()
        node._tick()
        assert primary.log.refusal == "too few"


async def test_replicas_are_sent_the_log_before_the_disk_is_waited_for(tmp_path: Path) -> None:
    async with running(tmp_path, flush="sync") as node:
        commits, broker = server_of(node).commits, server_of(node).broker
        order: list[tuple[str, int]] = []
        """What was done, and how many messages were stored by then."""
        flush, moved = commits.flusher.flush, commits.on_log_moved

        def flushing(*, is_awaited: bool = False) -> None:
            assert not is_awaited, "a disk that hangs would stop the event loop"
            order.append(("flush", broker.stored_count))
            flush(is_awaited=is_awaited)

        def sending() -> None:
            order.append(("send", broker.stored_count))
            moved()

        commits.flusher.flush = flushing  # type: ignore[method-assign]
        commits.on_log_moved = sending
        await publish(node, b"one")
        done = [what for what, stored in order if stored == 1]
        assert "flush" in done
        assert done[0] == "send"
        commits.flusher.flush = flush  # type: ignore[method-assign]


async def test_a_store_that_is_full_does_not_flood_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An etcd without space answers who reads, and nobody who writes."""
    caplog.set_level(logging.INFO, "martlet")
    async with running(tmp_path) as node:
        with monkeypatch.context() as full:
            error = StoreUnreachable("no space")
            full.setattr(node._store, "announce", AsyncMock(side_effect=error))
            full.setattr(node._store, "swap", AsyncMock(side_effect=SwapUnclear("no space")))
            seen = node.replica.seen
            assert seen is not None
            assert seen.replica_set is not None
            for _ in range(20):
                node.swap(seen.replica_set, seen.version)
                await node._announce()
                await node.membership.poll(node.replica)
                node._say("a standby")
                node._say("a standby: no room")
    for words in ("no space", "is a standby", "store again"):
        said = [record for record in caplog.messages if words in record]
        assert len(said) <= 5, said


async def test_replicas_with_other_flags_are_a_problem_to_show(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        problem = ""
        async with store_of(tmp_path) as store, asyncio.timeout(50):
            while not problem:
                await store.announce("b", Presence(modes="--flush=sync --replication=sync"))
                await asyncio.sleep(0.05)
                problem = (await store.read()).presences["a"].problem
        assert problem == (
            "it runs with --flush=async --replication=sync, and b with --flush=sync"
            " --replication=sync"
        )
        assert not node.replica.problem


@pytest.mark.parametrize("fails", [("read", "announce"), ("announce",), ("read",)])
async def test_a_metadata_store_that_is_away_is_in_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: tuple[str, ...]
) -> None:
    """An etcd without space answers who reads, and there is no failover by it either."""
    async with running(tmp_path) as node:

        def store() -> dict[str, Any]:
            state: dict[str, Any] = node.status.report()["metadata_store"]
            return state

        assert store()["is_reachable"]
        with monkeypatch.context() as away:
            error = StoreUnreachable("it is away")
            for name in fails:
                away.setattr(node._store, name, AsyncMock(side_effect=error))
            await until(lambda: store()["is_reachable"] is False)
            silent_ms = store()["silent_ms"]
            await until(lambda: store()["silent_ms"] > silent_ms)
            assert "martlet_replica_metadata_store_reachable 0\n" in node.status.metrics()
            await publish(node, b"one")
        await until(lambda: store()["is_reachable"] is True)
        await until(lambda: store()["silent_ms"] < silent_ms)
        assert "martlet_replica_metadata_store_reachable 1\n" in node.status.metrics()


async def test_a_replica_without_a_replica_set_shows_why(tmp_path: Path) -> None:
    async with (
        started(options_of(tmp_path, http_address="127.0.0.1:0")) as process,
        aiohttp.ClientSession(f"http://{process.listeners.http_address}") as session,
    ):
        await until(lambda: "create one" in process.node.membership.waits_for)
        async with session.get("/replica") as answer:
            report = await answer.json()
            assert (answer.status, report["role"]) == (200, "waiting")
            assert "martlet replicas create" in report["problem"]
        async with session.get("/metrics") as answer:
            text = await answer.text()
            assert 'role="waiting"} 1' in text
            assert "martlet_ready 0\n" in text
        async with session.get("/replica/primary") as answer:
            assert answer.status == 503


async def test_replicas_show_each_other_certificates(
    tmp_path: Path, certificates: Certificates
) -> None:
    tls = {
        "replica_tls_cert": str(certificates.certificate),
        "replica_tls_key": str(certificates.key),
        "replica_tls_ca_file": str(certificates.authority),
    }
    strange = ssl.create_default_context(cafile=certificates.authority)
    strange.load_cert_chain(certificates.stranger, certificates.stranger_key)
    async with running(tmp_path, **tls) as node:
        await check_trust(node, (LinkTrust(), LinkTrust(client_tls=strange)))
    wrong = node.options.replace(replica_tls_ca_file=str(tmp_path / "missing.pem"))
    with pytest.raises(OSError, match=r"--replica-tls-ca-file=.*missing.pem cannot be used"):
        LinkTrust.load(wrong)


@pytest.mark.parametrize(
    ("secret", "why"), [(None, "cannot be read"), (b"short", "has 5 bytes, and the minimum is 16")]
)
async def test_a_secret_that_cannot_be_used_is_named(
    tmp_path: Path, secret: bytes | None, why: str
) -> None:
    file = tmp_path / "secret"
    if secret is not None:
        file.write_bytes(secret)
    with pytest.raises(OSError, match=why):
        async with running(tmp_path, replica_secret_file=str(file)):
            pass


class Answer(asyncio.Protocol):
    """What the primary answers to a request that a standby forwards."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()


class Standby(ReplicaProcess):
    """A standby that knows the primary."""

    def __init__(self, primary: str, operators: Operators | None = None) -> None:
        self.trust = LinkTrust()
        self.operators = operators or Operators()
        self.spliced: set[SplicedConnection] = set()
        self.epoch = 0
        self.splicing = asyncio.Semaphore(1)
        self._primary = primary

    def own_connection(self) -> None:
        return None

    def primary_address(self) -> str:
        return self._primary

    async def until_primary(self, timeout_s: float) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("kind", "path", "status"),
    [
        (CLIENT_SPEAKS_HTTP, "/log/topics", b"403"),
        (CLIENT_SPEAKS_HTTP, "/debug/pprof/", b"403"),
        (CLIENT_SPEAKS_HTTP, "/ping", b"200"),
        (CLIENT_IS_OPERATOR, "/log/topics", b"200"),
    ],
)
async def test_the_primary_opens_the_routes_of_operators_where_a_standby_vouches(
    tmp_path: Path, kind: int, path: str, status: bytes
) -> None:
    async with running(tmp_path) as node:
        standby = Standby(node.options.replica_address)
        link, _ = await open_splice(standby, log, "", kind)
        answer = Answer()
        transport = link.release(answer)
        transport.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(50):
            await answer.ended.wait()
        assert answer.received.split()[1] == status


@pytest.mark.parametrize(
    ("operators", "is_one"), [(Operators(), True), (Operators(("0123456789abcdef",)), False)]
)
async def test_a_standby_says_whether_its_client_of_nsq_is_an_operator(
    tmp_path: Path, operators: Operators, is_one: bool
) -> None:
    """To the primary all of them come from the standby, which may be on its machine."""
    async with running(tmp_path) as node:
        standby = Standby(node.options.replica_address, operators)
        server = await splicing(standby)
        host, port = server.sockets[0].getsockname()
        async with server, caller(f"{host}:{port}") as client:
            answer = await client.call("group.list")
            assert answer.get("error", {}).get("code") == (None if is_one else "FORBIDDEN")
            assert "error" not in await client.call("transaction.begin", id="t")
        await until(lambda: not standby.spliced)


async def splicing(standby: Standby) -> asyncio.Server:
    """Accept clients as a standby does."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: SplicedConnection(standby, log), "127.0.0.1", 0)


async def is_ended(server: asyncio.Server) -> None:
    """Wait until a server has ended a client, without a byte."""
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    async with asyncio.timeout(50):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def test_an_unforeseen_error_ends_a_client_that_waits_for_the_primary(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It waited for ever."""
    standby = Standby("")
    monkeypatch.setattr(standby, "own_connection", lambda: 1 // 0)
    async with await splicing(standby) as server:
        await is_ended(server)
        await until(lambda: not standby.spliced)
    assert [
        record.exc_info is not None for record in caplog.records if "closing" in record.msg
    ] == [True]


async def test_a_standby_carries_no_client_by_a_descriptor_of_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as node:
        standby = Standby(node.options.replica_address)
        with monkeypatch.context() as patched:
            patched.setattr(splice, "is_for_the_log", lambda descriptor: True)
            for kind in (0, CLIENT_SPEAKS_HTTP, CLIENT_IS_OPERATOR):
                with pytest.raises(OSError, match="too few files are left for the log"):
                    await open_splice(standby, log, "", kind)
            async with await splicing(standby) as server:
                await is_ended(server)
        assert [record.message for record in caplog.records if "too few files" in record.message]
        link, _ = await open_splice(standby, log, "")
        link.close()


@pytest.mark.parametrize("address", ["", "127.0.0.1:80", "@"])
async def test_a_splice_that_vouches_for_nobody_makes_no_operator(
    tmp_path: Path, address: str
) -> None:
    """Whatever the standby, or an earlier version of it, says of the client's address."""
    async with running(tmp_path) as node:
        link, _ = await open_splice(Standby(node.options.replica_address), log, address)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport = link.release(protocol)
        loop = asyncio.get_running_loop()
        client = Caller(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        await client.identify()
        assert (await client.call("group.list"))["error"]["code"] == "FORBIDDEN"
        client.writer.close()
        await client.writer.wait_closed()


@pytest.mark.parametrize(
    ("flags", "ignored"),
    [
        ({"copies": 2, "min_in_sync": 1}, ["--copies=2"]),
        ({"min_in_sync": 2}, ["--min-in-sync=2"]),
        ({"copies": 1, "min_in_sync": 1}, []),
        ({}, []),
    ],
)
async def test_flags_of_the_first_replica_set_warn_where_the_set_has_others(
    flags: dict[str, int], ignored: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They were ignored without a word; one flag file per replica stays valid."""
    async with running(tmp_path, **flags):
        pass
    assert [line for line in caplog.messages if "no effect" in line] == [
        f"REPLICA: {flag} has no effect on a replica set that is there, with 1: change it with"
        f" `martlet replicas set {flag}`"
        for flag in ignored
    ]


async def test_flags_of_the_first_replica_set_warn_without_initial_replicas(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(options_of(tmp_path, copies=2)) as process:
        await until(lambda: "create one" in process.node.membership.waits_for)
    assert [line for line in caplog.messages if "no effect" in line] == [
        "REPLICA: --copies=2 has no effect without --initial-replicas: give it to `martlet replicas"
        " create`"
    ]


async def test_clients_over_tcp_do_not_wait_for_requests_over_http_when_a_primary_steps_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those under way get a moment, at the primary's own port and then at its standbys'."""
    monkeypatch.setattr(http_server, "_STOP_S", 60)
    async with running(tmp_path, http_address="127.0.0.1:0") as node:
        server = server_of(node)
        wire = await Wire.open(server.tcp_address)
        async with aiohttp.ClientSession() as session:
            url = f"http://{server.http_address}/v1/topics/t/channels/c/receive?wait=60"
            asking = asyncio.create_task(session.post(url))
            await until(lambda: server.leases.poll_count)
            node._ended.set_exception(SteppedDown("another replica is primary"))
            async with asyncio.timeout(50):
                with pytest.raises(GONE):
                    await wire.ok()
            assert not asking.done()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        wire.writer.close()


async def test_a_process_that_steps_down_knows_the_next_primary_until_it_has_polled_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held its clients until it had read its log."""
    addresses = {name: f"10.0.0.1:{port}" for port, name in enumerate("ab", 4153)}
    replica_set = ReplicaSet.first("a", addresses, broker="id").with_in_sync(frozenset("ab"))
    process = ReplicaProcess(options_of(tmp_path), log)
    steps_down = process.node
    monkeypatch.setattr(steps_down, "run", AsyncMock(side_effect=SteppedDown("b is primary")))
    replica = Mock(seen=Seen(replica_set.elected("b"), 2, {}), note=ReplicaNote(pledged=1))
    monkeypatch.setattr(steps_down, "replica", replica, raising=False)
    reading = asyncio.Event()

    async def read_log(node: ReplicaNode) -> None:
        reading.set()
        await node._ended

    monkeypatch.setattr(ReplicaNode, "run", read_log)
    going = asyncio.create_task(process.run())
    await reading.wait()
    assert process.node is not steps_down
    assert process.primary_address() == addresses["b"]
    process.stop()
    await going


async def test_a_flush_that_ends_once_its_primary_has_stepped_down_confirms_nothing(
    tmp_path: Path,
) -> None:
    """It was an AssertionError in the log of the only replica of a set."""
    async with running(tmp_path) as node:
        await publish(node, b"one")
        primary, server = node.replica.primary, node.server
        assert primary is not None
        before, primary.confirmation.position = primary.confirmation.position, 0
        node.server = None
        node._log_moved()
        assert primary.confirmation.position == 0
        node.server, primary.confirmation.position = server, before
