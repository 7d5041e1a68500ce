"""Pull consumers in their own processes, killed beside their broker, and what they wrote down."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.crash import wire
from tests.crash.broker.test_kill import broker_on
from tests.crash.replica_cluster import ROOT
from tests.interop.connections import connected
from tests.ledger import Ledger
from tests.polling import until

from martlet.client import CallRefused
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

_QUEUES = 6


def handled(ledger: Ledger) -> set[str]:
    """The bodies that members have handled."""
    return {line.split()[4].decode() for line in ledger.lines() if line.startswith(b"handled")}


def check_order(ledger: Ledger) -> None:
    """Each member has handled each queue in order, from where it got it on."""
    last: dict[tuple[bytes, bytes], int] = {}
    for line in ledger.lines():
        event, member, queue, offset, *_ = line.split()
        if event == b"handled":
            assert int(offset) >= last[member, queue], line
        last[member, queue] = int(offset) + (event == b"handled")


@contextmanager
def members() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of members; those that are in the list at the end are killed."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def begin(broker: BrokerProcess, ledger: Ledger) -> subprocess.Popen[bytes]:
    arguments = "tests.crash.client.pull_member", broker.tcp_address, str(ledger.path)
    return subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT)


async def more(ledger: Ledger, count: int, answered: set[str]) -> None:
    """Wait until `count` more messages are handled, or all are."""
    target = min(len(handled(ledger)) + count, len(answered))
    await until(lambda: len(handled(ledger)) >= target)


async def nothing_left(broker: BrokerProcess) -> None:
    """Wait until everything is committed."""
    async with connected(broker) as connection:

        async def is_done() -> bool:
            with suppress(CallRefused):  # No member has joined yet.
                described = await connection.call("group.describe", topic="work", group="g")
                return not described.fields["lag"]
            return False

        await wire.until(is_done)


async def torture(folder: Path, rounds: int, seed: int, *arguments: str) -> None:
    chance, ledger, answered = random.Random(seed), Ledger(folder / "ledger"), set[str]()
    with broker_on(folder / "data", *arguments) as broker, members() as there:
        await wire.http(broker.http_address, f"/topic/create?topic=work&queues={_QUEUES}", b"")
        there += [begin(broker, ledger), begin(broker, ledger)]
        for number in range(rounds):
            for part_number in range(2 * _QUEUES):
                bodies = [f"{number}-{part_number}-{n}" for n in range(30)]
                await wire.http(broker.http_address, "/mpub?topic=work", "\n".join(bodies).encode())
                answered.update(bodies)
            await more(ledger, chance.randrange(1, 60), answered)
            doomed = there.pop(0)
            doomed.kill()
            doomed.wait()
            there.append(begin(broker, ledger))
            await more(ledger, chance.randrange(1, 60), answered)
            if number % 2:
                broker.kill()
                broker.start()
        await nothing_left(broker)
        assert "lost" not in broker.log()
    assert handled(ledger) == answered
    check_order(ledger)


async def test_pull_members_are_killed_and_miss_nothing(tmp_path: Path) -> None:
    await torture(tmp_path, 1, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_pull_members_are_killed_often(tmp_path: Path, flush: str) -> None:
    await torture(tmp_path, 20, 2, f"--flush={flush}")
