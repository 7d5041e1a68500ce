"""Messages with properties: sent, kept, and delivered only to consumers that ask for them."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.crash.wire import Wire
from tests.interop.connections import connect

from martlet.client import CallRefused, Consumer, NotSupported, Producer, Properties
from martlet.client.transport.connection import Connection
from martlet.properties.block import pack_block
from martlet.protocol.nsq import commands
from martlet.testing import Broker

COMMAND = (sys.executable, "-m", "martlet")


def block(*entries: tuple[int, Properties]) -> bytes:
    return pack_block([(number, properties.pack()) for number, properties in entries])


RED = Properties(tag="red", keys=("a-1", "a-2"), headers={"trace": "00-ab-01", "empty": ""})
ORDERED = Properties(order_key="customer 7")


async def test_messages_sent_with_properties_come_with_them(
    broker: Broker, connection: Connection
) -> None:
    bodies = [b"plain", b"red", b"ordered", b"plain too"]
    properties = block((1, RED), (2, ORDERED))
    answer = json.loads(await connection.ask(commands.send("t", bodies, {}, properties)))
    assert answer["status"] == "OK"
    assert (answer["queue"], answer["offset"], answer["count"]) == (0, 0, 4)
    async with Producer(broker.tcp_address) as producer:
        await producer.publish("t", b"by PUB")
    async with Consumer("t", "c", broker.tcp_address) as consumer:
        messages = [await anext(consumer) for _ in range(5)]
        assert [message.body for message in messages] == [*bodies, b"by PUB"]
        none = Properties()
        assert [message.properties for message in messages] == [none, RED, ORDERED, none, none]
        assert messages[0].id == answer["id"].encode()
        messages[1].requeue(backoff=False)
        messages[3].requeue(backoff=False)
        again = [await anext(consumer), await anext(consumer)]
        assert [(message.body, message.attempts, message.properties) for message in again] == [
            (b"red", 2, RED),
            (b"plain too", 2, none),
        ]


BINARY = Properties(headers={"trace": b"\xff\x00", "region": "eu"}, order_key=b"\x00\xfe")


async def test_an_order_key_and_headers_of_any_bytes_come_as_they_were_sent(
    broker: Broker,
) -> None:
    http = f"http://{broker.http_address}"
    async with aiohttp.ClientSession() as session:
        assert (await session.post(f"{http}/topic/create?topic=t&queues=5")).status == 200
    carried: dict[str, Any] = {"headers": BINARY.headers, "order_key": BINARY.order_key}
    async with Producer(broker.tcp_address) as producer:
        stored = [await producer.send("t", b"by send", **carried)]
        await producer.publish("t", b"by publish", **carried)
        async with producer.transaction() as transaction:
            await transaction.publish("t", b"in a transaction", **carried)
        stored.append(await producer.send("t", b"again", **carried))
    message: dict[str, Any] = {"headers": {"region": "eu"}, "headers_base64": {"trace": "/wA="}}
    message |= {"body": "by HTTP", "order_key_base64": "AP4="}
    names = {
        "X-Martlet-Header": "region=eu",
        "X-Martlet-Header-Base64": "trace=/wA=",
        "X-Martlet-Order-Key-Base64": "AP4=",
    }
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{http}/v1/topics/t/messages", json=message) as response:
            assert response.status == 200
            assert (await response.json())["queue"] == stored[0].queue
        async with session.post(f"{http}/pub?topic=t", data=b"by /pub", headers=names) as response:
            assert await response.text() == "OK"
    async with Consumer("t", "c", broker.tcp_address) as consumer:
        messages = [await anext(consumer) for _ in range(6)]
    assert len({message.body for message in messages}) == 6
    assert [replace(message.properties, sent=None) for message in messages] == [BINARY] * 6


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"order_key_base64": "?"}, "'order_key_base64' is no base64"),
        ({"order_key_base64": "AP4=", "order_key": "a"}, "not both"),
        ({"order_key_base64": "AP4=", "queue": 0}, "both choose a queue"),
        ({"headers_base64": {"a": "?"}}, "'a' is no base64"),
        ({"headers_base64": {"a": 7}}, "'a' must be a text"),
        ({"headers_base64": {"a": ""}, "headers": {"a": ""}}, "the header 'a' is given twice"),
    ],
)
async def test_what_is_no_base64_is_refused(
    broker: Broker, fields: dict[str, object], said: str
) -> None:
    url = f"http://{broker.http_address}/v1/topics/t/messages"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"body": "x", **fields}) as response,
    ):
        assert response.status == 400
        assert said in await response.text()


async def test_properties_match_their_messages_where_a_batch_goes_out_in_pieces(
    broker: Broker, connection: Connection
) -> None:
    bodies = [b"%d" % number for number in range(100)]
    properties = block(*((n, Properties(keys=(f"k{n}",))) for n in range(0, 100, 3)))
    await connection.ask(commands.send("t", bodies, {}, properties))
    async with Consumer("t", "c", broker.tcp_address, max_in_flight=7) as consumer:
        for number in range(100):
            message = await anext(consumer)
            assert message.body == b"%d" % number
            assert message.properties.keys == ((f"k{number}",) if number % 3 == 0 else ())
            message.finish()


async def test_batches_have_them_too(broker: Broker, connection: Connection) -> None:
    for start in (0, 3):
        bodies = [b"%d" % (start + number) for number in range(3)]
        await connection.ask(commands.send("t", bodies, {}, block((start // 3, RED))))
    async with Consumer("t", "c", broker.tcp_address) as consumer:
        tags: list[str] = []
        async for batch in consumer.batches(max_messages=2):
            tags += [entry.tag for entry in batch.properties]
            await batch.finish()
            if len(tags) == 6:
                break
    assert tags == ["red", "", "", "", "red", ""]


async def test_a_client_of_nsq_gets_no_properties_and_may_not_ask(
    broker: Broker, connection: Connection
) -> None:
    await connection.ask(commands.send("t", [b"red"], {}, block((0, RED))))
    wire = await Wire.subscribed(broker.tcp_address, "t", "c")
    wire.send(commands.ready(1))
    assert (await wire.message()).body == b"red"
    wire.send(commands.call(1, "topic.describe", {"topic": "t"}))
    assert b"E_INVALID invalid command CALL" in (await wire.answer()).data
    wire.close()


async def test_a_wrong_send_is_refused_and_stores_nothing(
    broker: Broker, connection: Connection
) -> None:
    sent = [await connection.ask(commands.send("t", [b"x"], {"no": 1}))]
    sent.append(await connection.ask(commands.send("t", [b"x"], {"wait": "yes"})))
    for answer in map(json.loads, sent):
        assert answer["status"] == "BAD_ARGUMENT"
    assert b"'no'" in sent[0]
    with pytest.raises(CallRefused, match="NOT_FOUND"):
        await connection.call("topic.describe", topic="t")


async def test_a_call_is_answered_or_refused_by_name(
    broker: Broker, connection: Connection
) -> None:
    with pytest.raises(CallRefused, match="NOT_FOUND there is no topic 'none'"):
        await connection.call("topic.describe", topic="none")
    with pytest.raises(CallRefused, match="UNKNOWN_METHOD"):
        await connection.call("topic.explode", topic="none")
    with pytest.raises(CallRefused, match="MISSING_ARGUMENT the argument 'topic' is missing"):
        await connection.call("topic.describe")
    async with aiohttp.ClientSession(f"http://{broker.http_address}") as http:
        async with http.post("/call/topic.describe", json={"topic": "none"}) as response:
            assert response.status == 404
            assert (await response.json())["code"] == "NOT_FOUND"
        async with http.post("/call/topic.describe", data=b"[]") as response:
            assert response.status == 400


async def test_a_broker_of_nsq_has_no_calls(broker: Broker, connection: Connection) -> None:
    connection.features = type(connection.features)()
    with pytest.raises(NotSupported, match="is no Martlet broker"):
        await connection.call("topic.describe", topic="t")


async def test_properties_are_there_after_a_restart(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker:
        connection = await connect(broker)
        await connection.ask(commands.send("t", [b"red", b"plain"], {}, block((0, RED))))
    async with Broker(tmp_path) as broker, Consumer("t", "c", broker.tcp_address) as consumer:
        assert (await anext(consumer)).properties == RED
        assert not (await anext(consumer)).properties


async def test_http_takes_and_returns_properties(broker: Broker) -> None:
    async with aiohttp.ClientSession(f"http://{broker.http_address}") as http:
        headers = [
            ("X-Martlet-Tag", "rød"),
            ("X-Martlet-Key", "a"),
            ("X-Martlet-Key", "b"),
            ("X-Martlet-Order-Key", "customer 7"),
            ("X-Martlet-Header", "trace=00=01"),
        ]
        async with http.post("/pub?topic=t", data=b"one", headers=headers) as response:
            assert response.status == 200
        async with http.post("/mpub?topic=t", data=b"two\nthree", headers=headers[1:2]) as response:
            assert response.status == 200
        for wrong in (("X-Martlet-Tag", "a|b"), ("X-Martlet-Header", "no value")):
            async with http.post("/pub?topic=t", data=b"x", headers=[wrong]) as response:
                assert response.status == 400
                assert "INVALID_PROPERTIES" in await response.text()
        for path in ("/pub", "/mpub"):
            unknown = {"X-Martlet-Tga": "a"}
            async with http.post(f"{path}?topic=t", data=b"x", headers=unknown) as response:
                assert response.status == 400
                error = await response.text()
                assert "UNKNOWN_HEADER: 'X-Martlet-Tga'; the known ones are X-Martlet-Tag" in error
        await http.post("/channel/create?topic=t&channel=c")
        async with http.get("/channel/peek?topic=t&channel=c") as response:
            messages = (await response.json())["messages"]
    assert [message.get("properties") for message in messages] == [
        {
            "tag": "rød",
            "keys": ["a", "b"],
            "order_key": "customer 7",
            "headers": {"trace": "00=01"},
        },
        {"keys": ["a"]},
        {"keys": ["a"]},
    ]


async def test_tail_and_dump_show_them(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker:
        connection = await connect(broker)
        await connection.ask(commands.send("t", [b"red", b"plain"], {}, block((0, RED))))
        await connection.call("channel.want", topic="t", channel="c", policy={})
        tail = await asyncio.create_subprocess_exec(
            *(*COMMAND, "tail", "--topic=t", "--channel=c", "-n=2"),
            f"--nsqd-tcp-address={broker.tcp_address}",
            "--print-properties",
            stdout=asyncio.subprocess.PIPE,
        )
        shown, _ = await tail.communicate()
    assert shown.decode().splitlines() == [
        f"{json.dumps(RED.to_json())} red",
        "{} plain",
    ]
    dump = await asyncio.create_subprocess_exec(
        *(*COMMAND, "log", "dump", str(tmp_path), "--topic=t", "--json"),
        stdout=asyncio.subprocess.PIPE,
    )
    rows = [json.loads(line) for line in (await dump.communicate())[0].splitlines()]
    assert [row.get("properties") for row in rows] == [RED.to_json(), None]
