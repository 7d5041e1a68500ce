"""The endpoints for readers of the log, on a broker with segments so small that it rolls."""

import json
import time
from collections.abc import AsyncIterator

import aiohttp
import numpy as np
import pytest
from tests.unit.server.http.standby_reader import (
    ID_BYTES,
    HttpReader,
    messages_of,
    records_of,
)

from martlet.log.index import ENTRY
from martlet.log.record import HEADER_BYTES, align8
from martlet.testing import Broker

BODIES = [b"message %05d " % number + b"x" * (number % 50) for number in range(3000)]
A_TIME = 100
Answer = tuple[int, bytes]


class Reader(HttpReader):
    """Ask a broker in this process."""

    def __init__(self, broker: Broker, session: aiohttp.ClientSession) -> None:
        super().__init__(broker.http_address, session)
        self.broker = broker

    async def publish_with(self, headers: dict[str, str], topic: str, body: bytes) -> Answer:
        return await self._ask("POST", "/pub", {"topic": topic}, data=body, headers=headers)


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    async with (
        Broker(max_bytes_per_file=65536, journal_interval_ns=10**7) as broker,
        aiohttp.ClientSession() as session,
    ):
        yield Reader(broker, session)


async def publish(reader: Reader, topic: str = "t", bodies: list[bytes] = BODIES) -> None:
    for start in range(0, len(bodies), A_TIME):
        data = b"\n".join(bodies[start : start + A_TIME])
        assert await reader.post("/mpub", data, topic=topic) == (200, b"OK")
        if start % 500 == 0:  # other queues' records lie between
            assert await reader.post("/pub", b"other", topic="other") == (200, b"OK")


def bodies_of(records: bytes, offset: int) -> list[bytes]:
    """The bodies in these records from an offset on."""
    messages = messages_of(records)
    return [message[ID_BYTES:] for at, message in messages.items() if at >= offset]


async def test_lists_topics_with_their_offsets(reader: Reader) -> None:
    await publish(reader)
    listing = await reader.json("/log/topics")
    identity = json.loads((reader.broker.data_path / "broker.json").read_bytes())
    assert listing["broker"] == identity["broker"]
    assert listing["data_path"] == str(reader.broker.data_path)
    assert [topic["topic"] for topic in listing["topics"]] == ["other", "t"]
    (queue,) = listing["topics"][1]["queues"]
    assert queue == {"queue": 0, "start_offset": 0, "end_offset": len(BODIES)}


async def test_a_reader_gets_every_message_from_any_offset(reader: Reader) -> None:
    await publish(reader)
    for offset in (0, 1, 99, 100, 1234, len(BODIES) - 1):
        bodies: list[bytes] = []
        while True:
            status, records = await reader.get(
                "/log/batches", topic="t", offset=offset + len(bodies), max_bytes=40_000
            )
            if status == 204:
                break
            assert status == 200
            bodies += bodies_of(records, offset + len(bodies))
        assert bodies == BODIES[offset:]


async def test_one_batch_comes_even_if_it_is_larger_than_asked_for(reader: Reader) -> None:
    await publish(reader)
    status, records = await reader.get("/log/batches", topic="t", offset=150, max_bytes=1)
    assert status == 200
    assert bodies_of(records, 0) == BODIES[100:200]


async def test_the_end_of_the_log_differs_from_a_dropped_offset(reader: Reader) -> None:
    await publish(reader)
    assert await reader.get("/log/batches", topic="t", offset=len(BODIES)) == (204, b"")
    await reader.post("/channel/create", topic="t", channel="c")
    await reader.post("/channel/create", topic="other", channel="c")
    for topic, offset in (("t", 2900), ("other", 6)):
        answer = await reader.post("/channel/advance", topic=topic, channel="c", offset=offset)
        assert answer == (200, b"")
    await reader.broker.server.flusher.checkpoint()
    (queue,) = (await reader.json("/log/topics"))["topics"][1]["queues"]
    assert 0 < queue["start_offset"] <= 2900
    status, body = await reader.get("/log/batches", topic="t", offset=0)
    assert status == 410
    error = json.loads(body)
    assert error["start_offset"] == queue["start_offset"]
    assert "offset 0 of topic t has gone" in error["message"]
    status, records = await reader.get("/log/batches", topic="t", offset=2900, max_bytes=10**6)
    assert bodies_of(records, 2900) == BODIES[2900:]


async def test_the_index_lists_the_batches_of_a_range(reader: Reader) -> None:
    await publish(reader)
    status, rows = await reader.get("/log/index", topic="t", queue=0, start=150, end=301)
    assert status == 200
    entries = np.frombuffer(rows, ENTRY)
    assert entries["first_offset"].tolist() == [100, 200, 300]
    assert entries["count"].tolist() == [100, 100, 100]
    for start, end in ((5, 5), (len(BODIES), len(BODIES) + 10)):
        assert await reader.get("/log/index", topic="t", start=start, end=end) == (200, b"")
    _, rows = await reader.get("/log/index", topic="t", start=0, end=10**9)
    assert int(np.frombuffer(rows, ENTRY)["count"].sum()) == len(BODIES)


async def test_an_offset_is_found_by_time(reader: Reader) -> None:
    before_ns = time.time_ns() - 10**9
    await publish(reader, bodies=BODIES[:200])
    _, rows = await reader.get("/log/index", topic="t", start=0, end=200)
    second_ns = int(np.frombuffer(rows, ENTRY)["stored_at_ns"][1])
    for moment_ns, offset in ((before_ns, 0), (second_ns, 100), (second_ns + 1, 200), (0, 0)):
        answer = await reader.json("/log/offset", topic="t", timestamp_ns=moment_ns)
        assert answer == {"offset": offset}


async def test_advancing_makes_a_channel_that_begins_where_the_queue_does(reader: Reader) -> None:
    await publish(reader, bodies=BODIES[:300])
    await reader.post("/channel/create", topic="t", channel="first")
    assert await reader.post("/channel/advance", topic="t", channel="spark", offset=0) == (200, b"")
    stats = await reader.json("/stats", format="json", topic="t")
    depths = {c["channel_name"]: c["depth"] for c in stats["topics"][0]["channels"]}
    assert depths == {"first": 300, "spark": 300}
    await reader.post("/channel/advance", topic="t", channel="spark", offset=120)
    await reader.post("/channel/advance", topic="t", channel="spark", offset=50)
    stats = await reader.json("/stats", format="json", topic="t", channel="spark")
    assert stats["topics"][0]["channels"][0]["depth"] == 180


@pytest.mark.parametrize(
    ("path", "arguments", "status", "message"),
    [
        ("/log/batches", {"offset": 0}, 400, "MISSING_ARG_TOPIC"),
        ("/log/batches", {"topic": "no$", "offset": 0}, 400, "INVALID_ARG_TOPIC"),
        ("/log/batches", {"topic": "none", "offset": 0}, 404, "TOPIC_NOT_FOUND"),
        ("/log/batches", {"topic": "t", "queue": 1, "offset": 0}, 404, "QUEUE_NOT_FOUND"),
        ("/log/batches", {"topic": "t"}, 400, "MISSING_ARG_OFFSET"),
        ("/log/batches", {"topic": "t", "offset": -1}, 400, "INVALID_ARG_OFFSET: '-1'"),
        ("/log/batches", {"topic": "t", "offset": 10**30}, 400, "INVALID_ARG_OFFSET"),
        ("/log/offset", {"topic": "t", "timestamp_ns": "now"}, 400, "INVALID_ARG_TIMESTAMP_NS"),
        ("/log/index", {"topic": "t", "start": 0}, 400, "MISSING_ARG_END"),
    ],
)
async def test_wrong_requests_are_refused_with_a_reason(
    reader: Reader, path: str, arguments: dict[str, object], status: int, message: str
) -> None:
    await publish(reader, bodies=BODIES[:1])
    answered, body = await reader.get(path, **arguments)
    assert answered == status
    assert json.loads(body)["message"].startswith(message)


async def test_a_channel_does_not_advance_behind_the_end(reader: Reader) -> None:
    await publish(reader, bodies=BODIES[:10])
    status, body = await reader.post("/channel/advance", topic="t", channel="c", offset=11)
    assert status == 400
    assert "11 is past the end of the queue, 10" in json.loads(body)["message"]


async def test_only_the_topics_that_are_named(reader: Reader) -> None:
    for topic in ("t", "u", "v"):
        await reader.post("/pub", b"x", topic=topic)
    listing = await reader.json("/log/topics", names="v,missing,t,v")
    assert [topic["topic"] for topic in listing["topics"]] == ["t", "v"]


async def test_the_offset_that_a_number_of_bytes_reaches(reader: Reader) -> None:
    await publish(reader)
    _, body = await reader.get("/log/index", topic="t", start=0, end=len(BODIES))
    rows = np.frombuffer(body, ENTRY)
    lengths = rows["length"].astype(int).tolist()

    async def reach(start: int, end: int, max_bytes: int) -> tuple[int, int]:
        answer = await reader.json(
            "/log/reach", topic="t", start=start, end=end, max_bytes=max_bytes
        )
        return answer["offset"], answer["bytes"]

    end = len(BODIES)
    assert await reach(0, end, 10**9) == (end, sum(lengths))
    assert await reach(0, end, sum(lengths[:3])) == (3 * A_TIME, sum(lengths[:3]))
    assert await reach(0, end, sum(lengths[:3]) - 1) == (2 * A_TIME, sum(lengths[:2]))
    assert await reach(150, end, 0) == (2 * A_TIME, lengths[1])
    assert await reach(150, 170, 10**9) == (170, lengths[1])
    assert await reach(end, end, 10**9) == (end, 0)


async def test_batches_without_their_bodies(reader: Reader) -> None:
    for tag in ("", "red", "orange", ""):
        headers = {"X-Martlet-Tag": tag} if tag else {}
        assert await reader.publish_with(headers, "t", b"y" * 1000) == (200, b"OK")
    _, heads = await reader.get("/log/batches", topic="t", offset=0, bodies="false")
    _, records = await reader.get("/log/batches", topic="t", offset=0)
    expected = b""
    for header, record in records_of(records):
        block_at = header.properties_at
        expected += bytes(record[:HEADER_BYTES])
        expected += bytes(record[block_at : block_at + align8(header.properties_length)])
    assert heads == expected
    assert 4 * HEADER_BYTES < len(heads) < 1000
    assert b"orange" in heads


async def test_a_topic_made_anew_is_another_one(reader: Reader) -> None:
    await reader.post("/pub", b"x", topic="t")
    ((topic_id,),) = [[topic["topic_id"] for topic in (await reader.json("/log/topics"))["topics"]]]
    queue = {"topic": "t", "topic_id": topic_id}
    assert (await reader.get("/log/index", **queue, start=0, end=1))[0] == 200
    await reader.post("/topic/delete", topic="t")
    await reader.post("/pub", b"y", topic="t")
    for path, arguments in (
        ("/log/index", {"start": 0, "end": 1}),
        ("/log/batches", {"offset": 0}),
        ("/log/reach", {"start": 0, "end": 1, "max_bytes": 1}),
    ):
        status, body = await reader.get(path, **queue, **arguments)
        assert (status, json.loads(body)["message"].split(":")[0]) == (404, "TOPIC_MADE_ANEW")


async def test_a_reader_is_listed_as_a_group(reader: Reader) -> None:
    await publish(reader)
    fields = {"topic": "t", "group": "spark", "retain": False, "offsets": {"0": 1200}}
    status, body = await reader.post("/call/group.follow", json.dumps(fields).encode())
    assert (status, json.loads(body)["lag"]) == (200, len(BODIES) - 1200)
    stats = await reader.json("/stats", format="json", topic="t")
    (channel,) = stats["topics"][0]["channels"]
    assert (channel["channel_name"], channel["depth"]) == ("spark", len(BODIES) - 1200)
    _, metrics = await reader.get("/metrics")
    depths = [line for line in metrics.decode().splitlines() if 'channel="spark"' in line]
    assert any(line.startswith("martlet_channel_depth") for line in depths), depths
    _, body = await reader.post("/call/group.list")
    (group,) = json.loads(body)["groups"]
    assert (group["kind"], group["retain"], group["lag"]) == ("follower", False, 1800)
    for wrong, code, status in (
        ({"offsets": {"0": 10**6}}, "OUT_OF_REACH", 409),
        ({"offsets": {"7": 1}}, "NOT_FOUND", 404),
        ({"topic": "missing"}, "NOT_FOUND", 404),
        ({"topic_id": 999}, "NOT_FOUND", 404),
        ({"group": "a#ephemeral"}, "BAD_ARGUMENT", 400),
    ):
        response = await reader.post("/call/group.follow", json.dumps(fields | wrong).encode())
        assert (response[0], json.loads(response[1])["code"]) == (status, code)
    reset = {"topic": "t", "group": "spark", "to": "last"}
    status, body = await reader.post("/call/group.reset", json.dumps(reset).encode())
    assert (status, json.loads(body)["code"]) == (409, "CONFLICT")


async def test_the_index_of_many_queues_at_once(reader: Reader) -> None:
    await publish(reader)
    await reader.post("/topic/create", topic="empty")
    topic_ids = {t["topic"]: t["topic_id"] for t in (await reader.json("/log/topics"))["topics"]}
    end = len(BODIES)
    ranges = [("t", 10, end - 10), ("empty", 0, 0), ("other", 0, 2), ("t", 0, end), ("t", end, 9)]
    rows = [[topic, 0, topic_ids[topic], first, last] for topic, first, last in ranges]
    status, body = await reader.post("/log/index", json.dumps(rows).encode())
    assert status == 200
    expected = b""
    for topic, first, last in ranges:
        _, entries = await reader.get("/log/index", topic=topic, start=first, end=last)
        expected += (len(entries) // ENTRY.itemsize).to_bytes(8, "little") + entries
    assert body == expected


@pytest.mark.parametrize(
    ("body", "status", "error_text"),
    [
        (b"", 400, "INVALID_BODY: it must be a JSON list of"),
        (b'{"t": 1}', 400, "INVALID_BODY"),
        (b'[["t", 0, 1, 0]]', 400, "INVALID_BODY"),
        (b'[["t", 0, "x", 0, 1]]', 400, "INVALID_BODY"),
        (b'[["t", 0, 1, 0, 1e400]]', 400, "INVALID_BODY"),
        (b'[["t", 0, 1, -1, 1]]', 400, "a number is negative, or too large"),
        (b'[["t", 0, 1, 0, 9223372036854775808]]', 400, "a number is negative, or too large"),
        (json.dumps([["t", 0, 1, 0, 1]] * 1001).encode(), 400, "1001, and 1000 at most"),
        (b'[["missing", 0, 1, 0, 1]]', 404, "TOPIC_NOT_FOUND"),
        (b'[["t", 7, 1, 0, 1]]', 404, "QUEUE_NOT_FOUND"),
        (b'[["t", 0, 999, 0, 1]]', 404, "TOPIC_MADE_ANEW"),
        (b'[["not a name", 0, 1, 0, 1]]', 400, "INVALID_ARG_TOPIC"),
    ],
)
async def test_an_index_of_many_queues_that_is_asked_for_wrongly(
    reader: Reader, body: bytes, status: int, error_text: str
) -> None:
    await reader.post("/topic/create", topic="t")
    answer = await reader.post("/log/index", body)
    assert (answer[0], error_text in answer[1].decode()) == (status, True), answer
