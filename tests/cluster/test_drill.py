"""Nothing is lost, and consumption goes on, whichever host of a cluster is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.crash
HERE = Path(__file__).parents[2]
POLL_S = 3
"""How often consumers look for brokers: nothing may take longer than that."""


def drill(*arguments: str, poll_s: float = POLL_S) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.cluster.drill", "--json", f"--poll-s={poll_s}"]
    done = subprocess.run([*command, *arguments], cwd=HERE, capture_output=True, check=False)
    assert done.stdout, done.stderr.decode()
    outcome: dict[str, Any] = json.loads(done.stdout)
    assert outcome["lost"] == 0, done.stderr.decode()
    assert outcome["answered"] > 100 * len(outcome["deeds"])
    for deed in outcome["deeds"]:
        assert deed["handled_gap_ms"] < 1000 * POLL_S, deed
        assert deed["answered_gap_ms"] < 1000 * POLL_S, deed
    return outcome


def test_a_broker_and_a_consumer_are_killed() -> None:
    few = ("--brokers=2", "--lookups=1", "--consumers=2", "--producers=1", "--away-s=0.3")
    outcome = drill(*few, "--deeds=kill", "--hosts=broker-1,consumer-1", poll_s=0.5)
    assert [deed["host"] for deed in outcome["deeds"]] == ["broker-1", "consumer-1"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_host_is_killed_cut_off_and_stopped() -> None:
    outcome = drill()
    ways = 3 if outcome["network"] == "namespaces" else 2
    assert len(outcome["deeds"]) == ways * (3 + 2 + 4 + 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_brokers_are_found_again_while_a_lookup_daemon_is_away() -> None:
    outcome = drill("--without=lookup-1", "--deeds=kill,cut", "--hosts=broker")
    for deed in outcome["deeds"]:
        assert deed["again_ms"] < 1000 * 2 * POLL_S, deed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hosts_on_loopback_addresses() -> None:
    outcome = drill("--loopback", "--deeds=stop,cut", "--hosts=broker-1,lookup-1,consumer-1")
    assert outcome["network"] == "loopback"
    assert [deed["deed"] for deed in outcome["deeds"]] == ["stop"] * 3
