"""Looking into a channel and setting it back, over HTTP."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from tests.interop.server.http.test_log_api import Reader

from martlet.client import Consumer, Identity
from martlet.testing import Broker


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    async with (
        Broker(max_bytes_per_file=65536, journal_interval_ns=10**7, keep_emptied_ns=0) as broker,
        aiohttp.ClientSession() as session,
    ):
        yield Reader(broker, session)


async def publish(reader: Reader, count: int, topic: str = "t", start: int = 0) -> None:
    lines = b"\n".join(b"%d" % number for number in range(start, start + count))
    assert await reader.post("/mpub", lines, topic=topic) == (200, b"OK")


async def make(reader: Reader, count: int, start: int = 0) -> None:
    """Topic t with messages, and its channel c."""
    await publish(reader, count, start=start)
    await reader.post("/channel/create", topic="t", channel="c")


async def all_finished(reader: Reader) -> None:
    while (await peek(reader))["in_flight_count"]:
        pass


async def peek(reader: Reader, **arguments: object) -> Any:
    return await reader.json("/channel/peek", topic="t", channel="c", **arguments)


async def replay(reader: Reader, channel: str = "c", **arguments: object) -> Any:
    status, body = await reader.post(
        "/channel/replay", b"", topic="t", channel=channel, **arguments
    )
    assert status == 200, body
    return json.loads(body)


async def test_all_that_is_not_finished_is_seen_where_it_is(reader: Reader) -> None:
    await make(reader, 4)
    await reader.post("/pub", b"\xff\x00", topic="t", defer=60_000)
    identity = Identity(client_id="looker", user_agent="test/1")
    began_ns = time.time_ns()
    async with Consumer(
        "t", "c", reader.broker.tcp_address, max_in_flight=3, identity=identity
    ) as consumer:
        first, second, third = [await anext(consumer) for _ in range(3)]
        first.finish()
        second.requeue(30_000, backoff=False)
        third.touch()
        while (answer := await peek(reader))["deferred_count"] < 2:
            pass
        fourth = await anext(consumer)
        answer = await peek(reader)
        now_ns = time.time_ns()
        assert answer["next_offset"] is None
        assert (answer["depth"], answer["in_flight_count"], answer["deferred_count"]) == (0, 2, 2)
        by_offset = {message["offset"]: message for message in answer["messages"]}
        assert list(by_offset) == [1, 2, 3, 4]
        assert [message["state"] for message in by_offset.values()] == [
            *("deferred", "in_flight", "in_flight", "deferred")
        ]
        assert [message["attempts"] for message in by_offset.values()] == [1, 1, 1, 0]
        assert [message["body"] for message in by_offset.values()] == ["1", "2", "3", None]
        assert b64decode(by_offset[4]["body_base64"]) == b"\xff\x00"
        for message in (by_offset[2], by_offset[3]):
            assert message["client"]["client_id"] == "looker"
            assert message["client"]["user_agent"] == "test/1"
            assert began_ns <= message["delivered_at_ns"] <= now_ns
            assert now_ns < message["due_ns"] <= now_ns + 60 * 10**9
        assert by_offset[3]["id"] == fourth.id.decode()
        assert 0 < by_offset[1]["due_ns"] - began_ns < 40 * 10**9
        assert 0 < by_offset[4]["due_ns"] - by_offset[4]["timestamp_ns"] <= 60 * 10**9
    # Nothing was taken by looking: it is all there, and the messages in flight are due.
    while (answer := await peek(reader))["in_flight_count"]:
        pass
    states = [message["state"] for message in answer["messages"]]
    assert states == ["deferred", "due", "due", "deferred"]
    assert [message["attempts"] for message in answer["messages"]] == [1, 1, 1, 0]


async def test_page_by_page_and_state_by_state(reader: Reader) -> None:
    await make(reader, 250)
    seen: list[str] = []
    offset: int | None = 0
    while offset is not None:
        answer = await peek(reader, offset=offset, limit=100)
        assert len(answer["messages"]) <= 100
        seen += [message["body"] for message in answer["messages"]]
        offset = answer["next_offset"]
    assert seen == [str(number) for number in range(250)]
    assert (await peek(reader, state="in_flight,due,deferred"))["messages"] == []
    assert len((await peek(reader, state="waiting"))["messages"]) == 100


async def test_a_long_body_is_cut_between_characters(reader: Reader) -> None:
    await reader.post("/pub", "ä".encode() * 1000, topic="t")
    await reader.post("/channel/create", topic="t", channel="c")
    (message,) = (await peek(reader, max_body_bytes=7))["messages"]
    assert message["body"] == "äää"
    assert message["body_bytes"] == 2000
    assert "body_base64" not in message


async def test_an_answer_has_a_limit(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    from martlet.server.http import channel_api

    monkeypatch.setattr(channel_api, "MAX_ANSWER_BYTES", 10)
    await make(reader, 4, start=1000)
    answer = await peek(reader)
    assert ([message["body"] for message in answer["messages"]], answer["next_offset"]) == (
        ["1000", "1001"],
        2,
    )
    answer = await peek(reader, offset=2, max_body_bytes=1)
    assert [message["body"] for message in answer["messages"]] == ["1", "1"]


WRONG = [
    ("peek", "", 400, "MISSING_ARG_TOPIC"),
    ("peek", "topic=t", 400, "MISSING_ARG_CHANNEL"),
    ("peek", "topic=none&channel=c", 404, "TOPIC_NOT_FOUND"),
    ("peek", "topic=t&channel=none", 404, "CHANNEL_NOT_FOUND"),
    ("peek", "topic=t&channel=$", 400, "INVALID_ARG_CHANNEL"),
    ("peek", "topic=t&channel=c&limit=0", 400, "INVALID_ARG_LIMIT: 0"),
    ("peek", "topic=t&channel=c&limit=1001", 400, "INVALID_ARG_LIMIT"),
    ("peek", "topic=t&channel=c&offset=x", 400, "INVALID_ARG_OFFSET"),
    ("peek", "topic=t&channel=c&state=lost", 400, "INVALID_ARG_STATE: 'lost'"),
    ("replay", "topic=t&channel=c", 400, "MISSING_ARG_OFFSET"),
    ("replay", "topic=t&channel=c&offset=0&beginning=true", 400, "MISSING_ARG_OFFSET: give one of"),
    ("replay", "topic=t&channel=none&offset=0", 404, "CHANNEL_NOT_FOUND"),
    ("replay", "topic=none&channel=c&offset=0", 404, "TOPIC_NOT_FOUND"),
    ("replay", "topic=t&channel=c&offset=-1", 400, "INVALID_ARG_OFFSET"),
    ("replay", "topic=t&channel=c&beginning=yes", 400, "INVALID_ARG_BEGINNING"),
    (
        "replay",
        "topic=t&channel=c&offset=1",
        409,
        "channel 'c' of topic 't' is at offset 0 and cannot",
    ),
    ("replay", "topic=t&channel=c&offset=0&new=true", 409, "there is a channel 'c'"),
    ("replay", "topic=t&channel=c&offset=0&new=1", 400, "INVALID_ARG_NEW"),
]


async def test_wrong_requests_are_refused_with_a_reason(reader: Reader) -> None:
    await make(reader, 1)
    for path, query, status, message in WRONG:
        ask = reader.get if path == "peek" else reader.post
        answered, body = await ask(f"/channel/{path}?{query}")
        assert (answered, json.loads(body)["message"][: len(message)]) == (status, message)


async def test_a_consumer_gets_everything_again_from_an_offset(reader: Reader) -> None:
    await publish(reader, 100)
    async with Consumer("t", "c", reader.broker.tcp_address) as consumer:
        first = [await anext(consumer) for _ in range(100)]
        for message in first:
            message.finish()
        await all_finished(reader)
        assert await replay(reader, offset=40) == {"offset": 40, "end_offset": 100, "depth": 0}
        again = [await anext(consumer) for _ in range(60)]
        assert [message.body for message in again] == [b"%d" % n for n in range(40, 100)]
        assert {message.attempts for message in again} == {1}
        assert [message.id for message in again] == [message.id for message in first[40:]]
        for message in again:
            message.finish()
        await all_finished(reader)
    assert (await peek(reader))["messages"] == []


async def test_back_to_a_time_and_to_the_beginning_and_a_channel_from_the_past(
    reader: Reader,
) -> None:
    await make(reader, 10)
    between_ns = time.time_ns()
    await publish(reader, 5, start=10)
    await reader.post("/channel/empty", topic="t", channel="c")
    answer = await replay(reader, timestamp_ns=between_ns)
    assert answer == {"offset": 10, "end_offset": 15, "depth": 5}
    assert (await replay(reader, beginning="true"))["depth"] == 15
    assert (await replay(reader, "past", timestamp_ns=between_ns, new="true"))["depth"] == 5
    seen = await reader.json("/channel/peek", topic="t", channel="past")
    assert [message["body"] for message in seen["messages"]] == [str(n) for n in range(10, 15)]


async def test_missing_messages_are_named_and_a_channel_without_readers_keeps_them(
    reader: Reader,
) -> None:
    began_ns = time.time_ns()
    for channel in ("c", "keep"):
        await reader.post("/topic/create", topic="t")
        await reader.post("/channel/create", topic="t", channel=channel)
    for start in range(0, 30_000, 1000):
        await publish(reader, 1000, start=start)
    await reader.post("/channel/empty", topic="t", channel="c")
    await reader.broker.server.flusher.checkpoint()
    assert (await replay(reader, offset=0))["depth"] == 30_000
    for channel in ("c", "keep"):
        await reader.post("/channel/empty", topic="t", channel=channel)
    await reader.broker.server.flusher.checkpoint()
    for where, value in (("offset", 5), ("timestamp_ns", began_ns)):
        path = f"/channel/replay?topic=t&channel=c&{where}={value}"
        status, body = await reader.post(path)
        answer = json.loads(body)
        assert status == 410
        assert "deleted" in answer["message"]
        start = answer["start_offset"]
        assert start > 5
        assert began_ns < answer["start_ns"] < time.time_ns()
    assert (await replay(reader, beginning="true"))["offset"] == start
