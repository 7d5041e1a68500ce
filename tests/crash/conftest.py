"""What tests that kill processes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.replica_cluster import Clusters


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    opened = Clusters(tmp_path)
    yield opened
    opened.kill_all()
