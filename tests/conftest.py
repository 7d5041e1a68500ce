"""How tests are spread where several processes run them: ``./run test`` has six.

A file's tests stay in one process, since they share servers; and all that share a Spark session do,
since a Java virtual machine costs ten seconds and a gigabyte.  What takes longest goes first.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from tests import brokers, children, template, time_limit

if TYPE_CHECKING:
    from tests.interop.certificates import Certificates

SPARK = "tests/spark/"
LONGEST = (
    SPARK,
    "tests/spark/write/test_sink_kill.py",
    "tests/spark_cluster/",
    "tests/crash/broker/test_kill.py",
)


# They would judge the machine: `tests.time_limit` ends what hangs.
hypothesis.settings.register_profile(
    "martlet", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("martlet")


def pytest_configure(config: pytest.Config) -> None:
    config.add_cleanup(children.guard())
    config.add_cleanup(template.install())
    config.pluginmanager.register(time_limit)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(time_limit.RunningTests())
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", default=None):
        gc.disable()  # This process collects tests.


def pytest_collection_finish() -> None:
    """Collect garbage again, but never look at the tests themselves."""
    gc.freeze()
    gc.enable()


broker = brokers.here()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    from tests.interop.certificates import Certificates

    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def same_logging() -> Iterator[None]:
    """Have no test find the logging of a command that another has run in this process."""
    logger = logging.getLogger("martlet")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    if before != (logger.handlers, logger.propagate, logger.level):
        logger.handlers[:], logger.propagate, level = before
        logger.setLevel(level)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(_process_of(item.nodeid)))


def _place(process: str) -> int:
    """Which is begun before others."""
    found = [place for place, name in enumerate(LONGEST) if process.startswith(name)]
    return found[-1] if found and (process == SPARK or found[-1]) else len(LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        """Sends a group of tests to one process, and no test to a second one if its process ends.

        The scheduling of xdist would send it again, and end that process, too, without end.
        """

        def _split_scope(self, nodeid: str) -> str:
            return _process_of(nodeid)

        def remove_node(self, node: Any) -> str | None:
            groups = self.assigned_work.pop(node)
            pending = (
                name for group in groups.values() for name, done in group.items() if not done
            )
            crashed = next(pending, None)
            if crashed is None:
                return None
            for scope, group in groups.items():
                if crashed in group:
                    group[crashed] = True
                if not all(group.values()):
                    self.workqueue[scope] = group
            for other in self.assigned_work:
                self._reschedule(other)
            return str(crashed)

    return GroupScheduling(config, log)


def _process_of(nodeid: str) -> str:
    """Return the group of a test; tests of one group stay in one process."""
    file = nodeid.partition("::")[0]
    return SPARK if file in _sharing() else file


@cache
def _sharing() -> frozenset[str]:
    """Return the files whose tests share a Spark session."""
    root = Path(__file__).parents[1]
    files = (root / SPARK).rglob("test_*.py")
    return frozenset(
        str(path.relative_to(root)) for path in files if "spark: SparkSession" in path.read_text()
    )
