"""How tests are spread where several processes run them: ``./run test`` has three.

A file's tests stay in one process, since they share servers; and all that use Spark do, since a
Java virtual machine costs ten seconds and a gigabyte.  They take the longest, so they go first.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


# First, since the plugin reads the marks where others change the items too.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(_HERE)
        group = "spark" if path.parts[0] == "spark" else str(path)
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _HERE / "spark" not in item.path.parents)
