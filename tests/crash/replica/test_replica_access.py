"""Operators at a standby: it checks its own clients, and the primary believes it."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from tests.crash.replica_cluster import Cluster, Clusters
from tests.crash.wire import until
from tests.interop.operator_routes import EVERYONE, OPERATORS, other_address, status

pytestmark = pytest.mark.crash

TOKEN = "0123456789abcdef0123"
machine = pytest.fixture(scope="module")(other_address)


class OpenCluster(Cluster):
    """Replicas whose HTTP listens on all addresses, so that clients have another address too."""

    def start_one(self, name: str) -> None:
        port = self.http[name].rpartition(":")[2]
        common, self.arguments = self.arguments, [*self.arguments, f"--http-address=0.0.0.0:{port}"]
        super().start_one(name)
        self.arguments = common


async def started(clusters: Clusters, *arguments: str) -> tuple[Cluster, str]:
    """Start three replicas with a topic. Returns them, and the name of a standby."""
    cluster = await clusters.start(arguments=arguments, kind=OpenCluster)
    standby = await cluster.standby()
    for route in EVERYONE:
        answer = await asyncio.to_thread(status, cluster.http[standby], route)
        assert answer[0] == 200, (route, answer)
    return cluster, standby


async def ask(address: str, route: tuple[str, str], token: str = "", **headers: str) -> int:
    return (await asyncio.to_thread(status, address, route, token, **headers))[0]


async def test_without_tokens_a_standby_forwards_for_clients_of_its_machine(
    clusters: Clusters, machine: str
) -> None:
    """To the primary all come from this machine: it is the standby that sees them."""
    cluster, standby = await started(clusters)
    local = cluster.http[standby]
    remote = f"{machine}:{local.rpartition(':')[2]}"
    for route in OPERATORS:
        assert await ask(local, route) == (404 if "pprof" in route[1] else 200), route
        assert await ask(remote, route) == 403, route
        assert await ask(local, route, **{"X-Forwarded-For": "127.0.0.1"}) == 403, route
    # yarl drops what follows a #, so the primary would see another path.
    assert await ask_raw(local, machine, "/channel/peek#z?topic=t&channel=c") == 403
    await cluster.stop()


async def ask_raw(local: str, machine: str, target: str) -> int:
    """Send a request from another address than loopback, as it is."""
    with socket.create_connection((machine, int(local.rpartition(":")[2])), 10) as raw:
        raw.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(1 << 16), b""))
    return int(answer.split()[1])


async def test_with_tokens_a_standby_checks_them_and_the_primary_does_not_again(
    tmp_path: Path, clusters: Clusters, machine: str
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    cluster, standby = await started(clusters, f"--operator-token-file={tokens}")
    local = cluster.http[standby]
    for address in (local, f"{machine}:{local.rpartition(':')[2]}"):
        for route in (*OPERATORS, ("GET", "/replica")):
            assert await ask(address, route) == 401, route
            assert await ask(address, route, TOKEN + "0") == 401, route
            answer = await ask(address, route, TOKEN)
            assert answer == (404 if "pprof" in route[1] else 200), route
        assert await ask(address, ("GET", "/replica/primary")) == 503
    # A primary that hangs does not keep a standby from refusing.
    primary = await cluster.primary()
    cluster.hang(primary)
    assert await ask(local, ("POST", "/call/delay.list")) == 401
    cluster.resume(primary)
    await cluster.in_sync(3)
    await cluster.stop()


async def test_the_health_of_a_standby_is_whether_it_follows_a_primary(
    clusters: Clusters,
) -> None:
    cluster, standby = await started(clusters)
    address = cluster.http[standby]

    async def ready() -> tuple[int, str]:
        code, text = await asyncio.to_thread(status, address, ("GET", "/health/ready"))
        fields = json.loads(text)
        assert fields["ready"] == (code == 200)
        return code, fields["reason"]

    assert await ready() == (200, "")
    others = [name for name in cluster.processes if name != standby]
    for name in others:
        cluster.kill(name)  # Alone it finds no primary, and becomes none.

    async def is_ready(expected: bool) -> bool:
        return ((await ready())[0] == 200) is expected

    await until(lambda: is_ready(False))
    assert (await ready())[1]
    assert await ask(address, ("GET", "/health/live")) == 200
    for name in others:
        cluster.start_one(name)
    await cluster.in_sync(3)
    await until(lambda: is_ready(True))
    await cluster.stop()
