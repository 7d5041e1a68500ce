"""Reading a broker that has replicas: a primary, and standbys that lag."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from tests.spark.folder import EPOCH_NS, Folder
from tests.spark.log_server import LogServer, serving

from martlet.reader.brokers.endpoint import BrokerUnreachable, ReplicaSource
from martlet.reader.data_loss import DataLossError
from martlet.reader.offsets import Offsets, QueueKey
from martlet.reader.options import ReadOptions
from martlet.reader.split import Split, Task
from martlet.reader.task import read
from martlet.spark.read.schema import arrow_schema
from martlet.spark.read.stream import StreamReader

ALL = ReadAllAvailable()
SCHEMA = arrow_schema(StructType().add("offset", "long").add("value", "binary"))
Replicas = Callable[..., LogServer]


@pytest.fixture(autouse=True)
def every_look_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("martlet.spark.read.stream._POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr("martlet.spark.read.stream._MAX_POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr("martlet.reader.task._SMALL_BYTES", 0)
    monkeypatch.setattr("martlet.reader.task.CHUNK_BYTES", 4096)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replicas]:
    """Makes a replica with so many batches of 10 messages; its files are elsewhere."""
    with ExitStack() as stack:

        def make(name: str, batch_count: int, *, is_standby: bool = False) -> LogServer:
            folder = Folder(tmp_path / name, 4096)
            folder.broker = "broker-1"
            (folder.path / "broker.json").write_text(json.dumps({"broker": "broker-1"}))
            folder.topics["t"] = 1
            folder.append("other", [b"x"])
            grow(folder, batch_count)
            server = stack.enter_context(serving(LogServer(folder, "/elsewhere")))
            server.is_standby = is_standby
            return server

        yield make


@pytest.fixture
def reader() -> Iterator[Callable[..., StreamReader]]:
    with ExitStack() as stack:

        def make(*servers: LogServer, **options: str) -> StreamReader:
            addresses = ",".join(server.address for server in servers)
            texts = {"addresses": addresses, "topic": "t", "startingOffsets": "earliest"} | options
            stream = StreamReader(ReadOptions.parse(texts, "stream"), SCHEMA)
            stack.callback(stream.stop)
            return stream

        yield make


def grow(folder: Folder, batch_count: int) -> None:
    """Append batches as the primary has them."""
    for _ in range(batch_count):
        first = folder.end_offsets.get(("t", 0), 0)
        folder.append("t", [body(offset) for offset in range(first, first + 10)])


def body(offset: int) -> bytes:
    return b"%d " % offset * 20


def at(offset: int) -> Offsets:
    return {"broker-1": {"t": {"0": offset, "topic_id": 1}}}


def offsets_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    all_offsets: list[int] = []
    for batch in batches:
        offsets = batch.column("offset").to_pylist()
        assert batch.column("value").to_pylist() == [body(offset) for offset in offsets]
        all_offsets += offsets
    return all_offsets


def offsets_read(stream: StreamReader, start: Offsets, end: Offsets) -> list[int]:
    tasks = stream.partitions(start, end)
    return [offset for task in tasks for offset in offsets_of(stream.read(task))]


def test_the_end_never_goes_back(replica: Replicas, reader: Callable[..., StreamReader]) -> None:
    """Neither when the one that was ahead dies, nor when it comes back with less."""
    standby, primary = replica("b", 3, is_standby=True), replica("a", 5)
    stream = reader(standby, primary)
    start = stream.initialOffset()
    assert start == at(0)
    assert stream.latestOffset(start, ALL) == at(50)
    primary.failing = 10**9
    for _ in range(3):
        assert stream.latestOffset(start, ALL) == at(50)
    primary.folder.end_offsets["t", 0] = 20
    primary.failing, primary.is_standby = 0, True
    for _ in range(3):
        assert stream.latestOffset(start, ALL) == at(50)
    standby.is_standby, standby.epoch = False, 2
    assert stream.latestOffset(start, ALL) == at(50)
    grow(standby.folder, 4)
    assert stream.latestOffset(start, ALL) == at(70)


def test_a_standby_that_lags_is_not_asked_twice(
    replica: Replicas, reader: Callable[..., StreamReader]
) -> None:
    standby, primary = replica("b", 3, is_standby=True), replica("a", 5)
    stream = reader(standby, primary)
    assert offsets_read(stream, at(0), at(50)) == list(range(50))
    assert offsets_read(stream, at(30), at(50)) == list(range(30, 50))


def test_a_micro_batch_waits_until_a_replica_has_it(
    replica: Replicas, reader: Callable[..., StreamReader]
) -> None:
    standby, primary = replica("b", 3, is_standby=True), replica("a", 5)
    stream = reader(standby, primary, timeoutMs="300")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    primary.failing = 10**9
    with pytest.raises(BrokerUnreachable, match="BEHIND"):
        offsets_read(stream, at(0), end)
    grow(standby.folder, 2)
    assert offsets_read(stream, at(0), end) == list(range(50))


def test_a_topic_that_a_standby_does_not_have_yet_is_no_deleted_one(
    replica: Replicas, reader: Callable[..., StreamReader]
) -> None:
    standby, primary = replica("b", 0, is_standby=True), replica("a", 2)
    stream = reader(standby, primary)
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == at(20)
    primary.failing = 10**9
    assert stream.latestOffset(start, ALL) == at(20)
    assert stream.latestOffset(at(20), ALL) == at(20)


def test_a_topic_that_the_primary_has_deleted_is_gone(
    replica: Replicas, reader: Callable[..., StreamReader]
) -> None:
    standby, primary = replica("b", 2, is_standby=True), replica("a", 2)
    stream = reader(standby, primary)
    start = stream.initialOffset()
    primary.folder.append("other", [b"x"])
    del primary.folder.topics["t"], primary.folder.end_offsets["t", 0]
    del primary.folder.start_offsets["t", 0]
    with pytest.raises(DataLossError, match="the topic was deleted"):
        stream.latestOffset(start, ALL)


def test_a_stream_starts_while_a_replica_is_down(
    replica: Replicas, reader: Callable[..., StreamReader]
) -> None:
    dead, primary = replica("c", 5, is_standby=True), replica("a", 5)
    dead.failing = 10**9
    primary.replicas = [dead.address, primary.address]
    stream = reader(dead, primary)
    began_s = time.monotonic()
    start = stream.initialOffset()
    assert offsets_read(stream, start, stream.latestOffset(start, ALL)) == list(range(50))
    assert time.monotonic() - began_s < 50
    dead.failing = 0
    assert stream.latestOffset(at(50), ALL) == at(50)
    primary.failing = 10**9
    grow(dead.folder, 2)
    assert stream.latestOffset(at(50), ALL) == at(70)


def test_a_stream_does_not_start_without_another_broker(
    replica: Replicas, reader: Callable[..., StreamReader]
) -> None:
    other, primary = replica("c", 5), replica("a", 5)
    other.failing = 10**9
    primary.replicas = [primary.address, "127.0.0.1:1"]
    with pytest.raises(BrokerUnreachable, match=other.address):
        reader(other, primary, timeoutMs="300").initialOffset()


def test_a_stream_starts_once_standbys_have_elected_a_primary(
    replica: Replicas, reader: Callable[..., StreamReader]
) -> None:
    """Before, none of them may know the end of the log."""
    dead, standby = replica("a", 5), replica("b", 3, is_standby=True)
    dead.failing = 10**9
    standby.replicas = [dead.address, standby.address]
    with pytest.raises(BrokerUnreachable, match=dead.address):
        reader(dead, standby, timeoutMs="300").initialOffset()

    def elect() -> None:
        grow(standby.folder, 2)
        standby.is_standby, standby.epoch = False, 2

    stream = reader(dead, standby)
    election = threading.Timer(0.5, elect)
    election.start()
    start = stream.initialOffset()
    election.join()
    assert stream.latestOffset(start, ALL) == at(50)


def test_a_broker_whose_replica_is_dead_may_be_away_for_a_moment(
    replica: Replicas, reader: Callable[..., StreamReader]
) -> None:
    dead, primary = replica("c", 5, is_standby=True), replica("a", 5)
    dead.failing = 10**9
    primary.replicas = [dead.address, primary.address]
    stream = reader(dead, primary, timeoutMs="500")
    start = stream.initialOffset()
    time.sleep(0.6)  # Longer than a broker may be silent.
    primary.failing = 1
    assert stream.latestOffset(start, ALL) == at(0)
    assert stream.latestOffset(start, ALL) == at(50)


def split(first: LogServer, *others: LogServer, end: int = 50, index: bytes = b"") -> Split:
    return Split(
        key=QueueKey("broker-1", "t", 0, 1),
        queue_topic_id=1,
        start=0,
        end=end,
        address=first.address,
        data_path=first.data_path,
        timeout_ms=5000,
        fail_on_data_loss=True,
        index=index,
        others=tuple(ReplicaSource(replica.address, replica.data_path) for replica in others),
    )


def test_a_task_goes_on_at_another_replica(replica: Replicas) -> None:
    primary, standby = replica("a", 50), replica("b", 50, is_standby=True)
    batches = read(Task((split(primary, standby, end=500),)), SCHEMA)
    offsets = offsets_of(iter([next(batches)]))
    assert 0 < len(offsets) < 500
    primary.failing = 10**9
    began_s = time.monotonic()
    assert offsets + offsets_of(batches) == list(range(500))
    assert time.monotonic() - began_s < 50
    assert "/log/batches" in standby.requests


def test_a_task_reads_the_replica_on_its_machine(replica: Replicas) -> None:
    primary, standby = replica("a", 5), replica("b", 5, is_standby=True)
    standby.data_path = str(standby.folder.path)
    assert offsets_of(read(Task((split(primary, standby),)), SCHEMA)) == list(range(50))
    assert primary.requests == []
    assert standby.requests == ["/log/index"]


def test_a_replica_on_its_machine_may_lag(replica: Replicas) -> None:
    primary, standby = replica("a", 50), replica("b", 20, is_standby=True)
    standby.data_path = str(standby.folder.path)
    offsets = offsets_of(read(Task((split(primary, standby, end=500),)), SCHEMA))
    assert offsets == list(range(500))


def test_records_that_a_failover_took_back_are_not_read(replica: Replicas) -> None:
    """At the same position, of the same offset, in the files of a replica that is dead."""
    primary, dead = replica("a", 5), replica("b", 4)
    dead.folder.append(
        "t", [b"another ".ljust(len(body(0))) for _ in range(10)], stored_at_ns=EPOCH_NS + 1
    )
    rows = [server.folder.index("t") for server in (primary, dead)]
    assert (rows[0]["position"] == rows[1]["position"]).all()
    dead.data_path = str(dead.folder.path)
    dead.failing = 10**9
    taken_back = split(primary, dead, index=rows[0].tobytes())
    assert offsets_of(read(Task((taken_back,)), SCHEMA)) == list(range(50))


def test_a_record_that_one_replica_has_damaged_is_asked_of_another(replica: Replicas) -> None:
    primary, standby = replica("a", 5), replica("b", 5, is_standby=True)
    primary.folder.damage("t", 2)
    assert offsets_of(read(Task((split(primary, standby),)), SCHEMA)) == list(range(50))


def test_the_position_is_reported_to_the_primary(
    replica: Replicas, reader: Callable[..., StreamReader]
) -> None:
    standby, primary = replica("b", 5, is_standby=True), replica("a", 5)
    stream = reader(standby, primary, group="spark")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    primary.failing, standby.failing = 1, 0
    stream.commit(end)
    stream.latestOffset(end, ALL)
    assert primary.channels["t", "spark"] == 50
    assert not standby.channels
