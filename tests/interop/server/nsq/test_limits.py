"""Limits that an operator sets, and clients at the edge of what is allowed: what is refused says
why and what to do, and nothing that was answered OK is lost.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.crash.wire import (
    ERROR,
    HttpRefused,
    Refused,
    Wire,
    channels_of,
    drain,
    http,
    mpub,
    pub,
    u32,
    until,
)
from tests.interop.memory import MIB, anonymous_bytes

from martlet.testing import BrokerProcess
from martlet.text import readable_size

pytestmark = pytest.mark.interop

QUIET = "--log-level=fatal"


async def refused(broker: BrokerProcess, command: bytes) -> str:
    """The error that a client is given, whose connection then ends."""
    wire = await Wire.open(broker.tcp_address)
    wire.send(command)
    frame = await wire.answer()
    assert frame.type == ERROR, frame
    assert await wire.ended() == b""
    wire.close()
    return frame.data.decode()


async def answered(broker: BrokerProcess, *commands: bytes) -> None:
    wire = await Wire.open(broker.tcp_address)
    for command in commands:
        wire.send(command)
        await wire.ok()
    wire.close()


# names


async def test_no_more_topics_are_made_than_may_be(tmp_path: Path) -> None:
    why = "would be one too many: there are 2, and --max-topics is 2; delete one"
    with BrokerProcess(tmp_path, QUIET, "--max-topics=2") as broker:
        await answered(broker, pub("one", b"1"), mpub("two", [b"2"]))
        for verb, command in {
            "PUB": pub("three", b"x"),
            "MPUB": mpub("three", [b"x"]),
            "DPUB": b"DPUB three 10\n" + u32(1) + b"x",
            "SUB": b"SUB three c\n",
        }.items():
            error = await refused(broker, command)
            assert error.startswith(f"E_{verb}_FAILED {verb} failed topic 'three' {why}"), error
        for path in ("/pub", "/mpub", "/topic/create"):
            code = "REFUSED" if path == "/topic/create" else "PUB_FAILED"
            with pytest.raises(HttpRefused, match=f"503 {code} .*, or raise --max-topics"):
                await http(broker.http_address, f"{path}?topic=three", b"x")
        await answered(broker, pub("one", b"1"), b"SUB two c\n")
        await http(broker.http_address, "/topic/delete?topic=one", b"")
        await answered(broker, pub("three", b"3"))
    with BrokerProcess(tmp_path, QUIET, "--max-topics=1") as broker:
        await answered(broker, pub("two", b"2"), pub("three", b"3"))
        assert "there are 2, and --max-topics is 1" in await refused(broker, pub("four", b"4"))


async def test_no_more_channels_are_made_than_a_topic_may_have(tmp_path: Path) -> None:
    why = "topic 't' has 1, and --max-channels-per-topic is 1"
    with BrokerProcess(tmp_path, QUIET, "--max-channels-per-topic=1") as broker:
        await answered(broker, b"SUB t c\n")
        await answered(broker, b"SUB t c\n")
        await answered(broker, b"SUB other c\n")
        for name in ("d", "d#ephemeral"):
            error = await refused(broker, f"SUB t {name}\n".encode())
            assert error.startswith(f"E_SUB_FAILED SUB failed channel '{name}' would be one too")
            assert why in error
        with pytest.raises(HttpRefused, match=f"503 REFUSED channel 'd' .*{why}"):
            await http(broker.http_address, "/channel/create?topic=t&channel=d", b"")
        await http(broker.http_address, "/channel/delete?topic=t&channel=c", b"")
        await answered(broker, b"SUB t d\n")


# the disk


def used_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


async def published_until_refused(broker: BrokerProcess, body: bytes) -> tuple[int, str]:
    """How many messages were taken, and the error."""
    wire = await Wire.open(broker.tcp_address)
    for count in itertools.count():
        wire.send(pub("t", body))
        try:
            await wire.ok()
        except Refused as refused:
            wire.close()
            return count, str(refused)
    raise AssertionError


async def test_a_data_folder_takes_no_more_than_it_may(tmp_path: Path) -> None:
    limit, body = 8 * MIB, b"x" * 50_000
    flags = (QUIET, f"--max-disk-bytes={limit}", f"--max-bytes-per-file={MIB}")
    with BrokerProcess(tmp_path, *flags, "--checkpoint-interval=100ms") as broker:
        await answered(broker, b"SUB t c\n")
        for _ in range(2):
            count, error, health = 0, "", b"OK"
            while health == b"OK":  # Cleaning may still free space of messages consumed before.
                more, error = await published_until_refused(broker, body)
                count += more
                try:
                    health = await http(broker.http_address, "/ping")
                except HttpRefused as refused_with:
                    health = str(refused_with).encode()
            assert b"500 NOK - the disk is full" in health
            assert error.startswith("E_PUB_FAILED PUB failed the disk is full: no room")
            assert f"and may take {readable_size(limit)} (--max-disk-bytes)" in error
            assert "consuming what is stored has freed segments" in error
            assert count * len(body) > limit * 0.5
            assert used_bytes(tmp_path) <= limit + 100_000
            broker.restart()
            got = await drain(broker.tcp_address, broker.http_address, "t", "c")
            assert [message.body for message in got] == [body] * count

            async def is_well() -> bool:
                try:
                    return await http(broker.http_address, "/ping") == b"OK"
                except HttpRefused:
                    return False

            await until(is_well)


# messages and answers at the edge


async def test_a_consumer_that_never_answers_gets_its_messages_again_and_others_do(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path, QUIET) as broker:
        wire = await Wire.subscribed(broker.tcp_address, "t", "c", msg_timeout=1000)
        await answered(broker, mpub("t", [b"%02d" % number for number in range(30)]))
        wire.send(b"RDY 10\n")
        got = Counter([(await wire.message()).body for _ in range(20)])
        wire.send(b"RDY 0\n")

        async def given_up() -> bool:
            channel = (await channels_of(broker.http_address))["t", "c"]
            return bool(channel["timeout_count"] == 20 and not channel["in_flight_count"])

        await until(given_up)
        rest = await drain(broker.tcp_address, broker.http_address, "t", "c")
        assert sorted(message.body for message in rest) == [b"%02d" % n for n in range(30)]
        assert all(message.attempts == got[message.body] + 1 for message in rest)
        wire.close()


# many, for a while


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_ten_thousand_channels_in_flat_memory(tmp_path: Path) -> None:
    channels, topics = 10_000, 100
    with BrokerProcess(tmp_path, QUIET, "--checkpoint-interval=2s") as broker:
        wires = [await Wire.open(broker.tcp_address) for _ in range(20)]
        for number in range(channels):
            path = f"/channel/create?topic=t{number % topics}&channel=c{number}"
            if number < topics:
                await http(broker.http_address, f"/topic/create?topic=t{number}", b"")
            await http(broker.http_address, path, b"")
        held = []
        for _ in range(6):
            until_s = time.monotonic() + 8
            while time.monotonic() < until_s:
                for number, wire in enumerate(wires):
                    wire.send(mpub(f"t{number}", [b"x" * 100] * 50))
                for wire in wires:
                    await wire.ok()
                for number in range(len(wires)):
                    await http(broker.http_address, f"/topic/empty?topic=t{number}", b"")
                for number in range(0, channels, 97):
                    topic = number % topics
                    path = f"/channel/empty?topic=t{topic}&channel=c{number}"
                    await http(broker.http_address, path, b"")
            held.append(anonymous_bytes(broker))
        print([f"{each / MIB:.0f} MiB" for each in held])
        assert held[-1] - held[1] < 15 * MIB
        report = json.loads(await http(broker.http_address, "/stats?format=json"))
        assert sum(len(topic["channels"]) for topic in report["topics"]) == channels
        for wire in wires:
            wire.close()
        assert broker.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_two_thousand_busy_connections_in_flat_memory(tmp_path: Path) -> None:
    pairs, seconds = 1000, 60
    with BrokerProcess(tmp_path, QUIET, "--checkpoint-interval=2s") as broker:
        ends_s = time.monotonic() + seconds
        counts = {"published": 0, "finished": 0}

        async def produce(number: int) -> None:
            wire = await Wire.open(broker.tcp_address)
            while time.monotonic() < ends_s:
                wire.send(pub(f"t{number % 10}", b"x" * 200))
                await wire.ok()
                counts["published"] += 1
            wire.close()

        async def consume(number: int, over: asyncio.Event) -> None:
            wire = await Wire.subscribed(broker.tcp_address, f"t{number % 10}", "c")
            wire.send(b"RDY 10\n")
            while not over.is_set():
                try:
                    async with asyncio.timeout(1):
                        got = await wire.message()
                except TimeoutError:
                    continue
                wire.send(b"FIN %b\n" % got.id)
                counts["finished"] += 1
            wire.close()

        async def watch() -> None:
            while time.monotonic() < ends_s:
                await asyncio.sleep(seconds / 6)
                held.append(anonymous_bytes(broker))

        held: list[int] = []
        over = asyncio.Event()
        consumers = [asyncio.create_task(consume(number, over)) for number in range(pairs)]
        await asyncio.gather(watch(), *(produce(number) for number in range(pairs)))

        async def all_finished() -> bool:
            states = (await channels_of(broker.http_address)).values()
            return not any(state["depth"] or state["in_flight_count"] for state in states)

        await until(all_finished)
        over.set()
        await asyncio.gather(*consumers)
        print(counts, [f"{each / MIB:.0f} MiB" for each in held])
        assert counts["finished"] == counts["published"] > pairs
        assert held[-1] - held[1] < 15 * MIB
