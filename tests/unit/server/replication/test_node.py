"""A replica as a process: its sockets, its files and the metadata store."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.crash.wire import Wire, mpub

from martlet.options import BrokerOptions
from martlet.replica.replica_set import ReplicaSet
from martlet.server.metadata.sqlite_store import SqliteStore, read_boot_id
from martlet.server.replication.link import MAX_LINKS, connect
from martlet.server.replication.node import NodeOptions, ReplicaNode
from martlet.testing.ports import free_port

log = logging.getLogger("martlet")


@asynccontextmanager
async def running(folder: Path, broker_id: str = "broker-1") -> AsyncIterator[ReplicaNode]:
    """The only replica of a broker, with its clients served."""
    address = f"127.0.0.1:{free_port()}"
    store = SqliteStore(folder / "replicas.db", broker_id)
    await store.swap(ReplicaSet.first("a", {"a": address}), 0)
    options = BrokerOptions(
        tcp_address=f"127.0.0.1:{free_port()}", http_address="", data_path=str(folder / "a")
    )
    node = ReplicaNode(options, NodeOptions("a", broker_id, address), store, log)
    running = asyncio.create_task(node.run())
    serving = asyncio.create_task(node.is_serving.wait())
    done, _ = await asyncio.wait({running, serving}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if running in done:
            await running
        yield node
    finally:
        serving.cancel()
        node.stop()
        await asyncio.gather(running, return_exceptions=True)
        await store.close()


async def publish(node: ReplicaNode, body: bytes) -> None:
    assert node.server is not None
    wire = await Wire.open(node.server.tcp_address)
    wire.send(mpub("t", [body]))
    await wire.ok()
    wire.writer.close()


async def test_one_replica_alone_serves_clients_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await publish(node, b"one")
        boot = tmp_path / "a" / "boot"
        assert boot.read_text() == read_boot_id()
    assert boot.read_bytes() == b"", "all of the log is on the disk"
    note = json.loads((tmp_path / "a" / "replica.json").read_text())
    assert (note["pledged"], note["is_whole"]) == (1, True)
    async with running(tmp_path) as node:
        await publish(node, b"two")
        assert node.server is not None
        assert node.server.broker.topics["t"].queue.end_offset == 2


async def test_a_power_cut_is_noticed_by_another_boot(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await publish(node, b"one")
    (tmp_path / "a" / "boot").write_text("another boot")
    async with running(tmp_path) as node:
        # It is the only replica, so there is nobody who could know more.
        assert node.server is not None
        assert node.server.broker.topics["t"].queue.end_offset == 1
    assert json.loads((tmp_path / "a" / "replica.json").read_text())["pledged"] == 2


async def test_a_folder_of_another_broker_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    with pytest.raises(OSError, match="is of broker broker-1, and the replica set of broker-2"):
        async with running(tmp_path, "broker-2"):
            pass


async def test_strangers_at_the_replica_port_harm_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        host, _, port = node.node.address.rpartition(":")
        for data in (b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\nAccept: */*\r\n\r\n", bytes(100)):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data)
            assert await reader.read() == b""
            writer.close()
        links = [await connect(node.node.address, node._link) for _ in range(MAX_LINKS)]
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()
        for link in links:
            link.close()
        await publish(node, b"one")
