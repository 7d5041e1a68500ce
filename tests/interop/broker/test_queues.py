"""Topics of several queues: NSQ's clients see one topic, readers each queue."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.crash.wire import Message, Wire, dpub, drain, mpub, pub, until
from tests.interop.agent import Agent
from tests.interop.broker.consuming import take
from tests.interop.nsqd_process import NEEDS_NSQD, NSQD
from tests.interop.server.http.test_log_api import Reader

from martlet.client import Consumer, Producer
from martlet.testing import Broker

ROOT = Path(__file__).parents[3]
TOPIC = "queued"
COUNT = 400
ENOUGH_S = 60


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    async with (
        Broker(max_bytes_per_file=1 << 16, journal_interval_ns=10**7) as broker,
        aiohttp.ClientSession() as session,
    ):
        yield Reader(broker, session)


async def create(reader: Reader, queues: object, topic: str = TOPIC) -> tuple[int, bytes]:
    return await reader.post("/topic/create", b"", topic=topic, queues=queues)


async def fill(reader: Reader, topic: str = TOPIC) -> list[bytes]:
    """Publish in all of NSQ's ways; what was published."""
    wire = await Wire.open(reader.broker.tcp_address)
    bodies = [b"%d" % number for number in range(COUNT)]
    for at in range(0, COUNT, 20):
        some = bodies[at : at + 20]
        for command in (mpub(topic, some[:10]), pub(topic, some[10]), mpub(topic, some[11:19])):
            wire.send(command)
            await wire.ok()
        wire.send(dpub(topic, 1, some[19]))
        await wire.ok()
    wire.close()
    return bodies


async def topic_report(reader: Reader, topic: str = TOPIC) -> Any:
    (report,) = (await reader.json("/stats", format="json", topic=topic))["topics"]
    return report


async def queues_of(reader: Reader, topic: str = TOPIC) -> list[dict[str, int]]:
    listed = await reader.json("/log/topics")
    (entry,) = [entry for entry in listed["topics"] if entry["topic"] == topic]
    queues: list[dict[str, int]] = entry["queues"]
    return queues


async def test_third_party_clients_consume_all_queues_each_message_once(reader: Reader) -> None:
    assert (await create(reader, 4))[0] == 200
    channels = ("ansq", "pynsq", "martlet", "wire")
    for channel in channels:
        assert (await reader.post("/channel/create", b"", topic=TOPIC, channel=channel))[0] == 200
    bodies = Counter(await fill(reader))
    assert all(queue["end_offset"] >= COUNT / 20 for queue in await queues_of(reader))
    address = reader.broker.tcp_address

    for library in ("ansq", "pynsq"):
        module = f"tests.interop.agents.{library}_agent"
        with Agent([sys.executable, "-m", module, address, TOPIC, library], cwd=ROOT) as agent:

            def received(agent: Agent = agent) -> Counter[bytes]:
                counts = Counter(body.encode() for body in agent.bodies("received"))
                return Counter({body: counts[body] for body in bodies})

            def has_all(received: Callable[[], Counter[bytes]] = received) -> bool:
                return all(received().values())

            await asyncio.to_thread(agent.wait, "all messages", ENOUGH_S, has_all)
            assert received() == bodies

    ours: Counter[bytes] = Counter()
    async with Consumer(TOPIC, "martlet", address, max_in_flight=50) as consumer:
        async with asyncio.timeout(ENOUGH_S):
            while ours.total() < COUNT:
                ours.update(body for body in await take(consumer, 1) if body in bodies)
    assert ours == bodies
    drained = await drain(address, reader.broker.http_address, TOPIC, "wire", rdy=1)
    assert bodies <= Counter(message.body for message in drained)


@NEEDS_NSQD
async def test_nsqs_own_tools_consume_all_queues(reader: Reader, tmp_path: Path) -> None:
    assert NSQD is not None
    await create(reader, 4)
    bodies = await fill(reader)
    process = await asyncio.create_subprocess_exec(
        str(Path(NSQD).parent / "nsq_tail"),
        *(f"--topic={TOPIC}", "--channel=tail", f"--nsqd-tcp-address={reader.broker.tcp_address}"),
        f"-n={COUNT}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(ENOUGH_S):
        out, _ = await process.communicate()
    assert sorted(out.split()) == sorted(bodies)


async def test_a_topic_grows_under_a_client_that_consumes(reader: Reader) -> None:
    address = reader.broker.tcp_address
    got: list[bytes] = []
    async with Consumer(TOPIC, "c", address, max_in_flight=3) as consumer, Producer(address) as out:
        async with asyncio.timeout(ENOUGH_S):
            for queues in (1, 2, 5):
                assert (await create(reader, queues))[0] == 200
                for number in range(40):
                    await out.publish(TOPIC, b"%d %d" % (queues, number))
                got += await take(consumer, 40)
    assert len(set(got)) == len(got) == 120
    assert len(await queues_of(reader)) == 5
    (client,) = (await topic_report(reader))["channels"][0]["clients"] or [None]
    assert client is None or client["finish_count"] == 120


async def test_stats_show_one_topic_with_the_sums_of_its_queues(reader: Reader) -> None:
    await create(reader, 3)
    await reader.post("/channel/create", b"", topic=TOPIC, channel="c")
    await fill(reader)
    wire = await Wire.subscribed(reader.broker.tcp_address, TOPIC, "c")
    wire.send(b"RDY 10\n")
    held: list[Message] = [await wire.message() for _ in range(10)]
    wire.send(b"RDY 6\n" + b"".join(b"FIN %b\n" % message.id for message in held[:4]))

    async def six_are_held() -> bool:
        return bool((await topic_report(reader))["channels"][0]["in_flight_count"] == 6)

    await until(six_are_held)
    report = await topic_report(reader)
    (channel,) = report["channels"]
    assert report["message_count"] == channel["message_count"] == COUNT
    assert channel["depth"] + channel["deferred_count"] == COUNT - 10
    (client,) = channel["clients"]
    assert (client["ready_count"], client["in_flight_count"]) == (6, 6)
    assert (client["message_count"], client["finish_count"]) == (10, 4)
    assert [queue["queue"] for queue in report["queues"]] == [0, 1, 2]
    assert sum(queue["end_offset"] for queue in report["queues"]) == COUNT
    assert sum(queue["channels"]["c"] for queue in report["queues"]) == channel["depth"]
    metrics = (await reader.get("/metrics"))[1].decode()
    assert f'martlet_topic_published_messages_total{{topic="{TOPIC}"}} {COUNT}\n' in metrics
    assert 'martlet_channel_finished_messages_total{topic="queued",channel="c"} 4\n' in metrics
    assert "martlet_topics 1\n" in metrics
    await reader.post("/topic/create", b"", topic="plain")
    assert "queues" not in json.dumps(await topic_report(reader, "plain"))
    wire.close()


async def test_impossible_queue_counts_are_refused_with_what_to_do(reader: Reader) -> None:
    await create(reader, 8)
    for count, topic, status, text in (
        (0, "new", 400, b"INVALID_ARG_QUEUES: a topic has 1 to 1024 queues"),
        (1025, "new", 400, b"INVALID_ARG_QUEUES: a topic has 1 to 1024 queues"),
        ("x", "new", 400, b""),
        (2, "bad name", 400, b""),
        (4, TOPIC, 409, b"has 8 queues and cannot have 4"),
    ):
        answer = await create(reader, count, topic)
        assert (answer[0], text in answer[1]) == (status, True), answer
    assert len(await queues_of(reader)) == 8


async def test_a_call_makes_queues_too(reader: Reader) -> None:
    async def call(**fields: object) -> tuple[int, Any]:
        status, body = await reader.post("/call/topic.create", json.dumps(fields).encode())
        return status, json.loads(body)

    status, answer = await call(topic=TOPIC)
    assert (status, [queue["queue"] for queue in answer["queues"]]) == (200, [0])
    status, answer = await call(topic=TOPIC, queues=3)
    assert (status, [queue["queue"] for queue in answer["queues"]]) == (200, [0, 1, 2])
    status, answer = await call(topic=TOPIC, queues=2)
    assert (status, answer["code"]) == (409, "CONFLICT")
    status, answer = await call(topic=TOPIC, queues=1025)
    assert status == 400
    assert "'queues' must be a whole number from 1 to 1024" in answer["message"]


async def test_readers_name_the_queue(reader: Reader) -> None:
    await create(reader, 3)
    await fill(reader)
    queues = await queues_of(reader)
    topic_ids = [queue.get("topic_id", 0) for queue in queues]
    assert len(set(topic_ids)) == 3
    for queue in queues:
        number, end = queue["queue"], queue["end_offset"]
        status, rows = await reader.get("/log/index", topic=TOPIC, queue=number, start=0, end=end)
        assert (status, len(rows) % 40) == (200, 0)
        assert rows
        status, records = await reader.get("/log/batches", topic=TOPIC, queue=number, offset=0)
        assert status == 200
        assert records
        answer = await reader.json("/log/offset", topic=TOPIC, queue=number, timestamp_ns=0)
        assert answer == {"offset": 0}
    for path in ("/log/index", "/log/batches", "/log/offset", "/channel/peek"):
        status, _ = await reader.get(path, topic=TOPIC, channel="c", queue=3)
        assert status == 404, path


async def test_a_channel_is_looked_at_advanced_and_set_back_at_each_queue(reader: Reader) -> None:
    await create(reader, 3)
    await fill(reader)
    queues = await queues_of(reader)
    advance = {"topic": TOPIC, "channel": "c"}
    assert (await reader.post("/channel/advance", b"", **advance, queue=1, offset=5))[0] == 200
    for queue in queues:
        answer = await reader.json(
            "/channel/peek", topic=TOPIC, channel="c", queue=queue["queue"], limit=1000
        )
        assert answer["queue_count"] == 3
        first = 5 if queue["queue"] == 1 else 0
        assert [m["offset"] for m in answer["messages"]] == [*range(first, queue["end_offset"])]
    depth = (await topic_report(reader))["channels"][0]["depth"]
    assert depth == COUNT - 5

    status, body = await reader.post("/channel/replay", b"", **advance, offset=0)
    assert status == 400
    assert b"MISSING_ARG_QUEUE: topic queued has 3 queues" in body
    status, body = await reader.post("/channel/replay", b"", **advance, offset=0, queue=1)
    assert status == 200
    assert json.loads(body)["depth"] == COUNT
    drained = await drain(reader.broker.tcp_address, reader.broker.http_address, TOPIC, "c")
    assert len(drained) == COUNT
    status, body = await reader.post("/channel/replay", b"", **advance, beginning="true")
    assert [entry["offset"] for entry in json.loads(body)["queues"]] == [0, 0, 0]
    assert json.loads(body)["depth"] == COUNT
    past = {"topic": TOPIC, "channel": "past", "new": "true", "timestamp_ns": 0}
    status, body = await reader.post("/channel/replay", b"", **past)
    assert (status, json.loads(body)["depth"]) == (200, COUNT)
