"""Each package has a budget of lines, which only falls.

Lower a budget with the change that shrinks its package: what is gone stays gone. A package that has
to grow needs a decision record in ``docs/decisions``, which names the new budget.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLACK_LINES = 100
"""A package may be as far below its budget; further, the budget is lowered."""
BUDGETS = {
    "src/martlet": {
        ".": 1538,
        "arrow": 224,
        "broker": 17443,
        "cli": 7324,
        "client": 21572,
        "console": 6198,
        "layer": 492,
        "log": 5570,
        "lookup": 830,
        "migration": 1330,
        "native": 797,
        "options": 2215,
        "pipeline": 8419,
        "properties": 1960,
        "protocol": 2445,
        "reader": 3950,
        "replica": 3058,
        "schema": 2175,
        "server": 18648,
        "spark": 2749,
        "supervisor": 755,
        "testing": 1121,
    },
    "tests": {
        ".": 952,
        "browser": 633,
        "cluster": 1187,
        "crash": 5134,
        "data": 393,
        "docs": 729,
        "fuzz": 64,
        "interop": 24244,
        "property": 9618,
        "simulation": 1931,
        "spark": 8186,
        "spark_cluster": 474,
        "unit": 46442,
    },
}


def lines_of(folder: Path) -> dict[str, int]:
    """Return the lines of Python and C of each package; those of loose modules are of ``.``."""
    lines: Counter[str] = Counter()
    for path in [*folder.rglob("*.py"), *folder.rglob("*.c")]:
        package, _, rest = str(path.relative_to(folder)).partition("/")
        lines[package if rest else "."] += path.read_bytes().count(b"\n")
    return dict(lines)


@pytest.mark.parametrize("folder", BUDGETS)
def test_a_package_keeps_its_budget_of_lines_and_a_smaller_one_lowers_it(folder: str) -> None:
    budgets, lines = BUDGETS[folder], lines_of(ROOT / folder)
    assert budgets.keys() == lines.keys()
    over = {name: count for name, count in lines.items() if count > budgets[name]}
    assert not over, "these outgrew their budgets"
    below = {name: count for name, count in lines.items() if count < budgets[name] - SLACK_LINES}
    assert not below, "lower these budgets"
