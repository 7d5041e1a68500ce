"""What tests that kill processes share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.crash.replica_cluster import Cluster, Clusters


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    opened = Clusters(tmp_path)
    yield opened
    opened.kill_all()


@pytest.fixture
async def cluster(clusters: Clusters) -> AsyncIterator[Cluster]:
    """Three replicas in sync, which end well after the test."""
    started = await clusters.start()
    yield started
    await started.stop()
