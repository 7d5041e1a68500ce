"""How tests are spread where several processes run them: ``./run test`` has three.

A file's tests stay in one process, since they share servers; and all that use Spark do, since a
Java virtual machine costs ten seconds and a gigabyte.  They take the longest, so they go first.
"""

from __future__ import annotations

from typing import Any

import pytest

SPARK = "tests/spark/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(SPARK))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _process_of
    return scheduler


def _process_of(nodeid: str) -> str:
    """What stays in one process has the same of it."""
    return SPARK if nodeid.startswith(SPARK) else nodeid.partition("::")[0]
