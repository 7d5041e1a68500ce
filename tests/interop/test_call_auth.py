"""Calls of clients that an auth server lets do some things and not others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.interop.auth_server import EVERYTHING, Answer, AuthServer, allowed

from martlet.durations import MILLISECOND_NS
from martlet.protocol.nsq import commands
from martlet.testing import Broker

ANSWER = 17
SOME = {"topic": "mails", "channels": [".*"], "permissions": ["publish"]}


@pytest.fixture(scope="module")
def server() -> Iterator[AuthServer]:
    answers = {"all": Answer(allowed(EVERYTHING)), "some": Answer(allowed(SOME))}
    with AuthServer(answers) as server:
        yield server


class Caller:
    """A connection that calls, and hears one answer at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def frame(self) -> tuple[int, bytes]:
        async with asyncio.timeout(50):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            frame = await self._reader.readexactly(size)
        return int.from_bytes(frame[:4], "big"), frame[4:]

    async def call(self, method: str, **fields: Any) -> dict[str, Any]:
        self._writer.write(commands.call(1, method, fields))
        kind, body = await self.frame()
        assert kind == ANSWER
        return dict(json.loads(body[8:]))

    async def send(self, topic: str, **options: Any) -> dict[str, Any]:
        self._writer.write(commands.send(topic, [b"x"], options))
        return dict(json.loads((await self.frame())[1]))


@asynccontextmanager
async def caller(broker: Broker, secret: str = "") -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection(*broker.tcp_address.split(":"))
    found = Caller(reader, writer)
    identity = {"feature_negotiation": True, "martlet": True}
    writer.write(commands.MAGIC + commands.identify(identity))
    await found.frame()
    if secret:
        writer.write(commands.auth(secret.encode()))
        await found.frame()
    try:
        yield found
    finally:
        writer.close()


async def test_nothing_can_be_called_before_auth(server: AuthServer) -> None:
    async with Broker(auth_http_addresses=(server.address,)) as broker, caller(broker) as stranger:
        for method in ("transaction.list", "transaction.checks", "topic.describe"):
            answer = await stranger.call(method, group="g")
            assert answer["error"]["code"] == "FORBIDDEN"


async def test_a_transaction_is_visible_to_clients_that_may_publish_its_messages(
    server: AuthServer,
) -> None:
    broker = Broker(
        auth_http_addresses=(server.address,), transaction_check_after_ns=MILLISECOND_NS
    )
    async with broker, caller(broker, "all") as boss, caller(broker, "some") as clerk:
        for id, topic in (("a", "orders"), ("b", "mails")):
            begin = {"begin": {"group": "g"}}
            assert (await boss.send(topic, transaction=id, branch="b", number=0, **begin))[
                "status"
            ] == "OK"
        answer = await clerk.call("transaction.list")
        assert [each["id"] for each in answer["transactions"]] == ["b"]
        assert answer["count"] == 1
        asked = await clerk.call("transaction.checks", group="g")
        assert [each["id"] for each in asked["transactions"]] == ["b"]
        assert not (await clerk.call("transaction.checks", group="g", wait_ms=50))["transactions"]
        asked = await boss.call("transaction.checks", group="g")
        assert [(each["id"], each["checks"]) for each in asked["transactions"]] == [("a", 1)]
