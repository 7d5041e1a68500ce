"""Groups whose members and whose broker are killed, and what the ledger says afterwards.

A member that is killed leaves what it fetched and did not commit to the others; a broker that is
killed may have forgotten the commits of its last journal interval, and no earlier ones.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from tests.crash.broker.test_kill import LOAD_S, broker_on
from tests.crash.load import JournalSteps, Ledger, produce, until_gone
from tests.crash.wire import http

from martlet.addresses import Address
from martlet.client import CallRefused, ClientError, Identity
from martlet.client.transport.connection import Connection
from martlet.protocol.nsq.frames import FrameSplitter
from martlet.protocol.nsq.message_run import MessageRun
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

TOPIC, GROUP = "work", "g"
_PLACE = {"topic": TOPIC, "group": GROUP}
_MEMBERS = 3
_QUEUES = 4


class Offsets:
    """Offsets of a group as its members know them, over many lives of broker and members."""

    def __init__(self) -> None:
        self.fetched: dict[int, int] = {}
        """By queue, the offset up to which every message was fetched and handled."""
        self.journaled: dict[int, int] = {}
        """Committed, and surely written down."""
        self.commits = 0
        self.enough = 0
        self.reached = asyncio.Event()
        """There were enough commits."""
        self.complaints: list[str] = []

    def committed(self) -> None:
        self.commits += 1
        if self.commits >= self.enough:
            self.reached.set()

    async def wait_for(self, more: int) -> None:
        """Return after `more` further commits."""
        self.enough = self.commits + more
        self.reached.clear()
        await self.reached.wait()

    def granted(self, queue: int, offset: int) -> None:
        """Check an offset at which a member is to begin."""
        if offset > self.fetched.get(queue, 0):
            self.complaints.append(f"queue {queue} goes on at {offset}: some were never fetched")
        if offset < self.journaled.get(queue, 0):
            self.complaints.append(f"queue {queue} goes back to {offset}, behind a commit")


class Killed(Exception):
    """A member has made all its calls."""


class Member:
    """A member in one life: fetches, handles, commits, and is killed at some time."""

    def __init__(
        self, ledger: Ledger, offsets: Offsets, connection: Connection, name: str, calls: int
    ) -> None:
        self._calls_left = calls
        self._ledger = ledger
        self._offsets = offsets
        self._connection = connection
        self._name = name
        self._member = ""
        self._generation = 0
        self._places: dict[int, int] = {}
        self._since: dict[int, int] = {}
        self._unsure: deque[tuple[int, int, int]] = deque()
        self._journal = JournalSteps()

    async def call(self, method: str, **fields: Any) -> tuple[Any, memoryview]:
        if not self._calls_left:
            raise Killed
        self._calls_left -= 1
        sent_s = time.monotonic()
        answer = await self._connection.call(method, **_PLACE, **fields)
        self._journal.answered(sent_s)
        while self._unsure and self._unsure[0][0] <= self._journal.written_by():
            _, queue, offset = self._unsure.popleft()
            known = self._offsets.journaled
            known[queue] = max(known.get(queue, 0), offset)
        return answer.fields, answer.data

    async def run(self, *, until_done: bool = False) -> None:
        """Work until the broker or this member is killed, or all is committed."""
        fields, _ = await self.call("group.join", client_id=self._name, start="first")
        self._member = fields["member"]
        self._take(fields)
        while True:
            fields, _ = await self.call(
                "group.assignment", member=self._member, generation=self._generation, wait_ms=0
            )
            self._take(fields)
            for queue in list(self._places):
                await self._work_on(queue)
            if fields["revoked"]:
                offsets = {str(queue): self._places.pop(queue) for queue in fields["revoked"]}
                await self.call(
                    "group.release",
                    member=self._member,
                    generation=self._generation,
                    offsets=offsets,
                )
            if until_done:
                described, _ = await self.call("group.describe")
                if not any(each["lag"] or each["deferred"] for each in described["queues"]):
                    return

    def _take(self, fields: Any) -> None:
        self._generation = fields["generation"]
        held = {each["queue"]: each for each in fields["queues"]}
        self._places = {q: offset for q, offset in self._places.items() if q in held}
        for queue, each in held.items():
            if queue not in self._places or self._since.get(queue) != each["since"]:
                self._offsets.granted(queue, each["offset"])
                self._places[queue] = each["offset"]
                self._since[queue] = each["since"]

    async def _work_on(self, queue: int) -> None:
        chance = self._ledger.random
        fields, data = await self.call(
            "group.fetch",
            member=self._member,
            queue=queue,
            offset=self._places[queue],
            max_messages=chance.choice((1, 40, 1000)),
            wait_ms=chance.choice((0, 5)),
        )
        assert fields["status"] in ("FOUND", "NO_NEW"), fields
        for piece in FrameSplitter().feed(data):
            if isinstance(piece, MessageRun):
                for body in piece.bodies():
                    self._ledger.delivered(TOPIC, GROUP, body)
        self._places[queue] = offset = fields["next_offset"]
        known = self._offsets.fetched
        known[queue] = max(known.get(queue, 0), offset)
        if chance.random() < 0.5:
            answer, _ = await self.call(
                "group.commit",
                member=self._member,
                generation=self._generation,
                offsets={str(queue): offset},
            )
            assert answer["offsets"] == {str(queue): offset}, answer
            self._offsets.committed()
            self._unsure.append((self._journal.count, queue, offset))


async def member(
    broker: BrokerProcess, ledger: Ledger, offsets: Offsets, name: str, **options: Any
) -> None:
    """Members of one name, one after the other: each is killed, until the broker is."""
    host, _, port = broker.tcp_address.rpartition(":")
    while True:
        connection = await Connection.open(Address(host, int(port)), Identity())
        try:
            calls = 1 << 30 if options else ledger.random.randrange(3, 60)
            await Member(ledger, offsets, connection, name, calls).run(**options)
            return
        except Killed:
            pass  # It says nothing, and its connection ends.
        except CallRefused:
            raise
        except ClientError as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.abort()


async def live(broker: BrokerProcess, ledger: Ledger, offsets: Offsets, seconds: float) -> None:
    """One life of a broker, with a sudden end."""
    work = [
        asyncio.create_task(produce(ledger, broker.tcp_address, TOPIC, delays_ms))
        for delays_ms in ((), (20, 200, 900))
    ]
    work += [
        asyncio.create_task(member(broker, ledger, offsets, f"member-{number}"))
        for number in range(_MEMBERS)
    ]
    await asyncio.sleep(seconds)
    await offsets.wait_for(ledger.random.randrange(1, 50))
    broker.kill()
    await until_gone(*work)
    ledger.died()


async def torture(folder: Path, rounds: int, seed: int, *arguments: str) -> None:
    ledger, offsets = Ledger(seed), Offsets()
    with broker_on(folder, *arguments) as broker:
        await http(broker.http_address, f"/topic/create?topic={TOPIC}&queues={_QUEUES - 1}", b"")
        for number in range(rounds):
            if number == rounds // 2:
                path = f"/topic/create?topic={TOPIC}&queues={_QUEUES}"
                await http(broker.http_address, path, b"")
            await live(broker, ledger, offsets, ledger.random.uniform(*LOAD_S))
            broker.start()
            assert ledger.complaints == [], f"round {number}"
            assert offsets.complaints == [], f"round {number}"
        await member(broker, ledger, offsets, "last", until_done=True)
        assert offsets.complaints == []
        assert ledger.complaints == []
        assert ledger.missing(TOPIC, GROUP) == set()
        assert "lost" not in broker.log()
    assert len(ledger.answered[TOPIC]) > 10 * rounds
    assert offsets.commits >= rounds
    assert offsets.journaled


async def test_members_and_brokers_are_killed(tmp_path: Path) -> None:
    await torture(tmp_path, 3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_members_and_brokers_are_killed_often(tmp_path: Path, flush: str) -> None:
    await torture(tmp_path, 30, 2, f"--flush={flush}")
