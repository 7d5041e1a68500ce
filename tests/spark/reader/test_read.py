"""A task's reading, from the files and through a broker, while the ground moves under it."""

from __future__ import annotations

import json
import logging
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from tests.spark.folder import EPOCH_NS, Folder
from tests.spark.log_server import LogServer, serving

from martlet.reader import task as reading
from martlet.reader.brokers.endpoint import BrokerRefused, BrokerUnreachable, Endpoint, NotABroker
from martlet.reader.data_loss import DataLossError
from martlet.reader.offsets import QueueKey
from martlet.reader.split import Split, Task
from martlet.reader.task import read
from martlet.spark.read.schema import arrow_schema
from martlet.testing.ports import free_port

SCHEMA = arrow_schema(StructType().add("offset", "long").add("value", "binary"))
SEGMENT_BYTES = 16 << 10


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", 4 << 10)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """500 messages in batches of ten, over several segments, between those of another topic."""
    folder = Folder(tmp_path / "data", SEGMENT_BYTES)
    for first in range(0, 500, 10):
        folder.append("t", [body(offset) for offset in range(first, first + 10)])
        folder.append("noise", [b"-" * 300] * 2)
    return folder


@pytest.fixture(autouse=True)
def nothing_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk is there as soon as it is read, however small it is."""
    monkeypatch.setattr("martlet.reader.task._SMALL_BYTES", 0)


@pytest.fixture
def server(folder: Folder) -> Iterator[LogServer]:
    with serving(LogServer(folder)) as server:
        yield server


def body(offset: int) -> bytes:
    return b"%d " % offset * (1 + offset % 7)


def split(server: LogServer, start: int = 0, end: int = 500, *, fail: bool = True) -> Split:
    return Split(
        key=QueueKey(server.folder.broker, "t", 0),
        queue_topic_id=server.folder.topics["t"],
        start=start,
        end=end,
        address=server.address,
        data_path=server.data_path,
        timeout_ms=5000,
        fail_on_data_loss=fail,
    )


def read_one(one: Split) -> Iterator[pa.RecordBatch]:
    return read(Task((one,)), SCHEMA)


def offsets_read(one: Split) -> list[int]:
    all_offsets: list[int] = []
    for batch in read_one(one):
        offsets = batch.column("offset").to_pylist()
        assert batch.column("value").to_pylist() == [body(offset) for offset in offsets]
        all_offsets += offsets
    return all_offsets


@pytest.mark.parametrize(("start", "end"), [(0, 500), (3, 497), (10, 20), (255, 256)])
@pytest.mark.parametrize("directly", [True, False])
def test_exactly_the_wanted_messages_in_order(
    server: LogServer, start: int, end: int, directly: bool
) -> None:
    if not directly:
        server.data_path = "/nowhere"
    assert offsets_read(split(server, start, end)) == list(range(start, end))
    assert ("/log/batches" in server.requests) is not directly


def test_another_brokers_folder_of_the_same_path_is_left_alone(
    server: LogServer, folder: Folder
) -> None:
    (folder.path / "broker.json").write_text(json.dumps({"broker": "other", "version": 1}))
    assert offsets_read(split(server)) == list(range(500))
    assert "/log/batches" in server.requests


def test_a_segment_recycled_while_it_is_read(
    server: LogServer, folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages read before stand; the rest of the segment has gone, and that is reported."""
    batches = read_one(split(server, fail=False))
    all_offsets = next(batches).column("offset").to_pylist()
    folder.recycle_first()
    with caplog.at_level(logging.WARNING):
        for batch in batches:
            offsets = batch.column("offset").to_pylist()
            assert batch.column("value").to_pylist() == [body(offset) for offset in offsets]
            all_offsets += offsets
    first = folder.start_offsets["t", 0]
    assert first > 20
    assert all_offsets == [*range(all_offsets.index(first)), *range(first, 500)]
    assert f"Going on at {first}" in caplog.text


def test_a_segment_recycled_while_it_is_read_fails_by_default(
    server: LogServer, folder: Folder
) -> None:
    batches = read_one(split(server))
    next(batches)
    folder.recycle_first()
    with pytest.raises(DataLossError) as caught:
        list(batches)
    first = str(folder.start_offsets["t", 0])
    for part in ("topic t, queue 0", first, "failOnDataLoss", "channel"):
        assert part in str(caught.value)


def test_a_batch_that_cleaning_has_moved_is_asked_of_the_broker(
    server: LogServer, folder: Folder
) -> None:
    rows = folder.entries["t", 0]
    first_offset, gone, count, length, *_ = rows[7]
    base = gone // SEGMENT_BYTES * SEGMENT_BYTES
    segment = folder.path / "log" / f"{base:020d}.log"
    original = folder.record
    moved = original(gone, length)
    with segment.open("r+b") as file:
        file.seek(gone - base)
        file.write(bytes(length))
    folder.record = (  # type: ignore[method-assign]
        lambda position, length: moved if position == gone else original(position, length)
    )
    assert offsets_read(split(server)) == list(range(500))
    assert (first_offset, count) == (70, 10)


def test_made_anew_while_it_is_read(server: LogServer, folder: Folder) -> None:
    server.data_path = "/nowhere"
    for fail in (True, False):
        one = split(server, fail=fail)
        batches = read_one(one)
        next(batches)
        folder.make_anew("t")
        for _ in range(60):
            folder.append("t", [b"another"] * 10)
        if fail:
            with pytest.raises(DataLossError, match="data loss by recreation"):
                list(batches)
        else:
            assert list(batches) == []


def test_messages_for_one_channel_only_are_skipped(server: LogServer, folder: Folder) -> None:
    folder.append("t", [b"came back"] * 4, deliver_at_ns=-77)
    folder.append("t", [body(504)], deliver_at_ns=EPOCH_NS)
    for server.data_path in (str(folder.path), "/nowhere"):
        assert offsets_read(split(server, end=505)) == [*range(500), 504]
        assert offsets_read(split(server, 501, 503)) == []


def test_removed_in_the_middle_is_a_loss(server: LogServer, folder: Folder) -> None:
    del folder.entries["t", 0][5]
    for server.data_path in (str(folder.path), "/nowhere"):
        with pytest.raises(DataLossError, match=r"offset 50 is wanted.*first one there is 60"):
            list(read_one(split(server)))
        expected = [*range(50), *range(60, 500)]
        assert offsets_read(split(server, fail=False)) == expected


def test_a_log_that_ends_too_early_is_a_loss(server: LogServer) -> None:
    with pytest.raises(DataLossError, match="the broker's log ends before it"):
        list(read_one(split(server, 490, 600)))


def test_a_broker_that_is_busy_is_asked_again(server: LogServer) -> None:
    server.failing = 3
    assert offsets_read(split(server)) == list(range(500))


def test_a_broker_that_is_away_is_named() -> None:
    endpoint = Endpoint(f"127.0.0.1:{free_port()}", 200)
    with pytest.raises(BrokerUnreachable, match=rf"{endpoint.address}.*timeoutMs"):
        endpoint.listing()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\0\0\0\x12\0\0\0\x01E_BAD_PROTOCOL", "that is a TCP port; give the broker's HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "what answers there does not speak HTTP"),
    ],
    ids=["nsq", "ssh"],
)
def test_a_port_that_does_not_speak_http_is_reported_at_once(answer: bytes, why: str) -> None:
    """It was asked for a minute, and the error was BadStatusLine."""

    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.request.sendall(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Other) as server:
        endpoint = Endpoint(f"127.0.0.1:{server.server_address[1]}", 600_000)
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(NotABroker, match=rf"{endpoint.address}: {why}"):
            endpoint.listing()
        thread.join()


def test_a_broker_that_is_away_for_a_moment(server: LogServer, folder: Folder) -> None:
    """The connection that was kept breaks, and the broker is not there for some tries."""
    with closing(Endpoint(server.address, 10_000)) as endpoint:
        assert endpoint.listing().broker == folder.broker
        server.failing = 2
        endpoint.close()
        assert {queue.topic for queue in endpoint.listing().queues} == {"t", "noise"}


def test_a_refusal_of_the_broker_is_reported_at_once(server: LogServer) -> None:
    with (
        closing(Endpoint(server.address, 60_000)) as endpoint,
        pytest.raises(BrokerRefused, match="HTTP 404: TOPIC_NOT_FOUND"),
    ):
        endpoint.offset_at("missing", 0, 0)
