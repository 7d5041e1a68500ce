"""A stream's position, call by call as Spark makes them, without Spark."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType
from tests.spark.folder import Folder
from tests.spark.log_server import LogServer, serving

from martlet.log.index import ENTRY
from martlet.reader.brokers import brokers
from martlet.reader.brokers.endpoint import BrokerQueue, BrokerUnreachable, Endpoint
from martlet.reader.data_loss import DataLossError, LossReport
from martlet.reader.offsets import Offsets
from martlet.reader.options import ReadOptions
from martlet.spark.read.schema import arrow_schema
from martlet.spark.read.stream import StreamReader

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a look waits for who does answer."""
    monkeypatch.setattr(brokers, "_WAIT_S", 60.0)


class Log:
    """A broker's folder with ten batches of ten messages, its server, and streams that read it."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack
        self.folder = Folder(path / "ten", 4096)
        for _ in range(10):
            self.folder.append("t", [b"x" * 50] * 10)
        self.server = self.serve(self.folder)

    def serve(self, folder: Folder) -> LogServer:
        return self._stack.enter_context(serving(LogServer(folder)))

    def other(self) -> tuple[Folder, LogServer]:
        """Another broker, with five messages."""
        folder = Folder(self._path / "two")
        folder.append("t", [b"y"] * 5)
        return folder, self.serve(folder)

    def stream(self, *servers: LogServer, **options: str) -> StreamReader:
        addresses = ",".join(server.address for server in servers or (self.server,))
        texts = {"addresses": addresses, "topic": "t", "startingOffsets": "earliest"} | options
        schema = arrow_schema(StructType().add("offset", "long"))
        stream = StreamReader(ReadOptions.parse(texts, "stream"), schema)
        self._stack.callback(stream.stop)
        return stream

    def at(self, offset: int) -> Offsets:
        return at(self.folder, offset)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with ExitStack() as stack:
        yield Log(tmp_path, stack)


def at(folder: Folder, offset: int) -> Offsets:
    return {folder.broker: {"t": {"0": offset, "topic_id": folder.topics["t"]}}}


def ranges(stream: StreamReader, start: Offsets, end: Offsets) -> list[tuple[int, int]]:
    return [
        (split.start, split.end)
        for partition in stream.partitions(start, end)
        for split in partition.value.splits
    ]


def test_from_the_start_to_the_end(log: Log) -> None:
    stream = log.stream()
    start = stream.initialOffset()
    assert start == log.at(0)
    end = stream.latestOffset(start, ALL)
    assert end == log.at(100)
    assert stream.reportLatestOffset() == end
    assert stream.latestOffset(end, ALL) == end
    assert ranges(stream, start, end) == [(0, 100)]
    assert ranges(stream, end, end) == []


def test_a_limit(log: Log) -> None:
    stream = log.stream(maxOffsetsPerTrigger="30")
    assert stream.getDefaultReadLimit() == ReadMaxRows(30)
    assert stream.latestOffset(log.at(5), ReadMaxRows(30)) == log.at(35)
    assert stream.latestOffset(log.at(90), ReadMaxRows(30)) == log.at(100)


def test_available_now_ends_where_it_was_at_the_start(log: Log) -> None:
    stream = log.stream()
    stream.prepareForTriggerAvailableNow()
    log.folder.append("t", [b"late"] * 7)
    log.folder.append("new", [b"late"])
    time.sleep(0.11)
    assert stream.latestOffset(log.at(3), ALL) == log.at(100)
    assert stream.latestOffset(log.at(100), ALL) == log.at(100)


def test_an_idle_query_does_not_keep_the_broker_busy(log: Log) -> None:
    stream = log.stream(topic="t,missing")
    end = log.at(100)
    began_s = time.monotonic()
    for _ in range(200):
        assert stream.latestOffset(end, ALL) == end
    looks = 1 + int((time.monotonic() - began_s) / 0.1)
    assert 1 <= log.server.requests.count("/log/topics") <= looks + 1


def test_a_topic_that_appears_begins_at_its_first_offset(log: Log) -> None:
    stream = log.stream(topic="t,u")
    end = stream.latestOffset(log.at(100), ALL)
    log.folder.append("u", [b"1", b"2"])
    time.sleep(0.11)
    first = stream.latestOffset(end, ALL)
    assert first == log.at(100) | {
        log.folder.broker: {**log.at(100)[log.folder.broker], "u": {"0": 0, "topic_id": 2}}
    }
    assert ranges(stream, end, first) == []
    second = stream.latestOffset(first, ALL)
    assert ranges(stream, first, second) == [(0, 2)]


def test_the_channel_is_made_first_and_follows(log: Log) -> None:
    stream = log.stream(channel="c", startingOffsets='{"t": {"0": 40}}')
    stream.initialOffset()
    made = log.server.requests.index("/channel/advance")
    assert "/log/topics" in log.server.requests[made:], "the position reported next is kept already"
    assert not {"/topic/create", "/channel/create"} & set(log.server.requests)
    assert log.server.channels["t", "c"] == 40
    stream.commit(log.at(70))
    assert log.server.channels["t", "c"] == 70
    # A run again: the checkpoint's position is reported, though nothing was committed in this run.
    again = log.stream(channel="c")
    again.latestOffset(log.at(90), ALL)
    assert log.server.channels["t", "c"] == 90


def until_there(stream: StreamReader, start: Offsets, expected: Offsets) -> None:
    """See that a stream comes to a position, as soon as it has heard of it."""
    deadline_s = time.monotonic() + 60
    while (end := stream.latestOffset(start, ALL)) != expected:
        assert time.monotonic() < deadline_s, end
        time.sleep(0.02)


def both_at(log: Log, first: int, two: Folder, second: int) -> Offsets:
    return dict(sorted({**log.at(first), **at(two, second)}.items()))


def test_a_broker_that_is_away_does_not_keep_the_others_waiting(log: Log) -> None:
    other, away = log.other()
    stream = log.stream(log.server, away, timeoutMs="600000")
    start = stream.initialOffset()
    assert start == both_at(log, 0, other, 0)
    away.failing = 10**9
    log.folder.append("t", [b"x"] * 3)
    end = both_at(log, 103, other, 0)
    until_there(stream, start, end)
    assert ranges(stream, start, end) == [(0, 103)]
    away.failing = 0
    until_there(stream, end, both_at(log, 103, other, 5))
    # It may be away for so long and no longer.
    hasty = log.stream(log.server, away, timeoutMs="200")
    hasty.latestOffset(start, ALL)
    away.failing = 10**9
    message = rf"{away.address} has been out of reach .* option timeoutMs is 200"
    with pytest.raises(BrokerUnreachable, match=message):
        until_there(hasty, end, {})


def test_a_broker_that_answers_nothing_delays_no_other(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "_WAIT_S", 0.1)
    other, stuck = log.other()
    stream = log.stream(log.server, stuck, timeoutMs="600000")
    start = stream.initialOffset()
    stuck.held = threading.Event()
    time.sleep(0.11)
    end = both_at(log, 100, other, 0)
    until_there(stream, start, end)
    assert ranges(stream, start, end) == [(0, 100)]
    stuck.held.set()
    until_there(stream, end, both_at(log, 100, other, 5))


def test_two_addresses_of_one_broker(log: Log) -> None:
    one, two = log.server, log.serve(log.folder)
    stream = log.stream(one, two, timeoutMs="50")
    start = stream.initialOffset()
    assert start == log.at(0)
    for away in (one, two):
        one.failing = two.failing = 0
        time.sleep(0.11)
        stream.latestOffset(start, ALL)
        away.failing = 10**9
        log.folder.append("t", [b"x"])
        end = log.at(log.folder.end_offsets["t", 0])
        for _ in range(2):
            time.sleep(0.11)
            assert stream.latestOffset(start, ALL) == end
        splits = stream.partitions(start, end)
        assert sum(batch.num_rows for split in splits for batch in stream.read(split)) > 100


def test_a_planned_batch_and_an_available_now_wait_for_their_broker(log: Log) -> None:
    other, away = log.other()
    stream = log.stream(log.server, away)
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()

    def be_away() -> None:
        away.failing = 10**9
        threading.Timer(0.5, setattr, (away, "failing", 0)).start()
        time.sleep(0.11)

    be_away()
    end = stream.latestOffset(start, ALL)
    assert end == dict(sorted({**log.at(100), **at(other, 5)}.items()))
    be_away()
    assert sorted(ranges(stream, start, end)) == [(0, 5), (0, 100)]


def test_messages_dropped_before_they_were_read(log: Log) -> None:
    log.folder.recycle_first()
    first = log.folder.start_offsets["t", 0]
    assert first > 0
    with pytest.raises(DataLossError, match=f"first one there is {first}"):
        ranges(log.stream(), log.at(0), log.at(100))
    lenient = log.stream(failOnDataLoss="false")
    assert ranges(lenient, log.at(0), log.at(100)) == [(first, 100)]


def test_a_position_behind_the_end_is_a_loss(log: Log) -> None:
    with pytest.raises(DataLossError, match=r"data loss by truncation: .* the queue ends at 100"):
        log.stream().latestOffset(log.at(500), ALL)
    lenient = log.stream(failOnDataLoss="false")
    assert lenient.latestOffset(log.at(500), ALL) == log.at(100)


def test_made_anew(log: Log) -> None:
    before = log.at(60)
    log.folder.make_anew("t")
    log.folder.append("t", [b"z"] * 70)
    message = r"data loss by recreation: .*offset 60 is wanted.*it was number 1 and is number 2 now"
    planned: Offsets = {log.folder.broker: {"t": {"0": 70, "topic_id": 1}}}
    with pytest.raises(DataLossError, match=message):
        ranges(log.stream(), before, planned)
    with pytest.raises(DataLossError, match=message) as caught:
        log.stream().latestOffset(before, ALL)
    assert caught.value.loss is LossReport.RECREATION
    lenient = log.stream(failOnDataLoss="false")
    anew = lenient.latestOffset(before, ALL)
    assert anew == log.at(0)
    assert ranges(lenient, before, anew) == []
    end = lenient.latestOffset(anew, ALL)
    assert ranges(lenient, anew, end) == [(0, 70)]


@pytest.mark.parametrize("gone", ["deleted", "made anew"])
def test_topics_that_change_between_listing_and_planning(log: Log, gone: str) -> None:
    log.folder.append("another", [b"1"])
    start, end = log.at(0), log.at(100)
    streams = [log.stream(failOnDataLoss=word) for word in ("true", "false")]
    for stream in streams:
        assert ranges(stream, start, end) == [(0, 100)]
        stream._poll_interval_s = 60
    limited = log.stream(maxBytesPerTrigger="100")
    limited.initialOffset()
    limited._poll_interval_s = 60
    if gone == "made anew":
        log.folder.make_anew("t")
        log.folder.append("t", [b"z"] * 20)
    else:
        del log.folder.topics["t"], log.folder.start_offsets["t", 0]
    message = "data loss by (recreation|deletion): topic t, queue 0"
    with pytest.raises(DataLossError, match=message):
        ranges(streams[0], start, end)
    assert ranges(streams[1], start, end) == []
    with pytest.raises(DataLossError, match=message):
        limited.latestOffset(start, ALL)


def test_a_position_that_does_not_name_its_topic(log: Log) -> None:
    """A checkpoint of a version that did not."""
    stream = log.stream()
    start = {log.folder.broker: {"t": {"0": 30}}}
    end = stream.latestOffset(start, ALL)
    assert end == log.at(100)
    assert ranges(stream, start, end) == [(30, 100)]
    assert ranges(stream, start, {log.folder.broker: {"t": {"0": 90}}}) == [(30, 90)]


def test_deleted(log: Log) -> None:
    log.folder.append("u", [b"1"])
    both = log.at(100) | {
        log.folder.broker: {**log.at(100)[log.folder.broker], "u": {"0": 0, "topic_id": 2}}
    }
    for table in (log.folder.topics, log.folder.start_offsets):
        del table["u" if table is log.folder.topics else ("u", 0)]  # type: ignore[arg-type]
    with pytest.raises(DataLossError, match="data loss by deletion: topic u"):
        log.stream(topic="t,u").latestOffset(both, ALL)
    lenient = log.stream(topic="t,u", failOnDataLoss="false")
    assert lenient.latestOffset(both, ALL) == both
    # Who does not read it any more does not miss it, and keeps its place.
    assert log.stream(topic="t").latestOffset(both, ALL) == both


def test_another_queue_of_a_known_broker_that_has_lost_its_start(log: Log) -> None:
    for _ in range(20):
        log.folder.append("u", [b"x" * 50] * 10)
    start = log.at(100)
    log.folder.start_offsets["u", 0] = 50
    with pytest.raises(DataLossError, match=r"retention: topic u.*offset 0 is wanted.* is 50 "):
        log.stream(topic="t,u").latestOffset(start, ALL)


def test_bytes_are_limited(log: Log) -> None:
    """Ten batches of some 1000 bytes, of which two fit; and of two topics each gets its share."""
    length = log.folder.entries["t", 0][0][3]
    stream = log.stream(topic="t,u", maxBytesPerTrigger=str(2 * length + 10))
    assert stream.latestOffset(log.at(0), ALL) == log.at(20)
    assert stream.latestOffset(log.at(15), ALL) == log.at(30)
    assert stream.latestOffset(log.at(95), ALL) == log.at(100)
    few = log.stream(maxBytesPerTrigger="1", maxOffsetsPerTrigger="3")
    assert few.latestOffset(log.at(0), ALL) == log.at(10)
    assert few.latestOffset(log.at(0), few.getDefaultReadLimit()) == log.at(3)


def test_too_few_messages_wait_for_more(log: Log) -> None:
    stream = log.stream(minRows="60", maxDelay="300ms")
    assert stream.latestOffset(log.at(40), ALL) == log.at(100)
    start = log.at(50)
    began_s = time.monotonic()
    while stream.latestOffset(start, ALL) == start:
        time.sleep(0.01)
    assert time.monotonic() - began_s >= 0.3
    assert stream.latestOffset(log.at(100), ALL) == log.at(100)
    assert stream.latestOffset(log.at(90), ALL) == log.at(90)
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(log.at(90), ALL) == log.at(100)


def test_a_group_is_made_first_and_follows(log: Log) -> None:
    stream = log.stream(group="g", retain="true", startingOffsets="latest-60")
    start = stream.initialOffset()
    assert start == log.at(40)
    assert log.server.channels["t", "g"] == 40
    assert log.server.retains["t", "g"]
    count = log.server.requests.count("/call/group.follow")
    stream.latestOffset(log.at(70), ALL)
    stream.latestOffset(log.at(70), ALL)
    assert log.server.requests.count("/call/group.follow") == count + 1
    assert log.server.channels["t", "g"] == 70


def test_a_group_is_nowhere_in_another_topic_of_that_name(log: Log) -> None:
    """It would have what is to be read there first let go of."""
    stream = log.stream(group="spark", retain="true")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    stream._poll_interval_s = 60
    log.folder.make_anew("t")
    for _ in range(20):
        log.folder.append("t", [b"z"] * 10)
    stream.commit(end)
    assert log.server.channels["t", "spark"] == 0


@pytest.mark.parametrize("follows", ["group", "channel"])
def test_a_follower_of_a_log_with_a_lost_tail_is_at_its_end(log: Log, follows: str) -> None:
    """Brokers refuse a place behind the end, and the query is to say what has happened."""
    with pytest.raises(DataLossError, match="truncation"):
        log.stream(**{follows: "spark"}).latestOffset(log.at(500), ALL)
    assert log.server.channels["t", "spark"] == 100


def test_topics_that_match(log: Log) -> None:
    log.folder.append("tea", [b"x"])
    log.folder.append("noise", [b"x"])
    texts = {"addresses": log.server.address, "topicPattern": "t.*"}
    schema = arrow_schema(StructType().add("offset", "long"))
    stream = StreamReader(ReadOptions.parse(texts, "stream"), schema)
    start = stream.initialOffset()
    assert {topic: queues["0"] for topic, queues in start[log.folder.broker].items()} == {
        "t": 100,
        "tea": 1,
    }
    log.folder.append("toast", [b"x"] * 3)
    time.sleep(0.11)
    first = stream.latestOffset(start, ALL)
    assert first[log.folder.broker]["toast"]["0"] == 0
    assert ranges(stream, first, stream.latestOffset(first, ALL)) == [(0, 3)]
    stream.stop()


def test_a_reader_travels_to_its_tasks(log: Log) -> None:
    stream = log.stream()
    start = stream.initialOffset()
    (split,) = stream.partitions(start, log.at(100))
    copy, same_split = pickle.loads(pickle.dumps((stream, split)))
    offsets = [n for batch in copy.read(same_split) for n in batch.column("offset").to_pylist()]
    assert offsets == list(range(100))


def tasks_of(stream: StreamReader) -> list[list[tuple[str, int, int]]]:
    """The topics and offsets that each task of a first micro-batch reads."""
    start = stream.initialOffset()
    partitions = stream.partitions(start, stream.latestOffset(start, ALL))
    return [
        [(split.key.topic, split.start, split.end) for split in partition.value.splits]
        for partition in partitions
    ]


def test_small_splits_of_one_broker_share_a_task(tmp_path: Path, log: Log) -> None:
    one, two = (Folder(tmp_path / name, 1 << 20) for name in ("one", "two"))
    for number in range(150):
        one.append(f"s{number:03}", [b"x"] * 3)
    two.append("s000", [b"x"] * 3)
    for _ in range(5):
        one.append("s999-large", [b"x" * 1000] * 10)
    named = ",".join([*one.topics])
    stream = log.stream(log.serve(one), log.serve(two), topic=named, splitBytes="1MiB")
    tasks = tasks_of(stream)
    assert [("s999-large", 0, 50)] in tasks
    assert sorted(len(task) for task in tasks) == [1, 1, 22, 128]
    assert sorted(split for task in tasks for split in task) == [
        ("s000", 0, 3),
        *[(f"s{number:03}", 0, 3) for number in range(150)],
        ("s999-large", 0, 50),
    ]
    few = log.stream(log.serve(one), topic=named, splitBytes="1MiB", minPartitions="30")
    assert len(tasks_of(few)) >= 30


def test_an_index_that_one_answer_does_not_hold(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path / "one", 1 << 20)
    for count in (4, 1, 5):
        for _ in range(count):
            folder.append(f"t{count}", [b"x"] * 2)
    monkeypatch.setattr("tests.spark.log_server.INDEX_ROWS_A_REPLY", 3)
    monkeypatch.setattr("martlet.reader.brokers.endpoint._FULL_INDEX_BYTES", 3 * ENTRY.itemsize)
    endpoint = Endpoint(log.serve(folder).address, 5000)
    ranges = [(BrokerQueue(f"t{n}", 0, folder.topics[f"t{n}"]), 0, 2 * n) for n in (4, 1, 5)]
    try:
        indexes = endpoint.indexes(ranges)
    finally:
        endpoint.close()
    assert [rows["first_offset"].tolist() for rows in indexes] == [
        [0, 2, 4, 6],
        [0],
        [0, 2, 4, 6, 8],
    ]


@pytest.mark.parametrize("is_here", [True, False])
def test_a_shared_task_gives_its_messages_in_few_batches_and_asks_for_no_index(
    tmp_path: Path, log: Log, is_here: bool
) -> None:
    folder = Folder(tmp_path / "one", 1 << 20)
    for number in range(20):
        folder.append(f"t{number:02}", [b"x"] * number)
    server = log.serve(folder)
    if not is_here:
        server.data_path = "/nowhere"
    stream = log.stream(server, topic=",".join(folder.topics), splitBytes="1MiB")
    start = stream.initialOffset()
    (task,) = stream.partitions(start, stream.latestOffset(start, ALL))
    del server.requests[:]
    (batch,) = stream.read(task)
    assert batch.column("offset").to_pylist() == [
        n for max_count in range(20) for n in range(max_count)
    ]
    assert set(server.requests) == (set() if is_here else {"/log/batches"})
