"""Plain HTTP over replicas: by a standby, and through a failover."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from tests.crash.replica_cluster import Cluster, Clusters
from tests.interop.asking import ask, until
from tests.interop.auth_server import EVERYTHING, Answer, AuthServer, allowed
from tests.interop.http_client import HttpClient
from tests.interop.operator_routes import status

pytestmark = pytest.mark.crash


def client_of(cluster: Cluster, name: str) -> HttpClient:
    return HttpClient(cluster.http[name], "t")


def client_count(address: str) -> int:
    stats: Any = ask(address, "/stats?format=json&topic=t")
    return int(stats["topics"][0]["channels"][0]["client_count"])


def lose_a_poll(standby: str, primary: str) -> None:
    """Poll by a standby, and disconnect once the primary has the poll; return once it is gone."""
    host, port = standby.split(":")
    with socket.create_connection((host, int(port)), 10) as raw:
        raw.sendall(
            b"POST /v1/topics/t/channels/c/receive?wait=60 HTTP/1.1\r\n"
            b"Host: x\r\nContent-Length: 0\r\n\r\n"
        )
        until(lambda: client_count(primary) == 1)
    until(lambda: client_count(primary) == 0)


@pytest.mark.parametrize("flag", ["--replication=sync", "--replication=async"])
async def test_receipts_are_valid_by_any_replica_and_after_a_failover(
    clusters: Clusters, flag: str
) -> None:
    cluster = await clusters.start(arguments=(flag,))
    primary, standby = await cluster.primary(), await cluster.standby()
    client = client_of(cluster, standby)
    assert await asyncio.to_thread(client.receive) == []
    await asyncio.to_thread(lose_a_poll, cluster.http[standby], cluster.http[primary])
    assert (await asyncio.to_thread(client.publish, "a", "b", "c", "d")).status == 200
    held = await asyncio.to_thread(lambda: client.receive(max=3))
    assert [message["attempts"] for message in held] == [1, 1, 1]
    first = await asyncio.to_thread(client_of(cluster, primary).answer, "finish", held[:1])
    assert first == ["OK"]
    if flag.endswith("=async"):
        await cluster.alike()
    cluster.kill(primary)
    await cluster.primary(but=primary)
    # No one has received them since: a receipt of the former primary finishes one.
    assert await asyncio.to_thread(client.answer, "finish", held[:2]) == ["NOT_IN_FLIGHT", "OK"]
    left = await asyncio.to_thread(lambda: client.receive(max=10, wait=5))
    assert sorted((message["body"], message["attempts"]) for message in left) == [
        ("c", 2),
        ("d", 1),
    ]
    assert await asyncio.to_thread(client.answer, "finish", held[2:]) == ["NOT_IN_FLIGHT"]
    assert await asyncio.to_thread(client.answer, "finish", left) == ["OK", "OK"]
    cluster.start_one(primary)
    await cluster.in_sync(3)
    await cluster.stop()


async def test_a_standby_passes_the_secret_on_and_refuses_pages_of_other_sites(
    clusters: Clusters,
) -> None:
    with AuthServer({"s3cret": Answer(allowed(EVERYTHING))}) as server:
        cluster = await clusters.start(arguments=(f"--auth-http-address={server.address}",))
        address = cluster.http[await cluster.standby()]
        for secret, code in (("s3cret", 200), ("wrong", 403), ("", 401)):
            client = HttpClient(address, "t", headers={"X-Martlet-Auth": secret})
            assert (await asyncio.to_thread(client.publish, "x")).status == code
        assert {dict(message.query)["remote_ip"] for message in server.asked} == {"127.0.0.1"}
        route = ("POST", "/v1/topics/t/channels/c/receive")
        page = {"Origin": "http://evil.example", "X-Martlet-Auth": "s3cret"}
        code, text = await asyncio.to_thread(lambda: status(address, route, **page))
        assert (code, "FOREIGN_PAGE" in text) == (403, True)
        await cluster.stop()
