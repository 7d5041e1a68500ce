"""Limits of leases, what is left of them, and ends of a broker with leases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.polling import until

from martlet.server.http.v1 import guard, leases
from martlet.server.http.v1.leases import MAX_CHARACTERS, BadReceipt, LeaseReceipt
from martlet.testing import Broker

CHANNEL = "/v1/topics/t/channels/c"


class Asking:
    """A client of a broker in this process."""

    def __init__(self, broker: Broker, http: aiohttp.ClientSession) -> None:
        self.broker = broker
        self.http = http
        self.leases = broker.server.leases

    async def post(self, path: str, fields: object = None) -> tuple[int, Any]:
        async with self.http.post(path, json=fields) as answer:
            return answer.status, json.loads(await answer.text())

    async def receive(self, query: str = "") -> tuple[int, Any]:
        return await self.post(f"{CHANNEL}/receive{query}")

    async def publish(self, count: int) -> None:
        for number in range(count):
            assert (await self.post("/v1/topics/t/messages", {"body": str(number)}))[0] == 200


@asynccontextmanager
async def asking() -> AsyncIterator[Asking]:
    async with Broker() as broker, aiohttp.ClientSession(f"http://{broker.http_address}") as http:
        client = Asking(broker, http)
        assert (await client.receive()) == (200, {"messages": []})
        yield client


async def test_waiting_polls_have_a_limit_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MAX_POLLS", 2)
    async with asking() as client:
        polls = [asyncio.create_task(client.receive("?wait=30")) for _ in range(2)]
        await until(lambda: client.leases.poll_count == 2)
        status, answer = await client.receive()
        assert status == 503
        assert answer["message"].startswith("LIMIT_REACHED: 2 receives wait for messages at this")
        await client.publish(2)
        assert {len(answer["messages"]) for _, answer in await asyncio.gather(*polls)} == {1}
        assert (await client.receive())[0] == 200


async def test_leased_messages_have_a_limit_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MAX_LEASED", 3)
    async with asking() as client:
        await client.publish(5)
        _, leased = await client.receive("?max=3")
        status, answer = await client.receive()
        assert status == 503
        assert "have 3 messages of channel 'c' of topic 't', and the maximum is 3" in str(answer)
        receipts = [message["receipt"] for message in leased["messages"]]
        await client.post(f"{CHANNEL}/finish", {"receipts": receipts[:1]})
        assert len((await client.receive())[1]["messages"]) == 1


async def test_nothing_is_left_of_a_lease_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking() as client:
        channel = client.broker.server.broker.topics["t"].channels["c"]
        await client.publish(3)
        for act, fields in (("finish", {}), ("requeue", {"delay": 60}), ("reject", {})):
            _, answer = await client.receive()
            receipts = [message["receipt"] for message in answer["messages"]]
            assert (len(client.leases), len(channel.consumers)) == (1, 1)
            assert (await client.post(f"{CHANNEL}/{act}", {"receipts": receipts, **fields}))[
                0
            ] == 200
            assert (len(client.leases), len(channel.consumers)) == (0, 0)
        await client.publish(1)
        await client.receive("?visibility=0.1")
        await until(lambda: not client.leases)
        assert (channel.timeout_count, len(channel.consumers)) == (1, 0)


async def test_a_client_that_is_lost_while_it_is_answered_has_had_an_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have read some of the answer, so the attempt counts, but no failure does."""
    async with asking() as client:
        await client.publish(1)
        policy = {"topic": "t", "channel": "c", "policy": {"max_attempts": 1}}
        assert (await client.post("/call/channel.configure", policy))[0] == 200

        async def lost(*_: object) -> None:
            raise ConnectionResetError("the client is gone")

        with monkeypatch.context() as broken:
            broken.setattr("martlet.server.http.request.Request.send", lost)
            assert await client.receive() == (200, {"messages": []})
        _, answer = await client.receive()
        assert [message["attempts"] for message in answer["messages"]] == [2]
        channel = client.broker.server.broker.topics["t"].channels["c"]
        assert channel.dead_letter_count == 0


async def test_a_broker_that_stops_ends_its_polls_and_forgets_no_message() -> None:
    async with asking() as client:
        await client.publish(1)
        await client.receive()
        poll = asyncio.create_task(client.receive("?wait=30"))
        await until(lambda: client.leases.poll_count == 1)
        leases = client.leases
    with pytest.raises(aiohttp.ClientError):
        await poll
    assert len(leases) == 0


async def test_answers_of_auth_servers_are_kept_up_to_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from martlet.protocol.nsq.authorization import read_answer

    monkeypatch.setattr(guard, "MAX_ANSWERS", 2)
    rule = {"topic": ".*", "channels": [".*"], "permissions": ["publish"]}
    secrets: list[bytes] = []

    class Servers:
        async def ask(self, remote_ip: str, common_name: str | None, secret: bytes) -> Any:
            secrets.append(secret)
            return read_answer(json.dumps({"ttl": 60, "authorizations": [rule]}).encode())

    class Asked:
        client_host, common_name, remote_address = "127.0.0.1", None, "127.0.0.1:1"

        def __init__(self, secret: str) -> None:
            self.secret = secret

        def headers(self, name: str) -> list[str]:
            assert name == "X-Martlet-Auth"
            return [self.secret]

    checks: Any = guard.HttpGuard(Servers(), None)  # type: ignore[arg-type]
    for secret in ("a", "b", "a", "c", "a"):
        await checks.may_publish(Asked(secret), "t")
    assert secrets == [b"a", b"b", b"c", b"a"]


U64 = st.integers(0, (1 << 64) - 1)


@given(U64, U64, U64, U64, U64, st.integers(1, (1 << 32) - 1))
def test_a_receipt_is_read_as_it_was_written(
    epoch: int, lease: int, channel: int, id: int, stored_at_ns: int, attempts: int
) -> None:
    message_id = b"%016x" % id
    receipt = LeaseReceipt(epoch, lease, channel, message_id, stored_at_ns, attempts)
    assert len(str(receipt)) <= MAX_CHARACTERS
    assert LeaseReceipt.parse(str(receipt)) == receipt


@pytest.mark.parametrize(
    "text", ["", "x", "1-1-1-1-1-1-1", "2-1-1-1-0000000000000000-1-1", "1-1-1-1-" + "0" * 16]
)
def test_another_text_is_no_receipt(text: str) -> None:
    with pytest.raises(BadReceipt, match="the text 'receipt' of a received message"):
        LeaseReceipt.parse(text)
