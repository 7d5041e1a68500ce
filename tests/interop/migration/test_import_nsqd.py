"""Importing folders that a real nsqd wrote: the broker must have what nsqd would have had."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.crash.wire import Wire, http, mpub
from tests.interop.migration.nsqd_files import Imported, import_now, left_of
from tests.interop.nsqd_process import NEEDS_NSQD, NsqdProcess

from martlet.testing import BrokerProcess

pytestmark = [
    pytest.mark.interop,
    NEEDS_NSQD,
]

COUNT = 600


def bodies_of(first: int, end: int) -> list[bytes]:
    return [b"%05d" % n + b"." * (n % 50) for n in range(first, end)]


async def publish(nsqd: BrokerProcess, topic: str, some: list[bytes]) -> None:
    wire = await Wire.open(nsqd.tcp_address)
    for first in range(0, len(some), 100):
        wire.send(mpub(topic, some[first : first + 100]))
        await wire.ok()
    wire.close()


async def post(nsqd: BrokerProcess, *targets: str) -> None:
    for target in targets:
        await http(nsqd.http_address, target, b"")


async def consume(
    nsqd: BrokerProcess, topic: str, channel: str, count: int, *, hold: int = 0
) -> set[bytes]:
    """Finish some messages, and leave more in flight. Return the finished bodies."""
    wire = await Wire.open(nsqd.tcp_address)
    wire.send(f"SUB {topic} {channel}\n".encode())
    await wire.ok()
    wire.send(b"RDY %d\n" % (count + hold))
    messages = [await wire.message() for _ in range(count + hold)]
    wire.send(b"RDY 0\n")
    for message in messages[:count]:
        wire.send(b"FIN " + message.id + b"\n")
    # What was sent before it is done when this is answered.
    wire.send(b"PUB barrier\n\x00\x00\x00\x01x")
    await wire.ok()
    # nsqd lets messages in flight time out, which takes a minute.
    wire.close()
    return {message.body for message in messages[:count]}


async def depths(nsqd: BrokerProcess) -> dict[str, int]:
    """Return the depth of each channel, in flight and deferred included, and of the topics."""
    stats = json.loads(await http(nsqd.http_address, "/stats?format=json"))
    depths = {topic["topic_name"]: topic["depth"] for topic in stats["topics"]}
    for topic in stats["topics"]:
        for channel in topic["channels"]:
            depths[f"{topic['topic_name']}:{channel['channel_name']}"] = (
                channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
            )
    return depths


async def settled(nsqd: BrokerProcess, topic: str) -> None:
    """Return when a topic has handed everything to its channels."""
    while (await depths(nsqd))[topic]:
        pass


async def story(nsqd: BrokerProcess) -> dict[str, set[bytes]]:
    """Publish, consume and pause. Returns what each channel has finished."""
    await post(
        nsqd,
        "/topic/create?topic=t",
        "/channel/create?topic=t&channel=slow",
        "/channel/create?topic=t&channel=fast",
        "/topic/create?topic=alone",
        "/topic/create?topic=paused",
        "/channel/create?topic=paused&channel=c",
        "/channel/create?topic=t&channel=gone%23ephemeral",
    )
    await publish(nsqd, "t", bodies_of(0, COUNT))
    await settled(nsqd, "t")
    finished = {
        "t:slow": await consume(nsqd, "t", "slow", 50, hold=20),
        "t:fast": await consume(nsqd, "t", "fast", 333),
    }
    await post(nsqd, "/channel/create?topic=t&channel=late", "/channel/pause?topic=t&channel=late")
    await publish(nsqd, "t", bodies_of(COUNT, COUNT + 100))
    await settled(nsqd, "t")
    await publish(nsqd, "alone", bodies_of(0, 200))
    await publish(nsqd, "paused", bodies_of(0, 100))
    await settled(nsqd, "paused")
    await post(nsqd, "/topic/pause?topic=paused")
    await publish(nsqd, "paused", bodies_of(100, 250))
    await http(nsqd.http_address, "/pub?topic=t&defer=3600000", b"deferred")
    await settled(nsqd, "t")
    return finished


def expected_of(finished: dict[str, set[bytes]]) -> dict[str, list[bytes]]:
    published = [*bodies_of(0, COUNT + 100), b"deferred"]
    return {
        "t:slow": sorted(set(published) - finished["t:slow"]),
        "t:fast": sorted(set(published) - finished["t:fast"]),
        "t:late": sorted([*bodies_of(COUNT, COUNT + 100), b"deferred"]),
        "paused:c": sorted(bodies_of(0, 100)),
    }


@pytest.mark.parametrize("memory", [0, 10, 10_000])
@pytest.mark.parametrize("file_bytes", [2000, 100 << 20])
async def test_a_folder_after_a_clean_stop(tmp_path: Path, memory: int, file_bytes: int) -> None:
    source, data = tmp_path / "nsqd", tmp_path / "martlet"
    flags = (f"--mem-queue-size={memory}", f"--max-bytes-per-file={file_bytes}")
    with NsqdProcess(source, *flags) as nsqd:
        finished = await story(nsqd)
        code, _, error = import_now(source, data)
        assert (code, "an nsqd runs on" in error) == (1, True)
        assert nsqd.stop() == 0
    code, output, _ = import_now(source, data)
    assert code == 0, output
    doubts = [line for line in output.splitlines() if line.startswith("in doubt")]
    assert all(".bad was given up by nsqd" in line for line in doubts), output
    imported = Imported(data)
    topics = imported.broker.topics
    assert set(topics) == {"t", "alone", "paused", "barrier"}
    assert set(topics["t"].channels) == {"slow", "fast", "late"}
    assert topics["t"].channels["late"].paused
    assert topics["paused"].paused
    assert (topics["alone"].depth, topics["paused"].depth) == (200, 150)
    in_flight = Counter(g.attempts for g in imported.left("t", "slow"))
    assert in_flight == {1: COUNT + 101 - 70, 2: 20}
    imported.close()
    expected = expected_of(finished)
    assert left_of(data, *expected) == expected


async def test_a_folder_after_kill_9_loses_nothing_that_is_on_the_disk(tmp_path: Path) -> None:
    source, data = tmp_path / "nsqd", tmp_path / "martlet"
    flags = ("--mem-queue-size=0", "--max-bytes-per-file=5000", "--sync-every=7")
    with NsqdProcess(source, *flags) as nsqd:
        finished = await story(nsqd)
        nsqd.kill()
    code, output, _ = import_now(source, data)
    assert code == 0, output
    assert "in doubt: nsqd was probably killed" in output
    expected = expected_of(finished)
    ours = left_of(data, *expected)
    for name, got in ours.items():
        assert len(set(got)) == len(got), f"{name} has a message twice"
        # What was finished after nsqd last wrote its meta file comes again.
        assert set(got) - set(expected[name]) <= finished.get(name, set()), name
        # What was in flight or deferred when nsqd was killed is on no disk any more.
        missing = set(expected[name]) - set(got)
        assert len(missing) <= (20 if name == "t:slow" else 0) + 1, name
    imported = Imported(data)
    assert imported.broker.topics["alone"].depth == 200
    imported.close()
