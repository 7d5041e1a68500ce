"""A replica that hangs is replaced, and wakes up: of two processes of one name, one counts."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.crash.replica.test_replicas import TOPIC, Publisher
from tests.crash.replica_cluster import LIMIT_S, Cluster
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
    cluster: Cluster, is_copy: bool, is_primary: bool
) -> None:
    publisher = Publisher(cluster)
    async with publisher:
        name = await cluster.primary() if is_primary else await cluster.standby()
        cluster.hang(name)
    if is_primary:  # Whoever is connected to it waits; others find the new primary.
        await cluster.primary(but=name)
    async with publisher:
        old = cluster.replace(name, is_copy=is_copy)
        await until_in_place(cluster, name)
        await publisher.answered_again()
        cluster.resume(old)
        await until_replaced(cluster, old)
        await publisher.answered_again()
        primary = await cluster.primary()
        cluster.kill(primary)
        await cluster.primary(but=primary)
        await publisher.answered_again()
        client = await Wire.open(cluster.tcp[old])
        client.send(pub(TOPIC, b"by the process that was replaced"))
        await client.ok()
        client.writer.close()
        cluster.start_one(primary)
        await until_in_place(cluster, primary)
    assert "stands down for good" in cluster.log(old)
    publisher.answered.add(b"by the process that was replaced")
    await publisher.receive_all()
