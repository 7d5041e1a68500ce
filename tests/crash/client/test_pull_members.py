"""Pull consumers in their own processes, killed beside their broker, and what they wrote down."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.crash.broker.test_kill import broker_on
from tests.crash.wire import http
from tests.interop.connections import connect

from martlet.client import CallRefused
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

_PROGRAM = Path(__file__).with_name("pull_member.py")
_QUEUES = 6
_LIMIT_S = 60.0


class Ledger:
    """The records of the members."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def handled(self) -> set[str]:
        """The bodies."""
        lines = self.path.read_text().splitlines()
        return {line.split()[4] for line in lines if line.startswith("handled")}

    def check_order(self) -> None:
        """Each member has handled each queue in order, from where it got it on."""
        last: dict[tuple[str, str], int] = {}
        for line in self.path.read_text().splitlines():
            event, member, queue, offset, *_ = line.split()
            if event == "handled":
                assert int(offset) >= last[member, queue], line
            last[member, queue] = int(offset) + (event == "handled")


@contextmanager
def members() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of members; those that are in the list at the end are killed."""
    some: list[subprocess.Popen[bytes]] = []
    try:
        yield some
    finally:
        for one in some:
            one.kill()
            one.wait()


def begin(broker: BrokerProcess, ledger: Ledger) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, _PROGRAM, broker.tcp_address, ledger.path])


async def more(ledger: Ledger, count: int, answered: set[str]) -> None:
    """Wait until `count` more messages are handled, or all are."""
    wanted = min(len(ledger.handled()) + count, len(answered))
    ends_s = time.monotonic() + _LIMIT_S
    while (handled := len(ledger.handled())) < wanted:
        assert time.monotonic() < ends_s, f"{handled} of {wanted} came"
        await asyncio.sleep(0.02)


async def nothing_left(broker: BrokerProcess) -> None:
    """Wait until everything is committed."""
    connection = await connect(broker)
    ends_s = time.monotonic() + _LIMIT_S
    lag: object = "all"
    try:
        while time.monotonic() < ends_s:
            try:
                description = await connection.call("group.describe", topic="work", group="g")
            except CallRefused:
                pass  # No member has joined yet.
            else:
                lag = description.fields["lag"]
                if not lag:
                    return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{lag} is left")
    finally:
        connection.abort()


async def torture(folder: Path, rounds: int, seed: int, *arguments: str) -> None:
    chance, ledger, answered = random.Random(seed), Ledger(folder / "ledger"), set[str]()
    with broker_on(folder / "data", *arguments) as broker, members() as there:
        await http(broker.http_address, f"/topic/create?topic=work&queues={_QUEUES}", b"")
        there += [begin(broker, ledger), begin(broker, ledger)]
        for number in range(rounds):
            for part in range(2 * _QUEUES):
                bodies = [f"{number}-{part}-{n}" for n in range(30)]
                await http(broker.http_address, "/mpub?topic=work", "\n".join(bodies).encode())
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
    assert ledger.handled() == answered
    ledger.check_order()


async def test_pull_members_are_killed_and_miss_nothing(tmp_path: Path) -> None:
    await torture(tmp_path, 1, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_pull_members_are_killed_often(tmp_path: Path, flush: str) -> None:
    await torture(tmp_path, 20, 2, f"--flush={flush}")
