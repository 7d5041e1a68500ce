"""SEND as a server answers it: waiting or not, late, repeated, unanswered, and to which queue."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.interop.connections import connected

from martlet.client.transport.connection import Connection
from martlet.log.segmented import FlushJob
from martlet.protocol.nsq import commands
from martlet.testing import Broker

PRODUCER = "ab" * 16


async def send(connection: Connection, *bodies: bytes, **options: object) -> dict[str, Any]:
    body = await asyncio.wait_for(
        connection.ask(commands.send("t", list(bodies) or [b"x"], options)), 20
    )
    answer: dict[str, Any] = json.loads(body)
    return answer


@asynccontextmanager
async def slow_disk(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """No flush ends meanwhile."""
    disk, go_on = broker.server.flusher, threading.Event()
    run = disk._run

    def slowly(job: Any) -> None:
        assert go_on.wait(30)
        run(job)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "_run", slowly)
        try:
            yield
        finally:
            go_on.set()


async def test_a_send_that_need_not_wait_for_the_disk_is_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(tmp_path, flush="sync") as broker, connected(broker) as connection:
        async with slow_disk(broker, monkeypatch):
            answer = await send(connection, b"1", b"2", wait=False)
            assert (answer["status"], answer["offset"], answer["count"]) == ("OK", 0, 2)
            assert broker.server.commits.durable_position is not None
            assert broker.server.commits.durable_position < broker.server.broker.log.position
            waits = asyncio.create_task(send(connection, b"3"))
            behind = asyncio.create_task(send(connection, b"4", wait=False))
            await send(connection, b"5", flush_timeout_ms=50)
            assert [waits.done(), behind.done()] == [False, False]
        assert [(await each)["status"] for each in (waits, behind)] == ["OK", "OK"]


async def test_messages_sent_without_waiting_become_durable_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"flush": "sync", "sync_timeout_ns": 5_000_000}
    async with Broker(tmp_path, **options) as broker, connected(broker) as connection:
        log, is_durable = broker.server.broker.log, asyncio.Event()
        flushed = log.flushed

        def record(job: FlushJob) -> None:
            flushed(job)
            if answer.done() and log.durable_position == log.position:
                is_durable.set()

        monkeypatch.setattr(log, "flushed", record)
        answer = asyncio.create_task(send(connection, wait=False))
        assert (await answer)["status"] == "OK"
        if log.durable_position < log.position:
            await asyncio.wait_for(is_durable.wait(), 50)


async def test_a_flush_timeout_is_reported_and_a_repetition_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(tmp_path, flush="sync") as broker, connected(broker) as connection:
        async with slow_disk(broker, monkeypatch):
            options = {"producer": PRODUCER, "sequence": 1, "flush_timeout_ms": 30}
            late = await send(connection, b"1", **options)
            assert (late["status"], late["offset"]) == ("FLUSH_DISK_TIMEOUT", 0)
            again = await send(connection, b"1", **options)
            assert (again["status"], again["duplicate"]) == ("FLUSH_DISK_TIMEOUT", True)
            both = [
                asyncio.create_task(send(connection, b"2", flush_timeout_ms=timeout_ms))
                for timeout_ms in (60_000, 20_000)
            ]
            last = asyncio.create_task(
                send(connection, b"1", producer=PRODUCER, sequence=1, flush_timeout_ms=30_000)
            )
            await asyncio.sleep(0)
        assert [(await each)["status"] for each in both] == ["OK", "OK"]
        assert await last == again | {"status": "OK"}
        assert broker.server.broker.topics["t"].queue.end_offset == 3


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_a_send_that_is_repeated_is_stored_once(tmp_path: Path, flush: str) -> None:
    async with Broker(tmp_path, flush=flush) as broker, connected(broker) as connection:
        options = {"producer": PRODUCER, "sequence": 1}
        answers = await asyncio.gather(
            *(send(connection, b"1", b"2", **options) for _ in range(3)),
            send(connection, b"3", producer=PRODUCER, sequence=2),
        )
        assert [each.get("duplicate", False) for each in answers] == [False, True, True, False]
        first = answers[0]
        for again in answers[1:3]:
            assert again == first | {"duplicate": True}
    async with Broker(tmp_path, flush=flush) as broker, connected(broker) as connection:
        assert await send(connection, b"1", b"2", **options) == first | {"duplicate": True}
        assert (await send(connection, b"4"))["offset"] == 3
        reused = await send(connection, b"other", **options)
        assert reused["status"] == "SEQUENCE_REUSED"
        for number in range(3, 80):
            await send(connection, b"x", producer=PRODUCER, sequence=number)
        old = await send(connection, b"1", b"2", **options)
        assert old["status"] == "TOO_OLD"
        assert "its last 64 sends are known" in old["text"]


async def test_metrics_count_repeated_sends(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker, connected(broker) as connection:
        for _ in range(3):
            await send(connection, producer=PRODUCER, sequence=1)
        async with (
            aiohttp.ClientSession(f"http://{broker.http_address}") as http,
            http.get("/metrics") as response,
        ):
            metrics = await response.text()
        assert "martlet_known_producers 1\n" in metrics
        assert "martlet_repeated_sends_total 2\n" in metrics


async def test_oneway_has_no_answer_and_its_errors_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker(tmp_path) as broker, connected(broker) as connection:
        with caplog.at_level(logging.ERROR):
            connection.write(commands.send("t", [b"1"], {"oneway": True}))
            connection.write(commands.send("t", [b"2"], {"oneway": True, "queue": 7}))
            connection.write(commands.send("t", [b"3"], {"oneway": True, "no": 1}))
            answer = await send(connection, b"4")
        assert answer["offset"] == 1
        assert "what was sent to t is dropped: topic 't' has no queue 7" in caplog.text
        assert "unknown argument 'no'" in caplog.text


async def test_the_queue_is_the_one_that_is_named_or_that_of_the_order_key(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker, connected(broker) as connection:
        broker.server.broker.set_queues("t", 4)
        queues = [(await send(connection, queue=number))["queue"] for number in range(4)]
        assert queues == [0, 1, 2, 3]
        keyed = {(await send(connection, order_key="customer 7"))["queue"] for _ in range(6)}
        assert len(keyed) == 1
        options = {"producer": PRODUCER, "sequence": 1}
        first = await send(connection, **options)
        assert [(await send(connection, **options))["queue"] for _ in range(5)] == [
            first["queue"]
        ] * 5


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (
            {"queue": 1},
            "NO_QUEUE",
            "topic 't' has no queue 1: it has 1 queue, number 0; add queues with:",
        ),
        ({"queue": 0, "order_key": "k"}, "BAD_ARGUMENT", "give one"),
        ({"producer": PRODUCER}, "MISSING_ARGUMENT", "'sequence' is missing"),
        ({"sequence": 1}, "MISSING_ARGUMENT", "'producer' is missing"),
        ({"producer": "ab", "sequence": 1}, "BAD_ARGUMENT", "must be 32 hexadecimal digits"),
        ({"producer": PRODUCER, "sequence": 0}, "BAD_ARGUMENT", "number from 1"),
        ({"flush_timeout_ms": 0}, "BAD_ARGUMENT", "'flush_timeout_ms' must be a whole number"),
        ({"oneway": 1}, "BAD_ARGUMENT", "'oneway' must be true or false"),
        ({"claim_ms": -1}, "BAD_ARGUMENT", "'claim_ms' must be a whole number"),
    ],
)
async def test_wrong_options_are_refused(
    tmp_path: Path, options: dict[str, object], status: str, text: str
) -> None:
    async with Broker(tmp_path) as broker, connected(broker) as connection:
        answer = await send(connection, **options)
        assert answer["status"] == status
        assert text in answer["text"]
        assert (await send(connection))["offset"] == 0
