"""Tasks and the driver at real brokers, without Spark."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import shutil
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from crc32c import crc32c
from tests import brokers
from tests.answering import answering
from tests.interop.asking import ask, until
from tests.interop.auth_server import EVERYTHING, Answer, AuthServer, allowed
from tests.interop.certificates import Certificates
from tests.interop.lookup_process import LookupProcess
from tests.spark.publish import open_count, post, wait_for
from tests.spark.stored import rows_of, values_of

from martlet.properties.model import KeyHash
from martlet.spark.read.schema import SCHEMA, arrow_schema
from martlet.spark.write import broker_transaction, sink
from martlet.spark.write.broker_transaction import BrokerTransaction
from martlet.spark.write.options import BatchId, CommitMessage, WriteFailed, WriteOptions
from martlet.spark.write.placement import BrokerUnavailable, broker_for, find_broker
from martlet.spark.write.sink import BatchWriter, StreamWriter
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.spark


broker = brokers.process("--max-transaction-bytes=1MiB", "--max-transaction-sends=50")


def options(*brokers: BrokerProcess, **more: str) -> WriteOptions:
    addresses = ",".join(broker.http_address for broker in brokers)
    return WriteOptions.parse({"addresses": addresses} | more, "stream")


def batch(*values: str, **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values)} | columns)


def task(
    write_options: WriteOptions,
    transaction: str,
    batch_id: BatchId | None,
    *batches: pa.RecordBatch,
) -> CommitMessage:
    return sink._staged(write_options, transaction, batch_id, iter(batches))


def publish(write_options: WriteOptions, number: int, rows: pa.RecordBatch) -> CommitMessage:
    """Write a batch of a query by one task. Returns what that reports."""
    writer = StreamWriter(write_options)
    topic = write_options.topic or "no topic"
    commit = task(write_options, f"{topic} {number}", BatchId(topic, number), rows)
    writer.commit([commit], number)
    return commit


def test_tasks_stage_and_the_driver_publishes(broker: BrokerProcess) -> None:
    writer = StreamWriter(options(broker, topic="plain"))
    place = BatchId("plain", 0)
    commits = [
        task(writer._options, "a", place, batch("one"), batch(), batch("two")),
        task(writer._options, "a", place),
        task(writer._options, "a", place, batch("three")),
    ]
    given_up = task(writer._options, "a", place, batch("of a task that was tried again"))
    assert given_up.message_count == 1
    assert values_of(broker.http_address, "plain") == []
    writer.commit([*commits], 0)
    assert values_of(broker.http_address, "plain") == ["one", "two", "three"]
    # Spark, when its own commit fails, aborts what was published.
    writer.abort([*commits, None], 0)
    writer.commit([*commits], 0)
    assert values_of(broker.http_address, "plain") == ["one", "two", "three"]
    assert open_count(broker.http_address) == 0


def test_a_batch_is_published_once_however_it_is_cut(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    writer = StreamWriter(options(broker, topic="again"))
    # What another run has staged before the first, a zombie by then, commits.
    late = task(writer._options, "second 7", BatchId("again", 7), batch("a"))
    for run in ("first", "third"):
        commits = [
            task(writer._options, f"{run} 7", BatchId("again", 7), batch(*some))
            for some in (["a", "b"], ["c"])
        ]
        if run == "third":
            # This one learns that it need not stage anything.
            assert [(commit.message_count, commit.is_repeated) for commit in commits] == [
                (0, True)
            ] * 2
        with caplog.at_level(logging.WARNING):
            writer.commit([*commits], 7)
    with caplog.at_level(logging.WARNING):
        writer.commit([late], 7)
    assert caplog.text.count("batch 7 of again was published before") == 2
    assert values_of(broker.http_address, "again") == ["a", "b", "c"]
    assert open_count(broker.http_address) == 0
    publish(writer._options, 8, batch("d"))
    assert values_of(broker.http_address, "again") == ["a", "b", "c", "d"]


def test_a_batch_that_fails_leaves_nothing(broker: BrokerProcess) -> None:
    writer = StreamWriter(options(broker, topic="failed"))
    commit = task(writer._options, "failed", BatchId("failed", 0), batch("one"))
    writer.abort([commit, None], 0)
    writer.abort([None], 1)
    assert open_count(broker.http_address) == 0
    assert values_of(broker.http_address, "failed") == []
    with pytest.raises(WriteFailed, match="1 task did not report the rows staged"):
        writer.commit([commit, None], 0)
    with pytest.raises(WriteFailed, match=r"rolled-back.*rolled back.*start the query again"):
        writer.commit([commit], 0)


def test_a_write_with_only_failed_tasks_leaves_nothing_open(broker: BrokerProcess) -> None:
    """Spark reports no failed task, and so nothing that it had staged before."""
    texts = {"addresses": broker.http_address, "topic": "failed", "blockBytes": "1024"}
    write_options = WriteOptions.parse(texts, "batch")
    writer = pickle.loads(pickle.dumps(BatchWriter(write_options)))
    good = batch(*["x" * 100] * 30)
    with pytest.raises(ValueError, match="raise its --max-msg-size"):
        writer.write(iter([good, good, batch("y" * 2_000_000)]))
    assert open_count(broker.http_address) == 1
    writer.abort([None])
    assert open_count(broker.http_address) == 0


def test_rows_name_their_target_and_properties(broker: BrokerProcess) -> None:
    post(broker.http_address, "/topic/create?topic=keyed&queues=3")
    writer = StreamWriter(options(broker))
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None, [], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    commit = task(
        writer._options,
        "carried",
        BatchId("carried", 0),
        batch(
            *("w", "x", "y", "z"),
            topic=pa.array(["keyed", "keyed", "lone", "keyed"]),
            key=pa.array(["k1", "k2", "k1", None]),
            partition=pa.array([None, None, None, 2], pa.int32()),
            tag=pa.array(["paid", None, None, "paid"]),
            keys=pa.array([["o-1", "o-2"], None, None, ["o-3"]]),
            headers=headers,
        ),
    )
    writer.commit([commit], 0)
    by_value = {row["value"]: row for row in rows_of(broker.http_address, "keyed")}
    assert {value: row["partition"] for value, row in by_value.items()} == {
        b"w": KeyHash.CRC32C_FMIX32.of(crc32c(b"k1")) % 3,
        b"x": KeyHash.CRC32C_FMIX32.of(crc32c(b"k2")) % 3,
        b"z": 2,
    }
    first = by_value[b"w"]
    assert (first["key"], first["tag"], first["keys"]) == (b"k1", "paid", ["o-1", "o-2"])
    assert first["headers"] == [{"key": "h", "value": b"1"}]
    assert (by_value[b"z"]["key"], by_value[b"z"]["tag"], by_value[b"z"]["keys"]) == (
        None,
        "paid",
        ["o-3"],
    )
    (lone,) = rows_of(broker.http_address, "lone")
    assert (lone["value"], lone["key"], lone["headers"]) == (b"y", b"k1", None)


# As Avro's serializers and a compacted topic of Kafka have them.
FROM_KAFKA: dict[str, list[Any]] = {
    "key": [b"\x00\x00\x00\x00\x07\xff", b"\xfe", b"gone", b"plain"],
    "value": [b"\x00\x00\x00\x00\x08\xff", None, None, b""],
    "headers": [
        [{"key": "h", "value": b"\xff\xfe"}, {"key": "h", "value": b"2"}],
        [{"key": "h", "value": b"3"}],
        None,
        None,
    ],
    "priority": [None, 9, 0, 4],
}


def test_a_compacted_topic_of_kafka_goes_through_whole(broker: BrokerProcess) -> None:
    kinds = {field.name: field.type for field in arrow_schema(SCHEMA)}
    columns = {name: pa.array(cells, kinds[name]) for name, cells in FROM_KAFKA.items()}
    of_kafka = {"partition": pa.array([11] * 4, pa.int32()), "offset": pa.array(range(4))}
    rows = pa.RecordBatch.from_pydict(columns | of_kafka)
    post(broker.http_address, "/topic/create?topic=whole&queues=2")
    with pytest.raises(ValueError, match=r"offset 1, key b'.xfe'.* in 2 more .*nullValue=tombston"):
        publish(options(broker, topic="refused"), 0, rows)
    publish(options(broker, topic="whole", nullValue="tombstone"), 0, rows)
    # Written again as the source has them, to a topic of one queue.
    schema = arrow_schema(SCHEMA)
    again = pa.RecordBatch.from_pylist(rows_of(broker.http_address, "whole"), schema)
    assert {row["partition"] for row in again.to_pylist()} >= {2, 3}
    publish(options(broker, topic="copied"), 0, again.drop_columns(["topic"]))
    marks = {name: [{"key": "martlet-value", "value": name}] for name in (b"null", b"empty")}
    marked = [marks.get(word, []) for word in (b"", b"null", b"null", b"empty")]
    expected = [
        (key, value, [*(headers or []), *mark] or None, 4 if priority is None else priority)
        for key, value, headers, priority, mark in zip(*FROM_KAFKA.values(), marked, strict=True)
    ]
    for topic in ("whole", "copied"):
        stored = rows_of(broker.http_address, topic)
        carried = [tuple(row[name] for name in FROM_KAFKA) for row in stored]
        assert sorted(carried) == sorted(expected, key=lambda row: row[0])


def test_rows_that_are_not_published_leave_no_topic(broker: BrokerProcess) -> None:
    def topics() -> set[str]:
        return {listed["topic"] for listed in ask(broker.http_address, "/log/topics")["topics"]}

    new = options(broker, topic="brand-new")
    writer = StreamWriter(new)
    with pytest.raises(WriteFailed, match="max-transaction-bytes"):
        publish(new, 0, batch("x" * 1_000_000, "y" * 1_000_000))
    staged = task(new, "brand-new 1", BatchId("brand-new", 1), batch("a", key=pa.array(["k"])))
    assert "brand-new" not in topics()
    writer.abort([staged], 1)
    assert "brand-new" not in topics()
    publish(new, 2, batch("a", key=pa.array(["k"])))
    assert values_of(broker.http_address, "brand-new") == ["a"]


def test_rows_may_be_delayed(broker: BrokerProcess) -> None:
    write_options = options(broker, topic="delayed")
    soon = (time.time_ns() + 1_500_000_000) // 1000
    times = pa.array([0, soon, None, soon + 3_600_000_000], pa.timestamp("us", "UTC"))
    publish(write_options, 0, batch("a", "later", "b", "much", deliver_at=times))
    assert values_of(broker.http_address, "delayed") == ["a", "b"]
    publish(write_options, 1, batch("by delay", delay=pa.array([600], pa.int64())))
    wait_for(lambda: len(values_of(broker.http_address, "delayed")) == 4)
    rows = rows_of(broker.http_address, "delayed")
    assert {row["value"] for row in rows} == {b"a", b"b", b"later", b"by delay"}
    assert time.time_ns() // 1000 >= soon
    waits = json.loads(post(broker.http_address, "/call/delay.list", b'{"topic": "delayed"}'))
    assert len(waits["messages"]) == 1


@pytest.mark.parametrize(
    ("columns", "error_text"),
    [
        ({"value": ["x" * 1_000_000] * 2}, "max-transaction-bytes is 1048576.*without that limit"),
        (
            {"value": ["x"] * 60, "topic": [f"t{n}" for n in range(60)]},
            "--max-transaction-sends is 50.*delayStepMs",
        ),
        (
            {"value": ["x"] * 60, "delay": [3_600_000 + n for n in range(60)]},
            "--max-transaction-sends is 50.*delayStepMs",
        ),
        ({"value": ["x"], "partition": [7]}, "the topic has 1 queue|no queue 7"),
        ({"value": ["x"], "delay": [10**12]}, "the longest delay is .*--max-delay"),
        ({"value": ["x"], "delay": [2**63 - 1]}, "the longest delay is .*--max-delay"),
    ],
)
def test_a_refusal_of_the_broker_says_what_to_do(
    broker: BrokerProcess, columns: dict[str, Any], error_text: str
) -> None:
    named = {} if "topic" in columns else {"topic": "refused"}
    writer = StreamWriter(options(broker, **named))
    with pytest.raises(WriteFailed, match=f"(?s){error_text}"):
        task(
            writer._options,
            error_text[:9],
            BatchId(error_text, 0),
            pa.RecordBatch.from_pydict(columns),
        )
    assert values_of(broker.http_address, "refused") == []


def test_a_delay_step_makes_a_few_times_of_many(broker: BrokerProcess) -> None:
    write_options = options(broker, topic="stepped", delayStepMs="1000")
    delays = pa.array([3_600_000 + n for n in range(60)], pa.int64())
    commit = publish(write_options, 0, batch(*["x"] * 60, delay=delays))
    assert commit.message_count == 60


@pytest.fixture
def publishers() -> Iterator[AuthServer]:
    publisher = {**EVERYTHING, "permissions": ["publish"]}
    with AuthServer({"publisher": Answer(allowed(publisher))}) as auth:
        yield auth


def test_a_query_has_one_coordinator_and_takes_its_past_along(
    tmp_path: Path, publishers: AuthServer
) -> None:
    """Also where it may publish, and no more."""
    flag, secret = f"--auth-http-address={publishers.address}", {"authSecret": "publisher"}
    with BrokerProcess(tmp_path / "a", flag) as a, BrokerProcess(tmp_path / "b", flag) as b:
        both = options(a, b, topic="t", **secret)
        # A name whose coordinator is b while there are both.
        names = (f"query {number}" for number in range(1000))
        name = next(n for n in names if broker_for(n, both.addresses) == b.http_address)
        alone = StreamWriter(options(a, topic="t", **secret))
        alone.commit([task(alone._options, "x", BatchId(name, 4), batch("four"))], 4)
        writer = StreamWriter(both)
        # Batch 4 comes again, after b was added: a has published it.
        writer.commit([task(both, "y", BatchId(name, 4), batch("four"))], 4)
        writer.commit([task(both, "z", BatchId(name, 5), batch("five"))], 5)
        assert values_of(a.http_address, "t") == ["four"]
        assert values_of(b.http_address, "t") == ["five"]
        assert (open_count(a.http_address), open_count(b.http_address)) == (0, 0)
        # From here on b knows the batch before, and the other may be down.
        a.kill()
        writer.commit([task(both, "w", BatchId(name, 6), batch("six"))], 6)
        assert values_of(b.http_address, "t") == ["five", "six"]


def test_a_broker_that_restarts_while_rows_are_staged(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        write_options = options(broker, topic="t", blockBytes="1024")

        def rows() -> Iterator[pa.RecordBatch]:
            for number in range(40):
                if number in (10, 25):
                    broker.kill()
                    broker.restart()
                yield batch(*(f"{number}-{n:0200}" for n in range(10)))

        with BrokerTransaction(write_options, "t", BatchId("q", 0)) as stage:
            staged = stage.stage(rows())
        broker.kill()
        broker.restart()
        StreamWriter(write_options).commit([staged], 0)
        expected = [f"{number}-{n:0200}" for number in range(40) for n in range(10)]
        assert values_of(broker.http_address, "t") == expected


async def test_addresses_of_no_broker() -> None:
    async def hello(_: web.BaseRequest) -> web.Response:
        return web.Response(text="hello")

    async with answering(hello) as address:
        with pytest.raises(BrokerUnavailable, match=f"{address} is no broker's HTTP.*'hello'"):
            await asyncio.to_thread(find_broker, address, (), None, 1000)
    with pytest.raises(BrokerUnavailable, match=r"answer /info.*waited 200 ms, see option"):
        find_broker(address, (), None, 200)


def test_the_tcp_port_is_refused(broker: BrokerProcess) -> None:
    with pytest.raises(BrokerUnavailable, match=rf"{broker.tcp_address}: that is a TCP port; give"):
        find_broker(broker.tcp_address, (), None, 600_000)


def test_tls_and_auth(tmp_path: Path, certificates: Certificates) -> None:
    with AuthServer({"good": Answer(allowed(EVERYTHING))}) as auth:
        flags = (
            *certificates.flags,
            f"--auth-http-address={auth.address}",
            "--tls-required=tcp-https",
        )
        with BrokerProcess(tmp_path / "data", *flags) as broker:
            texts = {
                "addresses": broker.http_address,
                "topic": "secret",
                "tls": "true",
                "tlsCaFile": str(certificates.authority),
                "authSecret": "good",
            }
            publish(WriteOptions.parse(texts, "stream"), 0, batch("one"))
            assert values_of(broker.http_address, "secret") == ["one"]
            https = texts | {"addresses": f"https://{broker.https_address}"}
            publish(WriteOptions.parse(https, "stream"), 1, batch("two"))
            assert values_of(broker.http_address, "secret") == ["one", "two"]


def test_rows_with_keys_need_a_reader_and_the_error_says_so(
    tmp_path: Path, publishers: AuthServer
) -> None:
    with BrokerProcess(tmp_path, f"--auth-http-address={publishers.address}") as broker:
        write_options = options(broker, topic="t", authSecret="publisher")
        with pytest.raises(WriteFailed, match="let the auth server allow authSecret to subscribe"):
            task(write_options, "k", None, batch("one", key=pa.array(["a"])))


def test_two_brokers_with_the_id_that_lookup_daemons_find_get_no_rows(tmp_path: Path) -> None:
    with LookupProcess(tmp_path / "lookup") as lookup:
        flags = f"--lookupd-tcp-address={lookup.tcp_address}", "--broadcast-address=127.0.0.1"
        with BrokerProcess(tmp_path / "first", *flags) as first:
            broker_id = ask(first.http_address, "/info")["broker"]
            texts = {"lookup": lookup.http_address, "broker": broker_id, "topic": "t"}
            writer = StreamWriter(WriteOptions.parse(texts, "stream"))
            staged = task(writer._options, "a", BatchId("q", 0), batch("one"))
            first.stop()
            shutil.copytree(tmp_path / "first", tmp_path / "second")
            first.start()
            with BrokerProcess(tmp_path / "second", *flags) as second:
                until(lambda: len(ask(lookup.http_address, "/nodes")["producers"]) == 2)
                for write in (
                    lambda: task(writer._options, "b", BatchId("q", 1), batch("two")),
                    lambda: writer.commit([staged], 0),
                ):
                    with pytest.raises(WriteFailed, match=r"delete the broker\.json") as refused:
                        write()
                    assert first.http_address in str(refused.value)
                    assert second.http_address in str(refused.value)
            # The other one has ended, whether its registration has or not.
            writer.commit([staged], 0)
            assert values_of(first.http_address, "t") == ["one"]


class _Earlier(StrEnum):
    CRC32C = "crc32c"


def test_a_topic_whose_keys_the_sink_cannot_place_is_refused(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_transaction, "KeyHash", _Earlier)
    post(broker.http_address, "/topic/create?topic=placed&queues=3")
    write_options = options(broker, topic="placed")
    with pytest.raises(WriteFailed, match="key hash of topic 'placed', 'crc32c-fmix32', which"):
        task(write_options, "k", BatchId("q", 0), batch("one", key=pa.array(["a"])))
    monkeypatch.undo()
    task(write_options, "l", BatchId("q", 1), batch("one", key=pa.array(["a"])))


def test_a_wrong_secret_is_refused_at_once(tmp_path: Path, publishers: AuthServer) -> None:
    """It was tried again without a pause until the timeout was over."""
    with BrokerProcess(tmp_path, f"--auth-http-address={publishers.address}") as broker:
        wrong = options(broker, topic="secret", authSecret="bad")
        with pytest.raises(WriteFailed, match="AUTH"):
            task(wrong, "c", BatchId("q", 2), batch("three"))
    assert publishers.count("bad") == 1
