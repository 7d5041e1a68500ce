"""A replica that hangs is replaced, and wakes up: of two processes of one name, one counts."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest
from tests.crash.replica.test_replicas import TOPIC, Publisher, received_all
from tests.crash.replica_cluster import LIMIT_S, Cluster, Clusters
from tests.crash.wire import Wire, http, pub

pytestmark = pytest.mark.crash


async def until_in_place(cluster: Cluster, name: str) -> None:
    """Wait until a new process is a replica, and counts."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            seen = await cluster.store.read()
            replica_set, presence = seen.replica_set, seen.presences.get(name)
            assert replica_set is not None
            if (
                replica_set.replicas[name] == cluster.addresses[name]
                and len(replica_set.in_sync) == 3
                and presence is not None
                and presence.instance == replica_set.instance_of(name)
                and presence.is_whole
            ):
                return
            await asyncio.sleep(0.05)  # The store calls nobody.


async def until_replaced(cluster: Cluster, old: str) -> None:
    """Wait until a process says that it stands down, at /replica and in the metadata store."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            said = json.loads(await http(cluster.http[old], "/replica"))
            shown = (await cluster.store.read()).presences.values()
            # A primary reads its log again before it says so.
            is_said = said["role"] == "waiting" and "stands down for good" in said["problem"]
            if is_said and any("for good" in presence.problem for presence in shown):
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_copy", [False, True])
@pytest.mark.parametrize("is_primary", [False, True])
async def test_a_replica_that_wakes_up_after_it_was_replaced_takes_no_part(
    clusters: Clusters, is_copy: bool, is_primary: bool
) -> None:
    cluster = await clusters.start()
    publisher = Publisher(cluster)
    publishing = asyncio.create_task(publisher.run())
    await publisher.answered_again()
    primary = await cluster.primary()
    assert primary is not None
    name = primary if is_primary else next(other for other in cluster.tcp if other != primary)
    if is_primary:
        # Whoever is connected to it waits; others find the new primary.
        publishing.cancel()
    cluster.hang(name)
    if is_primary:
        await cluster.another_primary(name)
        publishing = asyncio.create_task(publisher.run())
    await publisher.answered_again()
    old = cluster.replace(name, is_copy=is_copy)
    await until_in_place(cluster, name)
    await publisher.answered_again()
    cluster.processes[old].send_signal(signal.SIGCONT)
    await until_replaced(cluster, old)
    await publisher.answered_again()
    primary = await cluster.primary()
    assert primary is not None
    cluster.kill(primary)
    await cluster.another_primary(primary)
    await publisher.answered_again()
    client = await Wire.open(cluster.tcp[old])
    client.send(pub(TOPIC, b"by the process that was replaced"))
    await client.ok()
    client.writer.close()
    cluster.start_one(primary)
    await until_in_place(cluster, primary)
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)
    log = (cluster.folder / f"{old}.log").read_text()
    assert "stands down for good" in log
    publisher.answered.add(b"by the process that was replaced")
    assert publisher.answered <= await received_all(cluster, publisher.answered)
    await cluster.stop()
