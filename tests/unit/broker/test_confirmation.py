"""With replicas, the broker shows and removes only what is confirmed."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import aiohttp
import pytest
from tests.unit.broker.core import SECOND_NS, SEGMENT_BYTES, Core

from martlet.broker.journal.entries import decode_retired
from martlet.broker.recovery.restore import restore
from martlet.broker.recovery.trace_search import Search, TraceNotFound
from martlet.broker.topic.rewind import offset_at
from martlet.log.folder import Folder
from martlet.log.record import RecordKind, payload
from martlet.log.recovery import RecoveryReport, scan
from martlet.log.storage import DiskStorage
from martlet.testing import Broker, SimulatedClock


def confirming() -> Core:
    core = Core()
    core.channel("t")
    core.broker.await_confirmation(core.broker.log.position)
    return core


def with_free_segments() -> tuple[Core, list[int]]:
    """Return a core after a checkpoint that frees segments, and the bases there were before."""
    core = confirming()
    client = core.client("t").ready(1000)
    core.fill("t", 3)
    core.broker.confirm(core.broker.log.position)
    client.finish()
    bases = bases_of(core)
    core.checkpoint()
    return core, bases


def bases_of(core: Core) -> list[int]:
    return [segment.base for segment in core.storage.segments()]


@pytest.fixture
def core() -> Core:
    return confirming()


def test_a_batch_is_delivered_once_it_is_confirmed(core: Core) -> None:
    client = core.client("t").ready(10)
    first = core.publish("t", b"one", b"two")
    core.broker.append(core.broker.topic("t"), b"three")
    second = core.broker.log.position
    topic = core.broker.topic("t")
    assert client.bodies == []
    assert topic.depth == topic.message_count == client.channel.depth == 0
    assert topic.message_bytes == 0
    assert core.broker.visible_position < first.position

    core.broker.confirm(first.position)
    assert client.bodies == [b"one", b"two"]
    assert core.broker.visible_position == first.position
    core.broker.confirm(second)
    assert client.bodies == [b"one", b"two", b"three"]
    assert topic.message_count == 3


def test_an_offset_is_reported_only_once_its_message_is_confirmed(core: Core) -> None:
    core.publish("t", b"one")
    core.broker.confirm(core.broker.log.position)
    core.wait(SECOND_NS)
    core.publish("t", b"two")
    topic = core.broker.topic("t")
    assert topic.queue.end_offset == 2
    # One that reads from now on must not pass over a message with that offset.
    assert offset_at(topic, core.clock.now_ns) == offset_at(topic, 1 << 62) == 1
    assert core.channel("t", "new").cursor.next == 1


def test_a_topic_that_is_deleted_meanwhile_shows_nothing(core: Core) -> None:
    client = core.client("t").ready(10)
    core.publish("t", b"one")
    core.broker.delete_topic("t")
    core.publish("t", b"two")
    again = core.client("t").ready(10)
    core.broker.confirm(core.broker.log.position)
    assert client.closed
    assert client.bodies == []
    assert again.bodies == [b"two"]


def test_a_message_that_is_confirmed_while_its_topic_is_paused(core: Core) -> None:
    topic = core.broker.topic("t")
    client = core.client("t").ready(10)
    core.publish("t", b"one")
    topic.set_paused(True)
    core.broker.confirm(core.broker.log.position)
    assert client.bodies == []
    topic.set_paused(False)
    assert client.bodies == [b"one"]


def test_segments_go_once_it_is_confirmed_that_they_may() -> None:
    core, bases = with_free_segments()
    left = [segment.base for segment in core.broker.log.segments]
    assert len(left) < len(bases)
    assert bases_of(core) == bases
    # A start finds them, and needs nothing of them.
    again, _ = restore(core.storage.crash(), core.clock, Random(3), segment_bytes=SEGMENT_BYTES)
    assert [segment.base for segment in again.log.segments][: len(bases)] == bases
    assert again.topics["t"].channels["c"].depth == 0


def test_what_frees_segments_is_in_the_log_before_they_go() -> None:
    core, bases = with_free_segments()
    core.broker.write_journal()
    records = list(scan(list(core.broker.log.segments), 0, RecoveryReport()))
    kinds = [header.kind for header, _ in records]
    (retired,) = (
        decode_retired(bytes(payload(header, record)))
        for header, record in records
        if header.kind == RecordKind.RETIRED
    )
    assert retired == [base for base in bases if core.broker.log.find(base) is None]
    assert RecordKind.CURSOR in kinds[: kinds.index(RecordKind.RETIRED)]
    core.broker.confirm(core.broker.log.position - 8)
    assert bases_of(core) == bases
    core.broker.confirm(core.broker.log.position)
    assert bases_of(core) == sorted(set(bases) - {*retired})


async def test_the_log_is_served_as_far_as_it_is_confirmed() -> None:
    async with Broker() as broker, aiohttp.ClientSession() as session:
        core = broker.server.broker

        async def ask(path: str) -> tuple[int, bytes]:
            async with session.get(f"http://{broker.http_address}{path}") as answer:
                return answer.status, await answer.read()

        core.topic("t")
        core.await_confirmation(core.log.position)
        topic = core.topic("t")
        topic.stage([b"one"])
        core.commit()
        position = core.log.position
        topic.stage([b"two"])
        core.commit()
        core.confirm(position)

        _, index = await ask("/log/index?topic=t&queue=0&start=0&end=10")
        assert len(index) == 40
        _, batches = await ask("/log/batches?topic=t&queue=0&offset=0")
        assert b"one" in batches
        assert b"two" not in batches
        assert (await ask("/log/batches?topic=t&queue=0&offset=1"))[0] == 204
        _, reach = await ask("/log/reach?topic=t&queue=0&start=0&end=10&max_bytes=100000")
        assert json.loads(reach)["offset"] == 1
        _, listed = await ask("/log/segments")
        assert json.loads(listed)["position"] == position
        base = core.log.segments[0].base
        _, bytes_of = await ask(f"/log/segment?base={base}&at=0")
        assert b"one" in bytes_of
        assert b"two" not in bytes_of
        _, stats = await ask("/stats?format=json")
        assert json.loads(stats)["topics"][0]["message_count"] == 1


def test_no_trace_is_found_of_a_message_that_is_not_confirmed(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    broker, _ = restore(storage, SimulatedClock(), Random(2), segment_bytes=1 << 16)
    topic = broker.topic("t")
    broker.await_confirmation(broker.log.position)
    broker.append(topic, b"one")
    id = topic.queue.message_id(0).decode()
    with pytest.raises(TraceNotFound):
        Search(Folder(tmp_path, broker.visible_position), lambda: False).by_id(id)
    broker.confirm(broker.log.position)
    result = Search(Folder(tmp_path, broker.visible_position), lambda: False).by_id(id)
    assert [trace.offset for trace in result.traces] == [0]
    storage.close()
