"""Nothing is lost or stored twice, whichever host of a broker with replicas fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.hosts import unshare

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(
        not (os.environ.get("MARTLET_ETCD") or shutil.which("etcd")),
        reason="no etcd on PATH, and MARTLET_ETCD names none",
    ),
    pytest.mark.skipif(unshare() is None, reason="no network namespaces"),
]
HERE = Path(__file__).parents[2]


def drill(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.cluster.replica_drill", "--json", *arguments]
    done = subprocess.run(command, cwd=HERE, capture_output=True, check=False)
    assert done.stdout, done.stderr.decode()
    outcome: dict[str, Any] = json.loads(done.stdout)
    assert (outcome["lost"], outcome["doubled"]) == (0, 0), done.stderr.decode()
    assert outcome["answered"] > 100 * len(outcome["deeds"])
    return outcome


def test_a_primary_is_killed() -> None:
    outcome = drill("--deeds=kill", "--hosts=primary", "--away-s=0.3")
    assert len(outcome["deeds"]) == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("replicas", "flags"), [(2, []), (3, []), (5, []), (3, ["--flush=sync"])])
def test_each_host_is_killed_cut_off_and_stopped(replicas: int, flags: list[str]) -> None:
    outcome = drill(f"--replicas={replicas}", *flags)
    assert len(outcome["deeds"]) == 3 * (replicas + 3)
    for deed in outcome["deeds"]:
        assert deed["answered_gap_ms"] < 10_000, deed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_host_is_cut_off_in_one_direction() -> None:
    outcome = drill("--deeds=cut-in,cut-out")
    assert len(outcome["deeds"]) == 2 * 6
    for deed in outcome["deeds"]:
        assert deed["answered_gap_ms"] < 10_000, deed


@pytest.mark.slow
def test_sends_are_answered_while_all_of_etcd_is_cut_off() -> None:
    (deed,) = drill("--deeds=cut-etcd", "--hosts=primary", "--away-s=10")["deeds"]
    assert deed["failovers"] == 0
    assert deed["answered_gap_ms"] < deed["away_ms"] / 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_primary_that_is_stopped_or_hands_over_needs_one_election() -> None:
    outcome = drill("--deeds=term,hand-over", "--hosts=primary", "--count=5")
    assert [deed["failovers"] for deed in outcome["deeds"]] == [1] * 10


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_primaries_are_killed_again_and_again() -> None:
    drill("--deeds=kill", "--hosts=primary", "--count=20", "--away-s=0.3")
