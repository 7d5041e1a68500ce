"""Broadcasting: every consumer gets all, and knows by its own file where it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.interop.client.group.test_pull import put
from tests.interop.client.kit import take
from tests.polling import until

from martlet.client import Backoff, BadOffsetFile, BroadcastConsumer, PulledMessage, QueueId
from martlet.client.group import broadcast as audience
from martlet.client.group.queues.offset_file import OffsetFile
from martlet.testing import Broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.server.broker.topic("t").channel("keeps")
        broker.server.broker.set_queues("t", 2)
        yield broker


def consumer(broker: Broker, offsets: Path | None, **settings: Any) -> BroadcastConsumer:
    return BroadcastConsumer("t", broker.tcp_address, offsets=offsets, **settings)


async def some(consumer: BroadcastConsumer, count: int) -> list[bytes]:
    """Receive and finish some messages; return their bodies."""
    return sorted(message.body for message in await take(consumer, count))


async def test_each_gets_all_and_goes_on_where_it_was(broker: Broker, tmp_path: Path) -> None:
    put(broker, [b"0", b"1", b"2"])
    put(broker, [b"3", b"4"], 1)
    for name in ("one", "two"):
        async with consumer(broker, tmp_path / name, start="first") as receiver:
            assert [queue_id.queue for queue_id in receiver.assignment] == [0, 1]
            assert await some(receiver, 5) == [b"0", b"1", b"2", b"3", b"4"]
    put(broker, [b"5"])
    async with consumer(broker, tmp_path / "one", start="first") as receiver:
        assert await some(receiver, 1) == [b"5"]
    stored = json.loads((tmp_path / "one").read_text())
    assert stored["topic"] == "t"
    assert stored["offsets"] == {broker.tcp_address: {"0": 4, "1": 2}}


async def test_a_broadcast_consumer_begins_at_its_start_setting(broker: Broker) -> None:
    put(broker, [b"0", b"1"])
    await asyncio.sleep(0.002)
    moment = datetime.now(UTC)
    put(broker, [b"2"])
    cases: list[tuple[Any, int]] = [("first", 0), ("last", 3), (moment, 2), (1, 1)]
    for start, offset in cases:
        async with consumer(broker, None, start=start) as receiver:
            assert receiver.position(0) == offset
            await receiver.seek(0, 0)
            assert receiver.position(0) == 0
            assert await some(receiver, 3) == [b"0", b"1", b"2"]


async def test_the_file_has_explicit_commits_and_periodic_ones_unless_these_are_off(
    broker: Broker, tmp_path: Path
) -> None:
    put(broker, [b"0", b"1", b"2"])
    path = tmp_path / "offsets"
    place = QueueId(broker.tcp_address, 0)
    async with consumer(broker, path, start="first", auto_commit=False) as receiver:
        assert len(await some(receiver, 3)) == 3
        assert not path.exists()
        await receiver.commit()
        assert OffsetFile(path, "t").get(place) == 3
        await receiver.seek(0, 1)
        await receiver.commit()
        assert len(await some(receiver, 2)) == 2
    assert OffsetFile(path, "t").get(place) == 1, "what was committed explicitly, and no more"
    async with consumer(broker, path, commit_every_s=0.02) as receiver:
        assert await some(receiver, 2) == [b"1", b"2"]
        await until(lambda: OffsetFile(path, "t").get(place) == 3)


async def test_new_queues_and_a_new_topic_are_had_from_the_start(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audience, "POLL_S", 0.02)
    monkeypatch.setattr(audience, "ABSENT_S", 0.02)
    async with (
        consumer(broker, None) as receiver,
        BroadcastConsumer("later", broker.tcp_address, offsets=None) as other,
    ):
        broker.server.broker.set_queues("t", 3)
        put(broker, [b"new"], 2)
        assert await some(receiver, 1) == [b"new"]
        broker.server.broker.topic("later").stage([b"first"])
        broker.server.broker.commit()
        assert await some(other, 1) == [b"first"]


async def test_a_lost_connection_loses_and_doubles_nothing(broker: Broker) -> None:
    put(broker, [b"%d" % n for n in range(10)])
    async with consumer(broker, None, start="first") as receiver:
        assert len(await some(receiver, 6)) == 6
        connection = receiver._brokers.sessions[0].connection
        assert connection is not None
        connection.abort()
        assert await some(receiver, 4) == [b"6", b"7", b"8", b"9"]


async def test_a_message_that_fails_is_tried_for_ever_unless_it_is_given_up(
    broker: Broker,
) -> None:
    put(broker, [b"bad", b"good"])
    attempts: list[int] = []

    def handle(message: PulledMessage) -> None:
        if message.body == b"good":
            receiver.stop()
        else:
            attempts.append(message.attempts)
            raise RuntimeError

    fast = Backoff(first_s=0.001, max_s=0.001)
    async with consumer(broker, None, start="first", retry=fast, max_attempts=20) as receiver:
        await receiver.run(handle)
        assert receiver.current_counts.dead == 1
    assert attempts == list(range(1, 21))


async def test_closing_does_not_wait_for_ever_for_the_revoked_hook(
    broker: Broker, tmp_path: Path
) -> None:
    async def revoked(_queues: object) -> None:
        await asyncio.Event().wait()

    put(broker, [b"one"])
    path = tmp_path / "offsets"
    settings: dict[str, Any] = {"start": "first", "on_revoked": revoked, "close_timeout_s": 0.5}
    async with asyncio.timeout(50), consumer(broker, path, **settings) as receiver:
        assert await some(receiver, 1) == [b"one"]
    assert OffsetFile(path, "t").get(QueueId(broker.tcp_address, 0)) == 1


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "cannot be read as offsets"),
        ("{", "cannot be read as offsets"),
        ('{"format": "other", "version": 1}', "format is 'other'"),
        (
            '{"format": "martlet-offsets", "version": 1, "topic": "t",'
            ' "offsets": {"b": {"0": "x"}}}',
            "'x' is no offset",
        ),
        (
            '{"format": "martlet-offsets", "version": 1, "topic": "other", "offsets": {}}',
            "offsets of topic 'other', and not of 't'",
        ),
    ],
)
def test_a_bad_offset_file_is_refused_and_kept(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "offsets"
    path.write_text(text)
    with pytest.raises(BadOffsetFile, match=wrong) as raised:
        BroadcastConsumer("t", offsets=path)
    assert str(path) in str(raised.value)
    assert path.read_text() == text
    with pytest.raises(BadOffsetFile, match="no folder"):
        BroadcastConsumer("t", offsets=tmp_path / "none" / "offsets")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    file = OffsetFile(path, "t")
    file.write({QueueId("b:1", 0): 5})
    before = path.read_text()
    (tmp_path / "offsets.new").mkdir()
    with pytest.raises(OSError, match=r"offsets\.new"):
        file.write({QueueId("b:1", 0): 6})
    assert path.read_text() == before
    (tmp_path / "offsets.new").rmdir()
    file.write({QueueId("b:1", 1): 7})
    again = OffsetFile(path, "t")
    assert [again.get(QueueId("b:1", queue)) for queue in (0, 1, 2)] == [6, 7, None]
    assert [path.name for path in tmp_path.iterdir()] == ["offsets"]
