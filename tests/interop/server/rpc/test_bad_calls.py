"""SEND and CALL with what no client of ours would send, and what others see of it."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
from typing import Any

import pytest
from tests.interop.asking import ask
from tests.interop.connections import connected

from martlet.client import Producer
from martlet.protocol.nsq import commands
from martlet.testing import Broker


async def call(broker: Broker, method: str, body: bytes = b"") -> Any:
    return await asyncio.to_thread(ask, broker.http_address, f"/call/{method}", "POST", body)


@pytest.mark.parametrize(
    "options",
    [
        {"order_key": "\ud800"},
        {"queue": "\ud800"},
        {"transaction": "a\udc00", "branch": "b", "number": 0, "begin": {}},
        {"transaction": "a", "branch": "\udfff", "number": 0, "begin": {}},
        {"transaction": "a", "branch": "b", "number": 0, "begin": {"\udfff": 0}},
    ],
)
async def test_half_of_a_surrogate_pair_is_refused_and_said_so(options: dict[str, Any]) -> None:
    async with Broker() as broker, connected(broker) as connection:
        for _ in range(2):
            asked = connection.ask(commands.send("t", [b"x"], options))
            answer = json.loads(await asyncio.wait_for(asked, 50))
            assert answer["status"] == "BAD_ARGUMENT"
        assert (await call(broker, "transaction.list"))["count"] == 0


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("transaction.begin", b'{"id": "\\ud800"}'),
        ("transaction.commit", b'{"id": "a", "branches": {"\\udc00": 1}}'),
        ("transaction.commit", b'{"id": "a", "branches": {"b": "\\udc00"}}'),
        ("transaction.list", b'{"limit": "\\ud83d"}'),
        ("transaction.show", b'{"\\udfff": 0}'),
    ],
)
async def test_http_refuses_it_too(method: str, body: bytes) -> None:
    async with Broker() as broker:
        with pytest.raises(urllib.error.HTTPError) as refused:
            await call(broker, method, body)
        assert refused.value.code == 400
        assert json.loads(refused.value.read())["code"] == "BAD_ARGUMENT"


async def test_a_whole_pair_is_a_character() -> None:
    async with Broker() as broker:
        begun = await call(broker, "transaction.begin", b'{"id": "\\ud83d\\ude00"}')
        listed = await call(broker, "transaction.list")
        assert begun == {"state": "open"}
        assert [each["id"] for each in listed["transactions"]] == ["\U0001f600"]


async def test_a_nested_value_for_a_number_is_not_written_out() -> None:
    """It may be too deep for that."""
    async with Broker() as broker, connected(broker) as connection:
        for value, shown in (([[0]], "a list of 1"), ({"a": []}, "an object of 1"), ("7", "'7'")):
            answer = json.loads(await connection.ask(commands.send("t", [b"x"], {"queue": value})))
            assert answer["status"] == "BAD_ARGUMENT"
            assert answer["text"].endswith(f", not {shown}")


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("channel.restore", '"channel": "c", "queues": [%s]'),
        ("channel.configure", '"channel": "c", "policy": {"tags": [%s]}'),
        ("channel.configure", '"channel": "c", "policy": {"kind": %s}'),
        ("channel.configure", '"channel": "c", "policy": {"filter": %s}'),
        ("channel.configure", '"channel": "c", "policy": {"dead_letter_topic": %s}'),
        ("channel.configure", '"channel": "c", "policy": {"retry_delays_ms": [%s]}'),
        ("topic.configure", '"policy": {"retention_ms": %s}'),
    ],
)
async def test_a_value_nested_as_deep_as_json_is_read_is_refused(method: str, fields: str) -> None:
    """Where it is refused, the stack is deeper than where it was read."""
    async with Broker() as broker:
        await call(broker, "topic.create", b'{"topic": "t"}')
        await asyncio.to_thread(
            ask, broker.http_address, "/channel/create?topic=t&channel=c", "POST"
        )
        # Some levels below the limit, json reads it, and the repr of it would fail.
        for depth in range(sys.getrecursionlimit() - 120, sys.getrecursionlimit()):
            nested = "[" * depth + "]" * depth
            with pytest.raises(urllib.error.HTTPError) as refused:
                await call(broker, method, f'{{"topic": "t", {fields % nested}}}'.encode())
            refused.value.read()
            assert refused.value.code == 400, depth


@pytest.mark.parametrize("method", ["transaction.list", "transaction.show"])
async def test_a_client_that_does_not_read_large_answers_gets_no_more_until_it_does(
    method: str,
) -> None:
    fields = {"id": "t" * 200, "max_body_bytes": 1 << 20, "limit": 1000}
    if method == "transaction.list":
        del fields["id"], fields["max_body_bytes"]
    async with Broker() as broker, connected(broker) as connection:
        for number in range(200):
            broker.server.broker.transactions.begin(f"{number:0200}")
        options = {"transaction": fields.get("id", "t"), "branch": "b", "number": 0, "begin": {}}
        await connection.ask(commands.send("t", [bytes(1 << 20)], options))
        before = set(broker.server.connections)
        reader, writer = await asyncio.open_connection(*broker.tcp_address.split(":"))
        identity = commands.identify({"feature_negotiation": True, "martlet": True})
        writer.write(commands.MAGIC + identity)
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        count = 24 if method == "transaction.show" else 150
        writer.write(b"".join(commands.call(n, method, fields) for n in range(count)))
        (asked,) = set(broker.server.connections) - before
        async with asyncio.timeout(50):
            while not asked.input.is_held_up:  # noqa: ASYNC110
                await asyncio.sleep(0)
        for _ in range(300):
            await asyncio.sleep(0)
        answered = set()
        for _ in range(count):
            size = int.from_bytes(await reader.readexactly(4), "big")
            frame = await reader.readexactly(size)
            assert frame[:4] == (17).to_bytes(4, "big")
            answered.add(int.from_bytes(frame[4:8], "big"))
            assert asked.output.transport.get_write_buffer_size() < 4 << 20
        assert answered == set(range(count))
        writer.close()


async def test_the_client_does_not_send_values_that_no_broker_takes() -> None:
    async with Broker() as broker:
        with pytest.raises(ValueError, match="group="):
            Producer(broker.tcp_address, group="\ud800")
        async with Producer(broker.tcp_address) as producer:
            with pytest.raises(ValueError, match="transaction id"):
                producer.transaction("\ud800")
