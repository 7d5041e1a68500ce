"""Replicas of an earlier version become today's one after the other, under load, and go back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.crash.replica.test_failover import Load, check, loading
from tests.crash.replica.test_replicas import TOPIC
from tests.crash.replica_cluster import ROOT, Cluster, Clusters, running_from
from tests.crash.wire import GONE, http, until

from martlet.client import Consumer

pytestmark = [pytest.mark.crash, pytest.mark.slow]

EARLIER = "0129fad6e18a2fb825a267cd704aded57c845d96"
"""The first commit with replicas whose folders today's version must read."""


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The folder with the package of the earlier version."""
    archive = tmp_path / "earlier.tar"
    command = ["git", "archive", f"--output={archive}", EARLIER, "src"]
    archived = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if archived.returncode != 0:
        pytest.skip(f"the history of git lacks {EARLIER[:7]}: {archived.stderr.strip()}")
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    source = tmp_path / "src"
    done = subprocess.run(
        [sys.executable, "-c", "import martlet; print(martlet.__file__)"],
        env=running_from(source),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(source)
    return source


async def replace_all(cluster: Cluster, load: Load, source: Path | None) -> None:
    """Stop each process and start it from another folder: the standbys first."""
    cluster.source = source
    primary = await cluster.primary()
    for name in sorted(cluster.tcp, key=lambda name: name == primary):
        await load.more(300)
        cluster.terminate(name)
        await load.more(300)
        cluster.start_one(name)
        await until(lambda name=name: follows(cluster, name))  # type: ignore[misc]
    await load.more(300)


async def follows(cluster: Cluster, name: str) -> bool:
    """Whether a replica is in sync and its process is there: the set keeps it for a while."""
    primary = await cluster.primary()
    if primary == name:
        return False
    try:
        report = json.loads(await http(cluster.http[primary], "/replica"))
    except GONE:
        return False
    fields = report.get("replicas", {}).get(name, {})
    return bool(fields.get("is_in_sync") and fields.get("is_whole"))


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_each_send_is_stored_once_while_replicas_change_to_this_version_and_back(
    clusters: Clusters, earlier: Path, flush: str
) -> None:
    cluster = await clusters.start(flush=flush, source=earlier)
    async with loading(cluster.brokers) as (_, load):
        await replace_all(cluster, load, None)
        await replace_all(cluster, load, earlier)
        await replace_all(cluster, load, None)
        await load.end()
    await check(load, Consumer(TOPIC, "c", cluster.brokers[:1], max_in_flight=1000))
    await cluster.alike()
    await cluster.stop()
