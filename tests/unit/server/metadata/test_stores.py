"""What every metadata store keeps: a SQLite file, and a real etcd where there is one."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import aiohttp
import pytest
from aiohttp import web
from tests.answering import answering
from tests.etcd import running_etcd

from martlet.log.folder import read_boot_id
from martlet.replica.replica_set import BadReplicaSet, Presence, ReplicaSet
from martlet.server.metadata.address import BadStoreAddress, open_store
from martlet.server.metadata.etcd_store import EtcdStore
from martlet.server.metadata.sqlite_store import SqliteStore
from martlet.server.metadata.store import MetadataStore, StoreUnreachable, SwapUnclear
from martlet.testing.ports import free_port

FIRST = ReplicaSet.first("a", {"a": "10.0.0.1:4153", "b": "10.0.0.2:4153"}, broker="1")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an etcd."""
    with running_etcd(tmp_path_factory.mktemp("etcd")) as (address, _):
        yield address


@pytest.fixture(params=["sqlite", "etcd"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    made: MetadataStore
    if request.param == "sqlite":
        made = SqliteStore(tmp_path / "replicas.db", "broker-1")
    else:
        address = request.getfixturevalue("etcd")
        # One member of the list does not answer, and each test has a broker of its own.
        made = EtcdStore([f"127.0.0.1:{free_port()}", address], f"broker-{tmp_path.name}")
        await answers(made)
    yield made
    await made.close()


async def answers(store: MetadataStore) -> None:
    """Wait until etcd has elected its leader."""
    for _ in range(200):
        try:
            await store.read()
        except StoreUnreachable:
            await asyncio.sleep(0.05)  # Another process starts; nothing tells when.
            continue
        return
    raise TimeoutError("etcd did not start within 10 s")


async def test_a_swap_needs_the_version_that_is_there(store: MetadataStore) -> None:
    assert await store.read() == (None, 0, {})
    version = await store.swap(FIRST, 0)
    assert version
    assert await store.swap(FIRST.elected("a"), 0) is None
    assert await store.read() == (FIRST, version, {})
    later = await store.swap(FIRST.elected("a"), version)
    assert later is not None
    assert later > version
    assert await store.swap(FIRST.touched(), version) is None
    assert await store.read() == (FIRST.elected("a"), later, {})


async def test_of_many_swaps_of_one_version_one_succeeds(store: MetadataStore) -> None:
    version = await store.swap(FIRST, 0)
    assert version
    swaps = [store.swap(replace(FIRST, touch=number), version) for number in range(10)]
    outcomes = await asyncio.gather(*swaps)
    assert len([outcome for outcome in outcomes if outcome is not None]) == 1
    seen = await store.read()
    assert seen.replica_set is not None
    assert outcomes[seen.replica_set.touch] == seen.version


async def test_a_presence_is_seen_until_it_expires(store: MetadataStore) -> None:
    await store.announce("a", Presence(epoch=3, end_position=80))
    await store.announce("a", Presence(epoch=4, end_position=160, yields=True))
    seen = await store.read()
    assert seen.presences == {"a": Presence(epoch=4, end_position=160, yields=True)}
    for _ in range(200):
        if not (await store.read()).presences:
            break
        await asyncio.sleep(0.1)  # It expires by itself.
    else:
        pytest.fail("the presence did not expire within 20 s")
    await store.announce("a", Presence(epoch=5))
    assert (await store.read()).presences == {"a": Presence(epoch=5)}


async def test_a_presence_is_renewed_many_times_at_once(store: MetadataStore) -> None:
    await asyncio.gather(*(store.announce("a", Presence(epoch=3)) for _ in range(50)))
    assert (await store.read()).presences == {"a": Presence(epoch=3)}


async def test_brokers_do_not_see_each_other(tmp_path: Path) -> None:
    path = tmp_path / "replicas.db"
    one, other = SqliteStore(path, "1"), SqliteStore(path, "2")
    await one.swap(FIRST, 0)
    await one.announce("a", Presence())
    assert await other.read() == (None, 0, {})
    await one.close()
    await other.close()


async def test_a_presence_ends_with_the_boot(tmp_path: Path) -> None:
    """The monotonic clock begins anew."""
    path = tmp_path / "replicas.db"
    before = SqliteStore(path, "1", boot_id="one")
    await before.announce("a", Presence())
    after = SqliteStore(path, "1", boot_id="two", clock_ns=lambda: 0)
    assert (await after.read()).presences == {}
    await before.close()
    await after.close()


async def test_what_a_store_cannot_do_is_named(tmp_path: Path) -> None:
    path = tmp_path / "replicas.db"
    path.mkdir()
    path.with_name("replicas.db.presences").touch()
    store = SqliteStore(path, "1")
    with pytest.raises(StoreUnreachable, match=r"replicas\.db: unable to open database file"):
        await store.read()
    with pytest.raises(StoreUnreachable, match=r"replicas\.db: file exists$"):
        await store.announce("a", Presence())
    with pytest.raises(SwapUnclear, match=r"replicas\.db"):
        await store.swap(FIRST, 0)
    port = free_port()
    nowhere = EtcdStore([f"127.0.0.1:{port}"], "1")
    with pytest.raises(
        StoreUnreachable, match=rf"etcd did not answer \(127.0.0.1:{port}: connection refused; is"
    ):
        await nowhere.read()
    with pytest.raises(SwapUnclear, match="etcd did not answer"):
        await nowhere.swap(FIRST, 0)
    await nowhere.close()


async def test_a_store_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "replicas.db"
    store = SqliteStore(path, "1")
    await store.swap(FIRST, 0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SwapUnclear, match="database is locked"):
            await store.swap(FIRST.touched(), 1)
        other.execute("ROLLBACK")
    assert await store.swap(FIRST.touched(), 1) == 2
    await store.close()


async def test_a_process_that_is_stopped_in_the_store_keeps_nobody_from_an_election(
    tmp_path: Path,
) -> None:
    """In the instant of reading, and in the rare one of changing the document."""
    path = tmp_path / "replicas.db"
    store = SqliteStore(path, "1")
    await store.swap(FIRST, 0)
    with closing(sqlite3.connect(path, isolation_level=None)) as stopped:
        stopped.execute("BEGIN")
        stopped.execute("SELECT * FROM replica_set").fetchone()
        assert await store.swap(FIRST.touched(), 1) == 2
        stopped.execute("ROLLBACK")
        stopped.execute("BEGIN EXCLUSIVE")
        stopped.execute("UPDATE replica_set SET version = 9")
        await store.announce("b", Presence(epoch=1))
        assert await store.read() == (FIRST.touched(), 2, {"b": Presence(epoch=1)})
    await store.close()


async def test_the_presence_of_an_earlier_version_is_seen(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "replicas.db", "1", boot_id="one", clock_ns=lambda: 5)
    await store.read()
    with closing(sqlite3.connect(tmp_path / "replicas.db", isolation_level=None)) as other:
        for name, until_ns in (("a", 9), ("b", 9), ("c", 5)):
            row = ("1", name, "one", until_ns, Presence(epoch=1).pack())
            other.execute("INSERT INTO presence VALUES (?, ?, ?, ?, ?)", row)
    await store.announce("a", Presence(epoch=2))
    assert (await store.read()).presences == {"a": Presence(epoch=2), "b": Presence(epoch=1)}
    await store.close()


@pytest.mark.parametrize("value", [b"", b"no JSON", b"\xff", b"[" * 100_000, b'{"epoch": "3"}'])
async def test_what_a_stranger_wrote_to_the_store_keeps_nobody_from_looking(
    tmp_path: Path, etcd: str, value: bytes
) -> None:
    """etcd leaves out a value that is empty."""
    one = SqliteStore(tmp_path / "replicas.db", "1")
    await one.swap(FIRST, 0)
    await one.announce("a", Presence(epoch=1))
    await one.announce("z", Presence(epoch=1))
    for name in ("y", "z"):
        path = tmp_path / "replicas.db.presences" / f"1@{name}"
        text = value.decode(errors="replace")
        fields = {"boot": read_boot_id(), "until_ns": 1 << 62, "presence": text}
        path.write_bytes(value if name == "y" else json.dumps(fields).encode())
    set_name = f"broken-{tmp_path.name}"
    two = EtcdStore([etcd], set_name)
    await answers(two)
    await two.swap(FIRST, 0)
    await two.announce("a", Presence(epoch=1))
    await put(etcd, f"/martlet/{set_name}/replica/z", value)
    for store in (one, two):
        seen = await store.read()
        assert (seen.replica_set, seen.presences) == (FIRST, {"a": Presence(epoch=1)})

    with closing(sqlite3.connect(tmp_path / "replicas.db", isolation_level=None)) as other:
        other.execute("UPDATE replica_set SET document = ?", (value,))
    await put(etcd, f"/martlet/{set_name}/state", value)
    for store in (one, two):
        with pytest.raises(BadReplicaSet):
            await store.read()
        await store.close()


async def put(etcd: str, key: str, value: bytes) -> None:
    """Write a key to etcd, as its own tools do."""
    fields = {"key": b64encode(key.encode()).decode(), "value": b64encode(value).decode()}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{etcd}/v3/kv/put", json=fields) as answer,
    ):
        assert answer.status == 200


@pytest.mark.parametrize(
    ("status", "body"),
    [
        *((503, b""), (502, b"[]"), (200, b""), (200, b"7"), (502, b"<html>")),
        (200, b'{"message": "welcome"}'),
    ],
)
async def test_an_answer_that_is_not_etcds_is_no_answer(status: int, body: bytes) -> None:
    """Such as a proxy in front of it gives."""

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(status=status, body=body)

    async with answering(answer) as address:
        store = EtcdStore([address], "1")
        with pytest.raises(StoreUnreachable, match=rf"etcd did not answer \({address}"):
            await store.read()
        with pytest.raises(StoreUnreachable):
            await store.announce("a", Presence())
        with pytest.raises(SwapUnclear):
            await store.swap(FIRST, 0)
        await store.close()


async def test_a_key_that_a_stranger_wrote_does_not_hide_the_names_of_the_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = EtcdStore(["127.0.0.1:1"], "1")
    keys = [b64encode(key).decode() for key in (b"/martlet/\xff", b"/martlet/one/state")]
    answer = {"kvs": [{"key": key} for key in keys]}
    monkeypatch.setattr(store, "_ask", AsyncMock(return_value=answer))
    assert await store.names() == ["one"]


async def test_a_redirect_is_not_followed() -> None:
    requests = set()

    async def answer(request: web.BaseRequest) -> web.Response:
        requests.add(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with answering(answer) as address:
        store = EtcdStore([address], "1")
        with pytest.raises(StoreUnreachable, match="status 307"):
            await store.read()
        await store.close()
    assert requests == {"/v3/kv/range"}


def test_a_presence_of_a_later_version_is_read() -> None:
    assert Presence.unpack(b'{"epoch": 3, "colour": "red"}') == Presence(epoch=3)
    for wrong in (b"[]", b"7", b"", b'{"epoch": "3"}'):
        with pytest.raises(BadReplicaSet):
            Presence.unpack(wrong)


async def test_the_files_of_sqlite_are_for_their_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = SqliteStore(tmp_path / "made" / "replicas.db", "broker-1")
        await store.swap(FIRST, 0)
        await store.announce("a", Presence())
        files = [tmp_path / "made", *(tmp_path / "made").rglob("*")]
        assert len(files) > 4, "the database, its journal, the presences"
        for path in files:
            mode = path.stat().st_mode & 0o777
            assert mode == (0o700 if path.is_dir() else 0o600), path
        await store.close()
    finally:
        os.umask(before)


def test_the_kind_names_the_store(tmp_path: Path) -> None:
    assert isinstance(open_store(f"sqlite:{tmp_path / 'x.db'}", "1"), SqliteStore)
    assert isinstance(open_store("etcd:10.0.0.1:2379,[::1]:2379", "1"), EtcdStore)


@pytest.mark.parametrize(
    "address",
    [
        *("", "sqlite", "sqlite:", "etcd:", "etcd:host", "etcd:host:0", "etcd:h:1,"),
        *("etcd:https://h:2379", "zk:host:2181"),
    ],
)
def test_what_is_no_address_is_refused_with_examples(address: str) -> None:
    with pytest.raises(BadStoreAddress, match="etcd:HOST:PORT,HOST:PORT for replicas on several"):
        open_store(address, "1")
