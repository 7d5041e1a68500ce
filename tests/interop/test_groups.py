"""Groups: members fetch the queues that they have, by calls over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from martlet.address import Address
from martlet.client import CallRefused, Identity, Producer
from martlet.client.connection import Connection
from martlet.protocol import commands
from martlet.protocol.frames import FrameSplitter
from martlet.protocol.message_run import MessageRun
from martlet.testing import Broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        yield broker


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[Connection]:
    host, _, port = broker.tcp_address.rpartition(":")
    connection = await Connection.open(Address(host, int(port)), Identity())
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_lost()


class Member:
    """One member of the group ``g`` of the topic ``t``."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self.member = ""
        self.generation = 0
        self.offsets: dict[int, int] = {}

    async def call(self, method: str, **fields: Any) -> Any:
        known = {"member": self.member} if self.member else {}
        return await self.connection.call(method, topic="t", group="g", **known, **fields)

    async def join(self, **fields: Any) -> Member:
        answer = await self.call("group.join", client_id=self.name, **fields)
        self.member = answer.fields["member"]
        self._take(answer.fields)
        return self

    def _take(self, fields: Any) -> None:
        self.generation = fields["generation"]
        self.offsets = {each["queue"]: each["offset"] for each in fields["queues"]}
        self.revoked = fields["revoked"]

    async def assignment(self, wait_ms: int = 10_000) -> list[int]:
        answer = await self.call("group.assignment", generation=self.generation, wait_ms=wait_ms)
        self._take(answer.fields)
        return sorted(self.offsets)

    async def fetch(self, queue: int, offset: int, **fields: Any) -> tuple[Any, list[bytes]]:
        answer = await self.call(
            "group.fetch", queue=queue, offset=offset, **{"wait_ms": 0, **fields}
        )
        return answer.fields, bodies(answer.data)

    async def commit(self, method: str = "group.commit", /, **offsets: int) -> Any:
        told = {queue.removeprefix("q"): offset for queue, offset in offsets.items()}
        answer = await self.call(method, generation=self.generation, offsets=told)
        return answer.fields


def bodies(data: bytes) -> list[bytes]:
    """The bodies of all messages in an answer."""
    found: list[bytes] = []
    for piece in FrameSplitter().feed(data):
        if isinstance(piece, MessageRun):
            found += piece.bodies()
    return found


async def publish(broker: Broker, *sent: bytes, topic: str = "t") -> None:
    async with Producer(broker.tcp_address) as producer:
        for body in sent:
            await producer.publish(topic, body)


async def configure(connection: Connection, **policy: object) -> None:
    await connection.call("channel.configure", topic="t", channel="g", policy=policy)


async def test_a_member_fetches_what_is_there_and_commits_how_far_it_came(tmp_path: Path) -> None:
    sent = [b"%d" % number for number in range(10)]
    async with Broker(tmp_path) as broker, connected(broker) as connection:
        await publish(broker, *sent)
        member = await Member(connection, "a").join()
        assert member.offsets == {0: 0}
        fields, got = await member.fetch(0, 0, max_messages=4)
        assert got == sent[:4]
        assert (fields["status"], fields["next_offset"], fields["count"]) == ("FOUND", 4, 4)
        assert (fields["start_offset"], fields["end_offset"]) == (0, 10)
        assert (await member.fetch(0, 4))[1] == sent[4:]
        assert await member.commit(q0=4) == {"offsets": {"0": 4}}
        assert await member.commit(q0=2) == {"offsets": {"0": 4}}
        told = await member.commit(q0=11)
        assert told == {"offsets": {}, "refused": {"0": "OUT_OF_REACH"}}
    async with Broker(tmp_path) as broker, connected(broker) as connection:
        member = await Member(connection, "a").join()
        assert member.offsets == {0: 4}
        with pytest.raises(CallRefused, match="NOT_A_MEMBER"):
            await connection.call("group.commit", topic="t", group="g", member="b", offsets={})


async def test_a_fetch_waits_for_what_arrives(broker: Broker) -> None:
    async with connected(broker) as connection:
        member = await Member(connection, "a").join()
        waiting = asyncio.create_task(member.fetch(0, 0, wait_ms=20_000))
        quick, _ = await member.fetch(0, 0)
        assert quick["status"] == "NO_NEW"
        assert not waiting.done()
        await publish(broker, b"first")
        fields, got = await waiting
        assert (fields["status"], got) == ("FOUND", [b"first"])
        # An MPUB comes another way than a PUB by itself.
        waiting = asyncio.create_task(member.fetch(0, 1, wait_ms=20_000))
        await asyncio.sleep(0)
        await connection.ask(commands.publish_many("t", [b"a", b"b"]))
        assert (await waiting)[1] == [b"a", b"b"]


async def test_an_offset_that_is_not_there_is_told_where_to_go_on(broker: Broker) -> None:
    async with connected(broker) as connection:
        await publish(broker, b"one", b"two")
        member = await Member(connection, "a").join()
        fields, got = await member.fetch(0, 7)
        assert (fields["status"], fields["next_offset"], got) == ("OFFSET_MOVED", 2, [])
        fields, got = await member.fetch(0, 2)
        assert (fields["status"], fields["next_offset"]) == ("NO_NEW", 2)
        with pytest.raises(CallRefused, match="NOT_FOUND topic 't' has no queue 3"):
            await member.fetch(3, 0)
