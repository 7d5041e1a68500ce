"""NSQ clients that others wrote, as they come, while primaries are killed.

One agent of each library consumes by the addresses of all replicas, and another one by a lookup
daemon. Nothing that was answered OK is lost, and the pauses of both are printed.
``MARTLET_FAILOVERS`` says how many primaries are killed; by default it is one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.crash.replica_cluster import Cluster, Clusters
from tests.crash.wire import mpub
from tests.interop.agent import Agent
from tests.interop.asking import until
from tests.interop.lookup.test_lookup import producers
from tests.interop.lookup_process import LookupProcess
from tests.interop.server.nsq.test_clients import node_modules

from martlet.lookup.daemon import Lookup
from martlet.options import LookupOptions

pytestmark = [pytest.mark.crash, pytest.mark.interop]

FAILOVERS = int(os.environ.get("MARTLET_FAILOVERS", "1"))
AGENTS = Path(__file__).parents[1] / "agents"
ROOT = Path(__file__).parents[3]
TOPICS = ["address", "lookup"]
"""Named after how their consumers find the primary."""
Command = tuple[list[str], dict[str, Any]]
"""The command of an agent, and how its process is to be made."""
GO_MODULE = "module agent\n\ngo 1.21\n\nrequire github.com/nsqio/go-nsq v1.1.0\n"
BACK_S = 40.0
"""pynsq waits 15 s before it connects to an address again; ansq 2, 4, 8 s."""


class Watched:
    """An agent, with the pauses that it has had."""

    def __init__(self, topic: str, agent: Agent) -> None:
        self.topic = topic
        self.agent = agent
        self.pauses_s: dict[str, list[float]] = {"published": [], "received": []}

    async def wait(self, name: str, holds: Callable[[], object]) -> None:
        await asyncio.to_thread(self.agent.wait, f"{self.topic}: {name}", BACK_S, holds)

    async def going_on(self, since: int = 0) -> None:
        """Wait until something is published that is also received."""

        def both() -> bool:
            events = self.agent.events[since:]
            first, second = (
                {event["body"] for event in events if event["event"] == name}
                for name in ("published", "received")
            )
            return bool(first & second)

        await self.wait("published and received", both)

    def note_pauses(self, since: int) -> None:
        """Note the longest pauses from an event on."""
        for name, pauses in self.pauses_s.items():
            before = [
                event["at_s"] for event in self.agent.events[:since] if event["event"] == name
            ]
            after = [event["at_s"] for event in self.agent.events[since:] if event["event"] == name]
            times = [*before[-1:], *after]
            pauses.append(max(b - a for a, b in itertools.pairwise(times)))

    async def has_all(self) -> None:
        """Wait until all that was answered OK by now is received."""
        owed = set(self.agent.bodies("published"))
        await self.wait("all received", lambda: owed <= set(self.agent.bodies("received")))


def how_to_run(library: str, request: pytest.FixtureRequest, folder: Path) -> Command:
    if library == "go-nsq":
        return [str(built(folder))], {}
    if library == "nsqjs":
        environment = {**os.environ, "NODE_PATH": str(node_modules(request))}
        return ["node", str(AGENTS / "nsqjs_agent.js")], {"env": environment}
    return [sys.executable, "-m", f"tests.crash.agents.{library}_agent"], {"cwd": ROOT}


def built(folder: Path) -> Path:
    """Build the agent of go-nsq."""
    if not shutil.which("go"):
        pytest.skip("no go here to build the agent of go-nsq with")
    (folder / "go.mod").write_text(GO_MODULE)
    shutil.copy(AGENTS / "go_nsq" / "main.go", folder)
    done = subprocess.run(
        ["go", "build", "-mod=mod", "-o", "agent", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if "proxy" in done.stderr or "dial tcp" in done.stderr:
        pytest.skip(f"go could not fetch go-nsq: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    return folder / "agent"


@pytest.fixture(params=["go-nsq", "pynsq", "nsqjs", "ansq"])
def library(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Command]:
    """A library, and how to run its agent."""
    return request.param, how_to_run(request.param, request, tmp_path)


@pytest.fixture
async def site(clusters: Clusters) -> AsyncIterator[tuple[Cluster, LookupProcess]]:
    """Three replicas of a broker that has the topics, and a lookup daemon that knows it."""
    with LookupProcess() as lookup:
        flags = (f"--lookupd-tcp-address={lookup.tcp_address}", "--http-address=127.0.0.1:0")
        cluster = await clusters.start(arguments=flags)
        wire = await cluster.connect()
        for topic in TOPICS:
            wire.send(mpub(topic, [b"-1"]))
            await wire.ok()
            await asyncio.to_thread(until, partial(producers, lookup, topic))
        wire.writer.close()
        yield cluster, lookup
        await cluster.stop()


@pytest.mark.timeout(180 + 2 * BACK_S * FAILOVERS)
async def test_clients_of_others_lose_nothing(
    library: tuple[str, Command], site: tuple[Cluster, LookupProcess]
) -> None:
    name, (command, options) = library
    cluster, lookup = site
    topics = ["lookup"] if name == "pynsq" and FAILOVERS == 1 else TOPICS
    with ExitStack() as stack:
        watched = []
        for topic in topics:
            flags = {
                "topic": topic,
                "channel": "channel",
                "addresses": cluster.brokers,
                "lookup": lookup.http_address if topic == "lookup" else "",
            }
            agent = stack.enter_context(Agent([*command, json.dumps(flags)], **options))
            watched.append(Watched(topic, agent))
        for _ in range(FAILOVERS):
            await kill_primary(cluster, watched)
        for client in watched:
            await client.has_all()
    for client in watched:
        for event, pauses in client.pauses_s.items():
            shown = ", ".join(f"{pause:.2f}" for pause in pauses)
            print(f"{name} by {client.topic}, {event}: pauses of {shown} s")


async def kill_primary(cluster: Cluster, watched: list[Watched]) -> None:
    """Kill it, wait until all agents have gone on, and start it again as a standby."""
    for client in watched:
        await client.going_on(len(client.agent.events))
    victim = await cluster.primary()
    counts = [len(client.agent.events) for client in watched]
    cluster.kill(victim)
    await cluster.primary(but=victim)
    for client, count in zip(watched, counts, strict=True):
        await client.going_on(len(client.agent.events))
        client.note_pauses(count)
    cluster.start_one(victim)
    # The replica set names it until others miss it, so it may have it and not know it yet.
    await cluster.alike(but_for_bytes=1 << 20)
    await cluster.in_sync(3)


async def test_a_lookup_daemon_forgets_a_primary_that_hangs(
    site: tuple[Cluster, LookupProcess],
) -> None:
    """Its connection to the daemon stays open; once it goes on, it is no primary any more."""
    cluster, lookup = site
    hung = await cluster.primary()
    cluster.hang(hung)
    listed = [cluster.tcp[await cluster.primary(but=hung)]]
    await asyncio.to_thread(until, lambda: producers(lookup, "lookup") == listed)
    cluster.resume(hung)
    await cluster.alike()
    assert producers(lookup, "lookup") == listed


class Consumer(asyncio.Protocol):
    """A connection to a broker that looks what a lookup daemon knows when it is lost."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self.found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_lost(self, error: Exception | None) -> None:
        self.found.set_result(bool(self._lookup.registry.peers))


async def test_a_lookup_daemon_learns_of_a_kill_before_consumers(clusters: Clusters) -> None:
    """They ask it at once, and must not be led to the one that was killed."""
    lookup = Lookup(LookupOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0"))
    await lookup.start()
    flags = (f"--lookupd-tcp-address={lookup.tcp_address}", "--http-address=127.0.0.1:0")
    try:
        cluster = await clusters.start(arguments=flags)
        primary = await cluster.primary()
        async with asyncio.timeout(BACK_S):
            while not lookup.registry.peers:  # noqa: ASYNC110, it tells nobody
                await asyncio.sleep(0.01)
        host, _, port = cluster.tcp[primary].rpartition(":")
        consumers = [Consumer(lookup) for _ in range(300)]
        for consumer in consumers:
            await asyncio.get_running_loop().create_connection(lambda: consumer, host, int(port))  # noqa: B023
        cluster.kill(primary)
        would_find = await asyncio.gather(*(consumer.found for consumer in consumers))
        assert not any(would_find)
        await cluster.store.close()
    finally:
        clusters.kill_all()
        await lookup.stop()
