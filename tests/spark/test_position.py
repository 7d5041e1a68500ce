"""A stream's position, call by call as Spark makes them, without Spark."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType
from tests.spark.door import Door, serving
from tests.spark.folder import Folder

from martlet.spark.endpoint import BrokerUnreachable
from martlet.spark.loss import DataLossError
from martlet.spark.offsets import Offsets
from martlet.spark.options import ReadOptions
from martlet.spark.schema import arrow_schema
from martlet.spark.split import Split
from martlet.spark.stream import StreamReader

ALL = ReadAllAvailable()

Doors = Callable[[Folder], Door]
Readers = Callable[..., StreamReader]


@pytest.fixture
def doors() -> Iterator[Doors]:
    with ExitStack() as stack:
        yield lambda folder: stack.enter_context(serving(Door(folder)))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path / "one", 4096)
    for _ in range(10):
        folder.append("t", [b"x" * 50] * 10)
    return folder


@pytest.fixture
def reader() -> Iterator[Readers]:
    made: list[StreamReader] = []

    def make(*doors: Door, **options: str) -> StreamReader:
        addresses = ",".join(door.address for door in doors)
        given = {"addresses": addresses, "topic": "t", "startingOffsets": "earliest"} | options
        schema = arrow_schema(StructType().add("offset", "long"))
        made.append(StreamReader(ReadOptions.parse(given, "stream"), schema))
        return made[-1]

    yield make
    for stream in made:
        stream.stop()


def at(folder: Folder, offset: int) -> Offsets:
    return {folder.broker: {"t": {"0": offset}}}


def ranges(stream: StreamReader, start: Offsets, end: Offsets) -> list[tuple[int, int]]:
    splits = stream.partitions(start, end)
    return [(split.start, split.end) for split in splits if isinstance(split, Split)]


def test_from_the_start_to_the_end(folder: Folder, doors: Doors, reader: Readers) -> None:
    stream = reader(doors(folder))
    start = stream.initialOffset()
    assert start == at(folder, 0)
    end = stream.latestOffset(start, ALL)
    assert end == at(folder, 100)
    assert stream.reportLatestOffset() == end
    assert stream.latestOffset(end, ALL) == end
    assert ranges(stream, start, end) == [(0, 100)]
    assert ranges(stream, end, end) == []


def test_a_limit(folder: Folder, doors: Doors, reader: Readers) -> None:
    stream = reader(doors(folder), maxOffsetsPerTrigger="30")
    assert stream.getDefaultReadLimit() == ReadMaxRows(30)
    assert stream.latestOffset(at(folder, 5), ReadMaxRows(30)) == at(folder, 35)
    assert stream.latestOffset(at(folder, 90), ReadMaxRows(30)) == at(folder, 100)


def test_available_now_ends_where_it_was_at_the_start(
    folder: Folder, doors: Doors, reader: Readers
) -> None:
    stream = reader(doors(folder))
    stream.prepareForTriggerAvailableNow()
    folder.append("t", [b"late"] * 7)
    folder.append("new", [b"late"])
    time.sleep(0.11)
    assert stream.latestOffset(at(folder, 3), ALL) == at(folder, 100)
    assert stream.latestOffset(at(folder, 100), ALL) == at(folder, 100)


def test_an_idle_query_does_not_keep_the_broker_busy(
    folder: Folder, doors: Doors, reader: Readers
) -> None:
    door = doors(folder)
    stream = reader(door, topic="t,missing")
    end = at(folder, 100)
    began_s = time.monotonic()
    for _ in range(200):
        assert stream.latestOffset(end, ALL) == end
    looks = 1 + int((time.monotonic() - began_s) / 0.1)
    assert 1 <= door.requests.count("/log/topics") <= looks + 1


def test_a_topic_that_appears_begins_at_its_first_offset(
    folder: Folder, doors: Doors, reader: Readers
) -> None:
    stream = reader(doors(folder), topic="t,u")
    end = stream.latestOffset(at(folder, 100), ALL)
    folder.append("u", [b"1", b"2"])
    time.sleep(0.11)
    first = stream.latestOffset(end, ALL)
    assert first == {folder.broker: {"t": {"0": 100}, "u": {"0": 0}}}
    assert ranges(stream, end, first) == []
    second = stream.latestOffset(first, ALL)
    assert ranges(stream, first, second) == [(0, 2)]


def test_the_channel_is_made_first_and_follows(
    folder: Folder, doors: Doors, reader: Readers
) -> None:
    door = doors(folder)
    stream = reader(door, channel="c", startingOffsets='{"t": {"0": 40}}')
    stream.initialOffset()
    assert door.requests.index("/channel/create") < door.requests.index("/channel/advance")
    assert door.channels["t", "c"] == 40
    stream.commit(at(folder, 70))
    assert door.channels["t", "c"] == 70
    # A run again: the checkpoint's position is told, though nothing was committed in this run.
    again = reader(door, channel="c")
    again.latestOffset(at(folder, 90), ALL)
    assert door.channels["t", "c"] == 90


def test_a_broker_that_is_away_does_not_keep_the_others_waiting(
    tmp_path: Path, folder: Folder, doors: Doors, reader: Readers
) -> None:
    other = Folder(tmp_path / "two")
    other.append("t", [b"y"] * 5)
    door, away = doors(folder), doors(other)
    stream = reader(door, away, timeoutMs="400")
    start = stream.initialOffset()
    assert start == dict(sorted({**at(folder, 0), **at(other, 0)}.items()))
    away.failing = 10**9
    folder.append("t", [b"x"] * 3)
    time.sleep(0.11)
    began_s = time.monotonic()
    end = stream.latestOffset(start, ALL)
    assert time.monotonic() - began_s < 0.3
    assert end == dict(sorted({**at(folder, 103), **at(other, 5)}.items()))
    time.sleep(0.5)
    with pytest.raises(BrokerUnreachable, match=away.address):
        stream.latestOffset(end, ALL)


def test_what_has_gone_before_it_was_read(folder: Folder, doors: Doors, reader: Readers) -> None:
    door = doors(folder)
    folder.recycle_first()
    first = folder.start_offsets["t", 0]
    assert first > 0
    with pytest.raises(DataLossError, match=f"first one there is {first}"):
        ranges(reader(door), at(folder, 0), at(folder, 100))
    lenient = reader(door, failOnDataLoss="false")
    assert ranges(lenient, at(folder, 0), at(folder, 100)) == [(first, 100)]


def test_a_position_behind_the_end_is_a_loss(folder: Folder, doors: Doors, reader: Readers) -> None:
    door = doors(folder)
    with pytest.raises(DataLossError, match="the topic was made anew"):
        reader(door).latestOffset(at(folder, 500), ALL)
    lenient = reader(door, failOnDataLoss="false")
    assert lenient.latestOffset(at(folder, 500), ALL) == at(folder, 100)


def test_a_reader_travels_to_its_tasks(folder: Folder, doors: Doors, reader: Readers) -> None:
    stream = reader(doors(folder))
    start = stream.initialOffset()
    (split,) = stream.partitions(start, at(folder, 100))
    copy, same_split = pickle.loads(pickle.dumps((stream, split)))
    offsets = [n for batch in copy.read(same_split) for n in batch.column("offset").to_pylist()]
    assert offsets == list(range(100))
