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
        "broker": 17437,
        "cli": 7316,
        "client": 21540,
        "console": 6196,
        "layer": 492,
        "log": 5570,
        "lookup": 830,
        "migration": 1330,
        "native": 797,
        "options": 2215,
        "pipeline": 8281,
        "properties": 1888,
        "protocol": 2445,
        "replica": 3058,
        "schema": 2169,
        "server": 18594,
        "spark": 5578,
        "supervisor": 755,
        "testing": 1091,
    },
    "tests": {
        ".": 952,
        "browser": 633,
        "cluster": 1185,
        "crash": 5134,
        "data": 393,
        "docs": 729,
        "fuzz": 64,
        "interop": 24156,
        "property": 9618,
        "simulation": 1931,
        "spark": 7048,
        "spark_cluster": 357,
        "unit": 45788,
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
