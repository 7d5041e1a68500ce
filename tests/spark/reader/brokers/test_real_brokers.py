"""The readers against real brokers, without Spark: where a session would show nothing more."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.crash.written_folder import flip
from tests.interop.certificates import Certificates
from tests.interop.lookup_process import LookupProcess
from tests.spark.publish import ask, key_of, post, publish, wait_for

from martlet.client.sync import Producer
from martlet.log.index import ENTRY
from martlet.pipeline.audit import AuditOptions, require_topics
from martlet.reader.brokers.addresses import OperatorToken
from martlet.reader.brokers.endpoint import BrokerRefused, BrokerUnreachable, Endpoint, NotABroker
from martlet.reader.data_loss import DataLossError, LossReport
from martlet.reader.options import ReadOptions
from martlet.reader.schema import BATCHES, selected
from martlet.reader.segments import SegmentFiles
from martlet.spark.read.batch import BatchReader
from martlet.spark.read.stream import StreamReader
from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def lookup() -> Iterator[LookupProcess]:
    with LookupProcess() as process:
        yield process


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, lookup: LookupProcess
) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("data")
    arguments = (
        f"--lookupd-tcp-address={lookup.tcp_address}",
        "--broadcast-address=127.0.0.1",
        "--max-bytes-per-file=1048576",
    )
    with BrokerProcess(folder, *arguments) as process:
        yield process


def reader(columns: str = "offset,value", **options: str) -> BatchReader:
    parsed = ReadOptions.parse(options, "batch")
    return BatchReader(parsed, selected(columns.split(","), parsed.view))


def rows(columns: str = "offset,value", **options: str) -> list[dict[str, Any]]:
    source = reader(columns, **options)
    batches: list[pa.RecordBatch] = []
    for split in source.partitions():
        batches += source.read(split)
    return [row for batch in batches for row in batch.to_pylist()]


def offsets(**options: str) -> list[int]:
    return [row["offset"] for row in rows("offset", **options)]


def stream(**options: str) -> StreamReader:
    parsed = ReadOptions.parse(options, "stream")
    return StreamReader(parsed, selected(["offset"], parsed.view))


def damage(broker: BrokerProcess, topic: str, number: int, at: int = 150) -> int:
    """Change a byte of a batch, by its number, in the broker's file. Returns its position."""
    url = f"http://{broker.http_address}/log/index?topic={topic}&start=0&end=1000000"
    with urllib.request.urlopen(url, timeout=30) as answer:
        position = int(np.frombuffer(answer.read(), ENTRY)[number]["position"])
    segments = sorted((broker.data_path / "log").glob("*.log"))
    (segment,) = [path for path in segments if int(path.stem) <= position][-1:]
    flip(segment, position - int(segment.stem) + at)
    return position


@pytest.mark.parametrize("from_files", [True, False])
def test_a_damaged_record_is_a_loss_of_its_batch_alone(
    broker: BrokerProcess, from_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"damaged-{from_files}"
    if not from_files:
        monkeypatch.setattr("martlet.reader.segments.SegmentFiles.find", lambda *_: None)
    for first in range(0, 50, 10):
        publish(broker.http_address, topic, [b"%d" % n * 20 for n in range(first, first + 10)])
    query = {"addresses": broker.http_address, "topic": topic}
    position = damage(broker, topic, 2)
    with pytest.raises(DataLossError, match=f"corruption.*offset 20 is.*position {position}") as e:
        offsets(**query)
    assert e.value.loss is LossReport.CORRUPTION
    rest = [*range(20), *range(30, 50)]
    assert offsets(**query, failOnDataLoss="false") == rest
    # Who reads nothing of it does not mind.
    assert len(offsets(**query, startingOffsets="latest-20")) == 20
    batches = rows("offset,count,intact,epoch,body_bytes", **query, view="batches")
    assert [batch["intact"] for batch in batches] == [True, True, False, True, True]
    assert [batch["count"] for batch in batches] == [10] * 5
    damage(broker, topic, 3, at=8)  # Now it does not say how long it is.
    assert offsets(**query, failOnDataLoss="false") == [*range(20), *range(40, 50)]
    batches = rows("offset,epoch,intact", **query, view="batches")
    assert [batch["epoch"] is None for batch in batches] == [False, False, False, True, False]
    assert [batch["intact"] for batch in batches] == [True, True, False, False, True]


@pytest.mark.parametrize("number", [0, 2])
def test_a_record_that_a_start_has_passed_over_is_missed(
    broker: BrokerProcess, number: int
) -> None:
    """Killed, the broker finds the damage when it reads the log behind its checkpoint."""
    topic = f"passed-over-{number}"
    for first in range(0, 50, 10):
        publish(broker.http_address, topic, [b"%d" % n * 20 for n in range(first, first + 10)])
    damage(broker, topic, number)
    broker.kill()
    broker.start()
    query = {"addresses": broker.http_address, "topic": topic}
    first = 10 * number
    message = f"data loss by corruption: .*offset {first} is wanted.* is {first + 10} "
    for view in ("messages", "batches"):
        with pytest.raises(DataLossError, match=message):
            offsets(**query, view=view)
    rest = [n for n in range(50) if not first <= n < first + 10]
    assert offsets(**query, failOnDataLoss="false") == rest
    inside = {"startingOffsets": f'{{"{topic}": {{"0": {first + 5}}}}}'}
    assert offsets(**query, **inside, failOnDataLoss="false") == list(range(first + 10, 50))
    assert len(offsets(**query, startingOffsets="latest-20")) == 20


def test_a_row_for_each_batch(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    post(broker.http_address, "/topic/create?topic=rows&queues=2")
    before_s = time.time()
    publish(broker.http_address, "rows", [b"x" * 10] * 7, key_of(0, 2))
    publish(broker.http_address, "rows", [b"y"] * 2, key_of(1, 2))
    post(broker.http_address, "/pub?topic=rows&defer=3600000", b"later")
    with Producer(broker.tcp_address) as producer:
        producer.send("rows", b"known" * 10, order_key="a")
    query = {"addresses": broker.http_address, "topic": "rows", "view": "batches"}
    every = ",".join(BATCHES.names)
    listed_rows = rows(every, **query)
    monkeypatch.setattr("martlet.reader.segments.SegmentFiles.find", lambda *_: None)
    assert rows(every, **query) == listed_rows
    by_place = {(row["partition"], row["offset"]): row for row in listed_rows}
    seven, two = by_place[0, 0], by_place[1, 0]
    (later,) = [row for row in listed_rows if row["deliver_at"]]
    assert (seven["count"], seven["end_offset"], seven["body_bytes"]) == (7, 7, 70)
    assert (two["count"], two["body_bytes"], later["body_bytes"]) == (2, 2, 5)
    assert (two["deliver_at"], two["channel_id"], two["sends"]) == (None, None, None)
    assert later["deliver_at"].timestamp() - later["timestamp"].timestamp() == pytest.approx(3600)
    assert before_s - 1 < seven["timestamp"].timestamp() < time.time()
    for flag in ("in_transaction", "was_delayed", "was_moved"):
        assert seven[flag] is False
    (sent,) = [row for row in listed_rows if row["sends"]]
    (send,) = sent["sends"]
    assert (send["sequence"], send["count"], send["offset"]) == (1, 1, sent["offset"])
    assert len(send["producer"]) == 32
    (listed,) = ask(broker.http_address, "/log/topics?names=rows")["topics"]
    assert {row["topic_id"] for row in listed_rows} == {listed["topic_id"]}
    # The index alone knows these, and no batch is asked for.
    monkeypatch.setattr("martlet.reader.batch_view._Heads", None)
    few = rows("partition,offset,bytes,timestamp", **query)
    assert few == [{name: row[name] for name in few[0]} for row in listed_rows]


def test_a_batch_is_in_the_split_with_its_first_offset(broker: BrokerProcess) -> None:
    for _ in range(3):
        publish(broker.http_address, "cut", [b"x"] * 10)
    query = {"addresses": broker.http_address, "topic": "cut", "view": "batches"}
    reading = stream(**query, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    position = reading.initialOffset()
    offsets: list[int] = []
    for _ in range(8):
        end = reading.latestOffset(position, reading.getDefaultReadLimit())
        for split in reading.partitions(position, end):
            offsets += [n for batch in reading.read(split) for n in batch["offset"].to_pylist()]
        position = end
    reading.stop()
    assert offsets == [0, 10, 20]


def test_places_to_start_and_end(broker: BrokerProcess) -> None:
    publish(broker.http_address, "places", [b"x"] * 100)
    time.sleep(0.01)
    noon_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    publish(broker.http_address, "places", [b"x"] * 50)
    query = {"addresses": broker.http_address, "topic": "places"}
    noon = f"{np.datetime64(noon_ms, 'ms')}Z"
    for start, end, expected in (
        ("earliest", "latest", range(150)),
        ("earliest+20", "latest-30", range(20, 120)),
        ("latest-30", "latest", range(120, 150)),
        ("latest-1000", "earliest+3", range(3)),
        ("earliest+1000", "latest", range(0)),
        (noon, "latest", range(100, 150)),
        ("earliest", noon, range(100)),
        ("now-1h", "now", range(150)),
        ("2262-12-31T00:00:00Z", "9999-12-31T23:59:59Z", range(0)),
        ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", range(150)),
        ('{"places": "latest-7"}', '{"places": {"0": -1}}', range(143, 150)),
        (json.dumps({"places": noon}), '{"places": {"0": 120}}', range(100, 120)),
    ):
        bounds = {"startingOffsets": start, "endingOffsets": end}
        assert offsets(**query, **bounds) == list(expected), bounds
    with pytest.raises(
        ValueError, match="there is no topic places, queue 4; there is topic places"
    ):
        offsets(**query, startingOffsets='{"places": {"4": 0}}')


def test_small_splits_where_many_tasks_are_wanted(broker: BrokerProcess) -> None:
    for _ in range(20):
        publish(broker.http_address, "tasks", [b"x" * 100] * 10)
    query = {"addresses": broker.http_address, "topic": "tasks"}
    assert len(reader(**query).partitions()) == 1
    assert 4 <= len(reader(**query, minPartitions="4").partitions()) <= 6
    assert len(reader(**query, minPartitions="1000").partitions()) == 20
    assert len(offsets(**query, minPartitions="1000")) == 200


def test_the_properties_of_a_message(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"X-Martlet-Tag": "new", "X-Martlet-Key": "7", "X-Martlet-Order-Key": "ann"}
    headers = properties | {"X-Martlet-Header": "trace=\N{SNOWMAN}".encode().decode("latin-1")}
    post(broker.http_address, "/pub?topic=carried", b"rich", headers)
    post(broker.http_address, "/pub?topic=carried", b"plain")
    query = {"addresses": broker.http_address, "topic": "carried"}
    rich = {"key": b"ann", "tag": "new", "keys": ["7"], "value": b"rich"}
    rich["headers"] = [{"key": "trace", "value": "\N{SNOWMAN}".encode()}]
    plain = {"key": None, "tag": None, "keys": None, "value": b"plain", "headers": None}
    assert rows("key,tag,keys,value,headers", **query) == [rich, plain]
    monkeypatch.setattr("martlet.reader.segments.SegmentFiles.find", lambda *_: None)
    assert rows("key,tag,keys,value,headers", **query) == [rich, plain]


def test_messages_redriven_to_one_channel_are_not_read_again(broker: BrokerProcess) -> None:
    """A dead letter that is redriven is appended to its topic for that channel alone."""
    address = broker.http_address

    def call(method: str, **fields: object) -> Any:
        return json.loads(post(address, f"/call/{method}", json.dumps(fields).encode()) or b"null")

    post(address, "/topic/create?topic=back")
    call("group.join", topic="back", group="g", client_id="m", start="first", lease_ms=60_000)
    post(address, "/pub?topic=back&defer=50", b"deferred")
    post(address, "/pub?topic=back", b"plain")
    listing = "/log/topics?names=back"
    wait_for(lambda: ask(address, listing)["topics"][0]["queues"][0]["end_offset"] == 3)
    query = {"addresses": address, "topic": "back"}
    assert [row["value"] for row in rows(**query)] == [b"deferred", b"plain"]
    batches = rows("offset,channel_id", **query, view="batches")
    assert [batch["channel_id"] is None for batch in batches] == [True, True, False]


def test_brokers_that_lookup_daemons_know(broker: BrokerProcess, lookup: LookupProcess) -> None:
    publish(broker.http_address, "known", [b"x"] * 5)
    publish(broker.http_address, "known-too", [b"x"] * 2)
    closed_address = f"127.0.0.1:{free_port()}"
    both = f"{closed_address},{lookup.http_address}"
    query = {"lookup": both, "timeoutMs": "300"}
    with pytest.raises(BrokerUnreachable):
        offsets(lookup=closed_address, topic="known", timeoutMs="300")
    # One of two is enough; a broker that is named as well counts once.
    assert len(offsets(**query, topicPattern="known.*")) == 7
    assert len(offsets(**query, topic="known", addresses=broker.http_address)) == 5
    with pytest.raises(
        ValueError, match=r"no topic that matches /nothing/ at 127.*there is.*known"
    ):
        offsets(**query, topicPattern="nothing")
    with pytest.raises(NotABroker, match="is no Martlet broker"):
        offsets(addresses=lookup.http_address, topic="known")
    with pytest.raises(NotABroker, match="is no lookup daemon"):
        offsets(lookup=broker.http_address, topic="known")


@pytest.mark.parametrize("retaining", [{"channel": "c"}, {"group": "c", "retain": "true"}])
def test_the_first_start_says_what_the_broker_deletes_from_now_on(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture, retaining: dict[str, str]
) -> None:
    topic = f"history-{len(retaining)}"
    post(broker.http_address, f"/topic/create?topic={topic}&queues=2")
    for queue in range(2):
        publish(broker.http_address, topic, [b"x" * 1000] * 50, key_of(queue, 2))
    query = {"addresses": broker.http_address, "topic": topic}

    def warning(**options: str) -> str:
        caplog.clear()
        reading = stream(**query, **options)
        reading.initialOffset()
        reading.stop()
        return caplog.text

    assert warning() == warning(group="sees-only") == ""
    first = warning(**retaining)
    assert f"topic {topic} had no channel, so the broker has kept 100 messages of it (10" in first
    assert "KiB of the log) for the first one, which is 'c' now: it deletes those that" in first
    assert f"martlet topic configure {topic} retention_ms=" in first
    assert warning(**retaining) == warning(channel="another") == ""


def test_a_group_of_another_kind_is_left_alone(broker: BrokerProcess) -> None:
    publish(broker.http_address, "taken", [b"x"] * 5)
    post(broker.http_address, "/channel/create?topic=taken&channel=billing")
    reading = stream(addresses=broker.http_address, topic="taken", group="billing")
    with pytest.raises(BrokerRefused, match=r"a channel for consumers: .* another name"):
        reading.initialOffset()
    reading.stop()


def test_a_broker_that_has_as_many_channels_as_it_may(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--max-channels-per-topic=1") as broker:
        post(broker.http_address, "/pub?topic=full", b"x")
        post(broker.http_address, "/channel/create?topic=full&channel=other")
        reading = stream(addresses=broker.http_address, topic="full", group="spark")
        with pytest.raises(BrokerRefused, match=r"one too many.*--max-channels-per-topic"):
            reading.initialOffset()
        reading.stop()


def test_a_broker_that_takes_tls_only(tmp_path: Path, certificates: Certificates) -> None:
    flags = [
        *certificates.flags,
        "--tls-required",
        "--tls-client-auth-policy=require-verify",
        f"--tls-root-ca-file={certificates.authority}",
    ]
    with BrokerProcess(tmp_path / "data", *flags) as broker:
        tls = {
            "tlsCaFile": str(certificates.authority),
            "tlsCertFile": str(certificates.client),
            "tlsKeyFile": str(certificates.client_key),
        }
        # Its HTTP server gives its address.
        for address in (broker.http_address, f"https://{broker.https_address}"):
            reading = stream(addresses=address, topic="t", **tls)
            assert reading.initialOffset() == {}
            assert reading.latestOffset({}, ReadAllAvailable()) == {}
            reading.stop()
        with pytest.raises(BrokerRefused, match=r"do not agree about TLS.*see options tlsCaFile"):
            offsets(addresses=broker.http_address, topic="t", timeoutMs="300")


TOKEN = "0123456789abcdef0123"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(TOKEN)
    return path


@pytest.fixture
def guarded(tmp_path: Path, token_file: Path) -> Iterator[BrokerProcess]:
    """A broker whose log is for operators, with a topic."""
    flag = f"--operator-token-file={token_file}"
    with BrokerProcess(tmp_path / "data", flag) as broker:
        publish(broker.http_address, "t", [b"one", b"two"])
        yield broker


def test_a_query_reads_with_the_token_of_a_file(
    guarded: BrokerProcess,
    token_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"addresses": guarded.http_address, "topic": "t"}
    both = [{"value": b"one"}, {"value": b"two"}]
    with pytest.raises(BrokerRefused, match=r"OPERATOR_TOKEN_MISSING.*operatorTokenFile"):
        rows("value", **options)
    named = options | {"operatorTokenFile": str(token_file)}
    assert rows("value", **named) == both
    # As an executor on another machine, which does not have the broker's files.
    monkeypatch.setattr(SegmentFiles, "find", lambda *_: None)
    assert rows("value", **named) == both
    assert TOKEN.encode() not in pickle.dumps(reader("value", **named).partitions())
    monkeypatch.setenv("MARTLET_OPERATOR_TOKEN_FILE", str(token_file))
    assert rows("value", **options) == both
    wrong = tmp_path / "wrong"
    wrong.write_text("another-token-of-theirs")
    with pytest.raises(BrokerRefused, match="OPERATOR_TOKEN_WRONG"):
        rows("value", **options, operatorTokenFile=str(wrong))


@contextmanager
def closed_to_this_process(path: Path) -> Iterator[None]:
    """As another user, where this one is root; else without the rights to a file or folder."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
        return
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(mode)


@pytest.mark.parametrize("is_closed", ["folder", "segment"])
@pytest.mark.parametrize(("view", "columns"), [("messages", "value"), ("batches", "offset,intact")])
def test_a_task_of_another_user_asks_the_broker(is_closed: str, view: str, columns: str) -> None:
    with (
        tempfile.TemporaryDirectory() as place,  # pytest's own is closed to others
        BrokerProcess(Path(place) / "data") as broker,
    ):
        publish(broker.http_address, "t", [b"one", b"two"])
        folder = Path(place) / "data"
        (segment, *_) = sorted((folder / "log").glob("*.log"))
        broker_id = json.loads((folder / "broker.json").read_bytes())["broker"]
        if is_closed == "segment":
            for path in (Path(place), folder, folder / "log"):
                path.chmod(0o755)
            (folder / "broker.json").chmod(0o644)
        options = {"addresses": broker.http_address, "topic": "t", "view": view}
        expected = rows(columns, **options)
        with closed_to_this_process(segment if is_closed == "segment" else folder):
            files = SegmentFiles.find(str(folder), broker_id)
            assert (files is None) is (is_closed == "folder")
            with pytest.raises(PermissionError):
                segment.read_bytes()
            assert rows(columns, **options) == expected
        assert expected


def test_a_token_that_is_replaced_is_used_for_the_next_request(
    guarded: BrokerProcess, token_file: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.write_text(TOKEN)
    endpoint = Endpoint(
        guarded.http_address,
        1000,
        token=OperatorToken(str(mine), frozenset([guarded.http_address])),
    )
    assert endpoint.listing().queues
    mine.write_text("another-token-of-theirs")
    with pytest.raises(BrokerRefused, match="OPERATOR_TOKEN_WRONG"):
        endpoint.listing()
    mine.unlink()
    with pytest.raises(BrokerRefused, match=r"option operatorTokenFile=.* cannot be read"):
        endpoint.listing()
    endpoint.close()


def test_a_wrong_token_file_is_an_error_of_the_option(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"option operatorTokenFile=.*/none cannot be read"):
        reader(addresses="127.0.0.1:4151", topic="t", operatorTokenFile=f"{tmp_path}/none")


def test_the_audit_reads_with_a_token(guarded: BrokerProcess, token_file: Path) -> None:
    missing = AuditOptions(addresses=(guarded.http_address,), topics=("t",))
    with pytest.raises(BrokerRefused, match="OPERATOR_TOKEN_MISSING"):
        require_topics(missing)
    require_topics(missing.replace(operator_token_file=str(token_file)))
