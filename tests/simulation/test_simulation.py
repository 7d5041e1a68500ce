"""Clusters of replicas on a simulated clock, disk and network; `./run simulate` runs more."""

from __future__ import annotations

import pytest
from tests.simulation.cluster import Cluster
from tests.simulation.planted_bugs import PLANTED_BUGS, PlantedBug

SEEDS = 60
"""Enough for each planted bug, also when its seed finds it no longer."""


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_nothing_confirmed_is_lost(first: int) -> None:
    """A seed that fails is run again by `./run simulate --seed=N`."""
    elections = answered = 0
    for seed in range(first, first + 20):
        cluster = Cluster(seed)
        cluster.run()
        elections += cluster.oracle.elections
        answered += len(cluster.oracle.answered)
    assert elections > 20
    assert answered > 2000


@pytest.mark.parametrize("name", PLANTED_BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = PLANTED_BUGS[name]
    bug.plant(monkeypatch)
    with pytest.raises(AssertionError):
        find(bug)


def find(bug: PlantedBug) -> None:
    """Run what finds a bug: it raises AssertionError."""
    if bug.test is not None:
        bug.test()
        return
    for seed in (bug.seed, *range(SEEDS)):
        Cluster(seed, faults=bug.faults, **bug.options).run()
