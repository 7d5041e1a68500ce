"""Messages for later, over the wire: sent, listed, cancelled, delivered, kept over a restart."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.crash.wire import http
from tests.interop.connections import connected

from martlet.client import Admin, CallRefused, Consumer, Properties
from martlet.client.transport.connection import Connection
from martlet.properties.block import pack_block
from martlet.protocol.nsq import commands
from martlet.testing import Broker
from martlet.testing.broker_process import BrokerProcess
from martlet.testing.ports import free_port


def in_ms(delay_ms: int) -> int:
    return time.time_ns() // 10**6 + delay_ms


async def send(connection: Connection, *bodies: bytes, at_ms: int, tag: str = "") -> dict[str, Any]:
    entries = [(n, Properties(tag=tag).pack()) for n in range(len(bodies))]
    properties = pack_block(entries) if tag else b""
    request = commands.send("t", list(bodies), {"deliver_at_ms": at_ms}, properties)
    return dict(json.loads(await connection.ask(request)))


async def send_soon(
    connection: Connection, *bodies: bytes, after_ms: int, tag: str = ""
) -> tuple[dict[str, Any], int]:
    """Send messages for a while from now, in good time even where the machine is busy. Returns the
    answer, and when they are due.
    """
    while True:
        at_ms = in_ms(after_ms)
        answer = await send(connection, *bodies, at_ms=at_ms, tag=tag)
        if answer["offset"] is None:
            return answer, at_ms
        after_ms *= 4


async def test_http_sends_for_later_too(broker: Broker, connection: Connection) -> None:
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    due_ms = int(due.timestamp()) * 1000
    east = due.astimezone(timezone(timedelta(hours=5, minutes=30)))
    async with aiohttp.ClientSession(f"http://{broker.http_address}") as http:

        async def post(path: str, body: bytes, *times: str, tag: str = "") -> Any:
            headers = [("X-Martlet-Deliver-At", time) for time in times]
            headers += [("X-Martlet-Tag", tag)] if tag else []
            async with http.post(path, data=body, headers=headers) as response:
                text = await response.text()
                return response.status, json.loads(text) if text != "OK" else text

        ids = []
        for time_text in (str(due_ms), east.isoformat(), due.isoformat().replace("+00:00", "Z")):
            status, answer = await post("/pub?topic=t", b"one", time_text, tag="blue")
            ids.append(answer.pop("id"))
            assert status == 200
            assert answer == {"status": "OK", "queue": 0, "offset": None, "count": 1}
        status, answer = await post("/mpub?topic=t", b"two\nthree", str(due_ms + 1))
        assert (status, answer["count"]) == (200, 2)
        first = int(answer["id"], 16)
        ids += [f"{first:016x}", f"{first + 1:016x}"]
        listed = (await connection.call("delay.list", topic="t")).fields["messages"]
        assert [message["id"] for message in listed] == ids
        assert [message["deliver_at_ms"] for message in listed] == [due_ms] * 3 + [due_ms + 1] * 2
        assert [message["tag"] for message in listed] == ["blue"] * 3 + [""] * 2

        # A time that has passed is now; a topic has it at its offset, with the id it has there.
        await connection.call("channel.want", topic="t", channel="c", policy={})
        for at, past in enumerate(("5", "1999-12-31T23:59:59Z", "1901-01-01T00:00:00Z")):
            status, answer = await post("/pub?topic=t", b"now", past)
            assert (status, answer["offset"]) == (200, at)
        async with http.get("/channel/peek?topic=t&channel=c") as response:
            peeked = (await response.json())["messages"]
        assert peeked[-1]["id"] == answer["id"]
        assert await post("/mpub?topic=t", b"", str(due_ms)) == (200, "OK")

        for path, two_times, why in (
            ("/pub?topic=t", ["tomorrow"], "'tomorrow' is no time; write milliseconds since"),
            ("/pub?topic=t", ["2026-12-24T18:00:00"], "has no time zone"),
            ("/mpub?topic=t", ["9" * 18], "X-Martlet-Deliver-At"),
            ("/pub?topic=t", [str(due_ms + 10**10)], r"the longest delay is .* \(--max-delay\)"),
            ("/pub?topic=t", [str(due_ms), str(due_ms)], "say when once"),
            ("/pub?topic=t&defer=5", [str(due_ms)], "say when once"),
        ):
            status, answer = await post(path, b"x", *two_times)
            assert status == 400
            assert re.search(f"^INVALID_DELIVER_AT: .*{why}", answer["message"]), answer
        assert len((await connection.call("delay.list", topic="t")).fields["messages"]) == 5


async def test_http_reports_too_many_delayed_messages() -> None:
    async with (
        Broker(max_delayed_messages=1) as broker,
        aiohttp.ClientSession(f"http://{broker.http_address}") as http,
    ):
        headers = {"X-Martlet-Deliver-At": str(in_ms(10**7))}
        async with http.post("/mpub?topic=t", data=b"a\nb", headers=headers) as response:
            assert response.status == 503
            assert "--max-delayed-messages is 1" in await response.text()


async def test_a_delayed_message_comes_at_its_time_with_its_properties(
    broker: Broker, connection: Connection
) -> None:
    answer, at_ms = await send_soon(connection, b"one", b"two", after_ms=300, tag="blue")
    assert (answer["status"], answer["count"]) == ("OK", 2)
    async with Consumer("t", "c", broker.tcp_address) as consumer:
        while (first := await anext(consumer)).properties.system != {"delayed": answer["id"]}:
            first.finish()
        second = await anext(consumer)
        assert time.time() * 1000 >= at_ms
        assert (first.body, second.body) == (b"one", b"two")
        assert first.properties.tag == "blue"
        assert int(second.properties.system["delayed"], 16) == int(answer["id"], 16) + 1


async def test_delayed_messages_are_listed_and_cancelled_by_id(
    broker: Broker, connection: Connection
) -> None:
    far, near = in_ms(7_200_000), in_ms(60_000)
    far_id = (await send(connection, b"far", at_ms=far))["id"]
    near_id = (await send(connection, b"near!", at_ms=near, tag="blue"))["id"]
    answer = (await connection.call("delay.list", topic="t", limit=1)).fields
    assert answer["pending_count"] == 2
    (message,) = answer["messages"]
    assert message["stored_at_ms"] <= in_ms(0)
    del message["stored_at_ms"]
    assert message == {
        "id": near_id,
        "deliver_at_ms": near,
        "size_bytes": 5,
        "tag": "blue",
        "keys": [],
    }
    answer = (await connection.call("delay.list", **{"topic": "t", "from": answer["next"]})).fields
    assert ([m["id"] for m in answer["messages"]], answer["next"]) == ([far_id], "")
    unknown = "0123456789abcdef"
    answer = (await connection.call("delay.cancel", topic="t", ids=[far_id, unknown])).fields
    assert answer == {"cancelled": [far_id], "not_waiting": [unknown]}
    answer = (await connection.call("delay.cancel", topic="t", id=far_id)).fields
    assert answer == {"cancelled": [], "not_waiting": [far_id]}
    answer = (await connection.call("delay.list", topic="t")).fields
    assert [m["id"] for m in answer["messages"]] == [near_id]


async def test_a_send_that_is_repeated_waits_once(tmp_path: Path) -> None:
    options = {"producer": "ab" * 16, "sequence": 1, "deliver_at_ms": in_ms(3_600_000)}
    sent = commands.send("t", [b"once"], options)
    with BrokerProcess(tmp_path) as broker:
        async with connected(broker) as connection:
            first = json.loads(await connection.ask(sent))
            assert json.loads(await connection.ask(sent)) == {**first, "duplicate": True}
            broker.kill()
        broker.start()
        async with connected(broker) as connection:
            assert json.loads(await connection.ask(sent)) == {**first, "duplicate": True}
            listed = (await connection.call("delay.list", topic="t")).fields
            assert [message["id"] for message in listed["messages"]] == [first["id"]]


async def test_impossible_delays_are_refused_with_the_limit(connection: Connection) -> None:
    answer = await send(connection, b"x", at_ms=in_ms(41 * 24 * 3_600_000))
    assert answer["status"] == "BAD_ARGUMENT"
    assert "the longest delay is 3456000 s (--max-delay)" in answer["text"]
    await send(connection, b"x", at_ms=in_ms(60_000))
    with pytest.raises(CallRefused, match="id 'no': an id has 16 hexadecimal digits"):
        await connection.call("delay.cancel", topic="t", id="no")
    for fields, why in (
        ({"ids": []}, "'ids' is empty"),
        ({"ids": None}, "'ids' is empty"),
        ({"id": ""}, "'id' is empty"),
        ({"id": "0" * 16, "ids": ["0" * 16]}, "not both"),
        ({}, "the messages are missing: add 'ids'"),
    ):
        with pytest.raises(CallRefused, match=why):
            await connection.call("delay.cancel", topic="t", **fields)
    with pytest.raises(CallRefused, match="from 'x': it must be what 'next' was"):
        await connection.call("delay.list", **{"topic": "t", "from": "x"})
    with pytest.raises(CallRefused, match="there is no topic"):
        await connection.call("delay.list", topic="nowhere")


async def test_delayed_messages_are_counted_as_deferred_and_hidden_otherwise(
    broker: Broker, connection: Connection
) -> None:
    async def ask(target: str, body: bytes | None = b"") -> Any:
        return json.loads(await http(broker.http_address, target, body) or b"null")

    await ask("/topic/create?topic=t")
    await ask("/channel/create?topic=t&channel=c")
    await send(connection, b"x", at_ms=in_ms(60_000))
    (topic,) = (await ask("/stats?format=json", None))["topics"]
    assert (topic["topic_name"], topic["message_count"], topic["depth"]) == ("t", 0, 0)
    assert topic["channels"][0]["deferred_count"] == 1
    assert (await ask("/call/delay.list", b'{"topic": "t"}'))["pending_count"] == 1
    await ask("/channel/empty?topic=t&channel=c")
    assert (await ask("/call/delay.list", b'{"topic": "t"}'))["pending_count"] == 0


async def test_delayed_messages_wait_on_over_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        async with connected(broker) as connection:
            gone = (await send(connection, b"gone", at_ms=in_ms(3_600_000)))["id"]
            await connection.call("delay.cancel", topic="t", id=gone)
            kept, at_ms = await send_soon(connection, b"kept", after_ms=1000)
            broker.kill()
        broker.start()
        async with Consumer("t", "c", broker.tcp_address) as consumer:
            while (message := await anext(consumer)).properties.system != {"delayed": kept["id"]}:
                message.finish()
            assert time.time() * 1000 >= at_ms
            assert message.body == b"kept"
        async with connected(broker) as connection:
            listed = (await connection.call("delay.list", topic="t")).fields
        assert (listed["pending_count"], listed["messages"]) == (0, [])


async def ran(broker: Broker, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "martlet", "delayed", *words]
    return await asyncio.to_thread(
        subprocess.run,
        [*command, f"--nsqd-http-address={broker.http_address}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_the_command_lists_and_cancels(broker: Broker, connection: Connection) -> None:
    far, near = in_ms(7_200_000), in_ms(600_000)
    far_id = (await send(connection, b"far", at_ms=far))["id"]
    near_id = (await send(connection, b"near!", at_ms=near, tag="blue"))["id"]
    url = f"http://{broker.http_address}"
    first, second, waiting = (await ran(broker, "list", "t")).stdout.splitlines()
    assert first.startswith(f"{near_id}  due ")
    assert first.endswith("  5 bytes  tag blue")
    assert second.startswith(f"{far_id}  due ")
    assert waiting == f"{url}: 2 messages waiting, 2 listed"
    done = await ran(broker, "list", "t", "--json", "--limit=1")
    (message,) = map(json.loads, done.stdout.splitlines())
    assert (message["broker"], message["id"], message["deliver_at_ms"]) == (url, near_id, near)
    assert "2 messages waiting, 1 listed" in done.stderr
    unknown = "0123456789abcdef"
    done = await ran(broker, "cancel", "t", near_id, unknown)
    assert done.returncode == 1
    assert "1 message cancelled" in done.stdout
    assert f"{unknown} is not waiting" in done.stderr
    done = await ran(broker, "cancel", "t", "--all")
    assert (done.returncode, done.stdout) == (0, f"{url}: 1 message cancelled\n")
    assert (await connection.call("delay.list", topic="t")).fields["pending_count"] == 0


async def test_the_command_tells_what_is_cancelled_where_one_broker_is_down(
    broker: Broker, connection: Connection
) -> None:
    id = (await send(connection, b"x", at_ms=in_ms(3_600_000)))["id"]
    down = f"127.0.0.1:{free_port()}"
    for which, count in ((id, 1), ("--all", 0)):
        done = await ran(broker, "cancel", "t", which, f"--nsqd-http-address={down}")
        noun = "message" if count == 1 else "messages"
        assert done.stdout == f"http://{broker.http_address}: {count} {noun} cancelled\n"
        assert f"cannot connect to http://{down}" in done.stderr
        assert "is not waiting" not in done.stderr
        assert done.returncode == 1


async def test_a_batch_is_listed_as_one_and_cancelled_in_parts(
    broker: Broker, connection: Connection
) -> None:
    """One that is larger than a request for the messages' cancelling may be."""
    count, at_ms = 10_001, in_ms(3_600_000)
    await send(connection, *[b"x"] * count, at_ms=at_ms)
    last = (await send(connection, b"last", at_ms=at_ms + 1))["id"]
    async with Admin(broker.http_address) as admin:
        assert len((await admin.delayed.list("t", limit=3)).joined()) == 3
        (page,) = [page async for page in admin.delayed.pages("t", limit=3)]
        assert (len(page.items), page.count) == (count, count + 1)
        (rest,) = [page async for page in admin.delayed.pages("t", start=page.next)]
        assert ([message.id for message in rest.items], rest.next) == ([last], None)
        listed = await ran(broker, "list", "t", "--limit=3")
        assert listed.stdout.count("  due ") == 3
        assert f"{count + 1} messages waiting, 3 listed" in listed.stdout
        (done,) = (await admin.delayed.cancel_all("t")).values.values()
        assert len(set(done.cancelled)) == count + 1
