"""Groups with a retry policy: what kills its members becomes a dead letter, and nothing beside.

Members are processes of their own; all of them write down which messages they begin with.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash import wire
from tests.crash.replica_cluster import ROOT
from tests.interop.connections import connected
from tests.ledger import Ledger
from tests.polling import until

from martlet.client import Producer
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

_LIMIT_S = 60.0
_GOOD = [b"good %d" % n for n in range(100)]


class Scene:
    """A broker with a group that has a retry policy, and the group's members."""

    def __init__(self, broker: BrokerProcess, path: Path) -> None:
        self.broker = broker
        self.ledger = Ledger(path / "ledger")
        self.processes: list[subprocess.Popen[bytes]] = []

    async def call(self, method: str, **fields: Any) -> dict[str, Any]:
        async with connected(self.broker) as connection:
            return dict((await connection.call(method, **fields)).fields)

    async def begin(self, bodies: list[bytes], **policy: Any) -> None:
        """Publish messages for a group that has that policy."""
        await self.call("topic.create", topic="work")
        await self.call("group.join", topic="work", group="g", client_id="first", start="first")
        policy = {"retry_delays_ms": [100], **policy}
        await self.call("channel.configure", topic="work", channel="g", policy=policy)
        async with Producer(self.broker.tcp_address) as producer:
            await producer.publish_many("work", bodies)

    def member(
        self, concurrency: int = 1, handling_s: float = 0.0, how: str = "run"
    ) -> subprocess.Popen[bytes]:
        arguments = [self.broker.tcp_address, self.ledger.path, concurrency, handling_s, how]
        command = [sys.executable, "-m", "tests.crash.client.poisoned_member"]
        process = subprocess.Popen([*command, *map(str, arguments)], cwd=ROOT)
        self.processes.append(process)
        return process

    def begun(self) -> Counter[bytes]:
        """How often each message was begun with."""
        return Counter(self.ledger.lines())

    async def killed(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until a message has killed a member."""
        async with asyncio.timeout(_LIMIT_S):
            assert await asyncio.to_thread(process.wait) == 9

    async def stopped(self, process: subprocess.Popen[bytes]) -> None:
        """Have a member end as it should."""
        process.terminate()
        async with asyncio.timeout(_LIMIT_S):
            assert await asyncio.to_thread(process.wait) == 0

    async def done(self) -> None:
        """Wait until everything is committed."""

        async def is_done() -> bool:
            return not (await self.queue())["lag"]

        await wire.until(is_done)

    async def queue(self) -> dict[str, Any]:
        described = await self.call("group.describe", topic="work", group="g")
        return dict(described["queues"][0])

    async def dead(self) -> list[dict[str, Any]]:
        listed = await self.call("dead_letters.list")
        if not listed["dead_letter_topics"]:
            return []
        shown = await self.call("dead_letters.show", topic="work", channel="g")
        return list(shown["messages"])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with BrokerProcess(tmp_path / "data") as broker:
        scene = Scene(broker, tmp_path)
        try:
            yield scene
        finally:
            for process in scene.processes:
                process.kill()
                process.wait()


async def test_a_slow_handler_with_many_prefetched_messages_makes_no_dead_letters(
    scene: Scene,
) -> None:
    await scene.begin(_GOOD[:40], max_attempts=1)
    scene.member(handling_s=0.05)
    await scene.done()
    assert scene.begun() == dict.fromkeys(_GOOD[:40], 1)
    assert await scene.dead() == []


@pytest.mark.parametrize(
    ("concurrency", "handling_s", "how"),
    [(1, 0.0, "run"), (1, 0.005, "run"), (8, 0.005, "run"), (1, 0.0, "batches")],
)
async def test_a_message_that_kills_its_member_is_dead_after_three_and_its_neighbours_never(
    scene: Scene, concurrency: int, handling_s: float, how: str
) -> None:
    await scene.begin([*_GOOD[:50], b"poison", *_GOOD[50:]], max_attempts=3)
    for _ in range(3):
        await scene.killed(scene.member(concurrency, handling_s, how))
        assert await scene.dead() == []
    last = scene.member(concurrency, handling_s, how)
    await scene.done()
    assert last.poll() is None
    (letter,) = await scene.dead()
    assert letter["reason"] == "disconnected"
    begun = scene.begun()
    assert begun[b"poison"] == 3
    assert begun.keys() == {b"poison", *_GOOD}
    assert (await scene.queue())["failures"] == {}


async def test_a_crash_charges_only_started_messages(scene: Scene) -> None:
    await scene.begin([b"good 0", b"good 1", b"poison", *_GOOD[2:]], max_attempts=3)
    await scene.killed(scene.member(handling_s=0.02))
    assert (await scene.queue())["failures"] == {"2": 1}


async def test_failures_outlive_a_broker_that_is_killed(scene: Scene) -> None:
    await scene.begin([*_GOOD[:5], b"poison", *_GOOD[5:]], max_attempts=3)
    for count in (1, 2, 3):
        await scene.killed(scene.member(handling_s=0.01))
        failures = (await scene.queue())["failures"]
        assert failures["5"] == count
        await asyncio.to_thread(scene.broker.kill)
        await asyncio.to_thread(scene.broker.restart)
        assert (await scene.queue())["failures"] == failures
    scene.member()
    await scene.done()
    assert len(await scene.dead()) == 1
    assert scene.begun()[b"poison"] == 3


async def test_clean_stops_charge_nothing_and_delay_nothing(scene: Scene) -> None:
    """Neither of members nor of the broker."""
    await scene.begin(_GOOD[:50], max_attempts=2, retry_delays_ms=[3_600_000])
    for _ in range(3):
        before = scene.begun().total()
        process = scene.member(concurrency=4, handling_s=0.05)
        await until(lambda before=before: scene.begun().total() >= before + 4)  # type: ignore[misc]
        await scene.stopped(process)
        assert (await scene.queue())["failures"] == {}
    member = scene.member(concurrency=4, handling_s=0.05)
    await until(lambda: len(scene.begun()) >= 20)
    await asyncio.to_thread(scene.broker.stop)
    await asyncio.to_thread(scene.broker.restart)
    await scene.done()
    assert member.poll() is None
    assert (await scene.queue())["failures"] == {}
    assert await scene.dead() == []
    assert scene.begun().keys() == set(_GOOD[:50])
