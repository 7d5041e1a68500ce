"""Conditions of a WHERE that Spark pushes down, and the option filter."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from tests.spark.folder import EPOCH_NS, Folder
from tests.spark.log_server import LogServer, serving

from martlet import arrow
from martlet.properties.model import Properties
from martlet.reader.options import ReadOptions
from martlet.reader.schema import selected
from martlet.spark.read.pushdown import PushdownReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LogServer]:
    """1,000 messages, a batch of 10 a second; the first of each batch has a tag and a key."""
    folder = Folder(tmp_path / "data")
    for number in range(100):
        tagged = [(0, Properties(tag=f"tag{number % 2}", order_key="ann").pack())]
        bodies = [b"%d" % offset for offset in range(10 * number, 10 * number + 10)]
        time_ns = EPOCH_NS + number * 1_000_000_000
        folder.append("t", bodies, stored_at_ns=time_ns, properties=tagged)
    with serving(LogServer(folder)) as server:
        yield server


def pushed(server: LogServer, *filters: Filter) -> tuple[list[Filter], list[int]]:
    """The filters left to Spark, and the offsets read."""
    options = ReadOptions.parse({"addresses": server.address, "topic": "t"}, "batch")
    reader = PushdownReader(options, selected(["offset"]))
    refused = list(reader.pushFilters(list(filters)))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return refused, [offset for batch in batches for offset in batch["offset"].to_pylist()]


TAG, TIME = ("tag",), ("timestamp",)
TAGGED = list(range(0, 1000, 10))
AT_98_S = datetime.fromtimestamp(EPOCH_NS / 1e9 + 98, UTC)


@pytest.mark.parametrize(
    ("condition", "offsets"),
    [
        (GreaterThan(("offset",), 997), [998, 999]),
        (LessThanOrEqual(("offset",), 1), [0, 1]),
        (Not(GreaterThan(("offset",), 1)), [0, 1]),
        (In(("offset",), (3, 500, 5000)), [3, 500]),
        (GreaterThan(TIME, AT_98_S), list(range(990, 1000))),
        (EqualTo(TIME, AT_98_S), list(range(980, 990))),
        (EqualTo(("topic",), "u"), []),
        (EqualTo(TAG, "tag1"), TAGGED[1::2]),
        (Not(EqualTo(TAG, "tag1")), TAGGED[0::2]),
        (Not(In(TAG, ("tag1", "x"))), TAGGED[0::2]),
        (EqualNullSafe(TAG, "tag1"), TAGGED[1::2]),
        (Not(EqualNullSafe(TAG, "tag1")), [n for n in range(1000) if n not in TAGGED[1::2]]),
        (IsNotNull(TAG), TAGGED),
        (IsNull(TAG), [n for n in range(1000) if n % 10]),
        (IsNotNull(("headers",)), []),
        (EqualTo(("key",), b"ann"), TAGGED),
        (StringStartsWith(TAG, "tag"), TAGGED),
        (StringEndsWith(TAG, "g1"), TAGGED[1::2]),
        (StringContains(TAG, "x"), []),
    ],
    ids=str,
)
def test_a_condition_is_taken(server: LogServer, condition: Filter, offsets: list[int]) -> None:
    assert pushed(server, condition) == ([], offsets)


def test_what_the_reader_cannot_test_is_left_to_spark(server: LogServer) -> None:
    left: list[Filter] = [
        EqualTo(("headers", "key"), "x"),
        EqualTo(("keys",), ["x"]),
        In(TAG, ("tag1", None)),
        Not(In(TAG, ("tag1", None))),
        EqualNullSafe(TAG, None),
    ]
    taken = [GreaterThan(("offset",), 990), IsNotNull(("offset",))]
    assert pushed(server, *left, *taken) == (left, list(range(991, 1000)))


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_pushes_down(
    spark: SparkSession, server: LogServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.data_path = "/nowhere"  # So that it sees what is read.

    def load(**options: Any) -> Any:
        return (
            spark.read.format("martlet")
            .options(addresses=server.address, subscribe="t", **options)
            .load()
        )

    where = "offset > 970 AND timestamp >= '2023-11-14T22:14:58Z' AND tag LIKE 'tag%'"
    expected = [row.offset for row in load().where(where).collect()]
    spark.conf.set(PUSHDOWN, True)
    try:
        query = load(filterPushdown=True).where(where)
        del server.requests[:]
        assert [row.offset for row in query.collect()] == expected == [980, 990]
        assert server.requests.count("/log/batches") == 1
        query.explain("formatted")
        plan = capsys.readouterr().out
        assert "PushedFilters: [" in plan
        assert "GreaterThan(offset,970)" in plan
        assert "Filter (" not in plan
    finally:
        spark.conf.unset(PUSHDOWN)
    with pytest.raises(Exception, match=PUSHDOWN):
        load(filterPushdown=True).collect()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_stream_takes_the_option_filter(spark: SparkSession, server: LogServer) -> None:
    query = (
        spark.readStream.format("martlet")
        .options(addresses=server.address, subscribe="t", startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=600, filter='[["tag", "=", "tag1"], ["offset", ">", 600]]')
        .load()
        .writeStream.format("memory")
        .queryName("filtered")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    rows = spark.table("filtered").orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(610, 1000, 20))
    assert [progress["numInputRows"] for progress in query.recentProgress] == [0, 20]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_duckdb_has_the_rows_that_spark_has(spark: SparkSession, server: LogServer) -> None:
    columns = ("key", "value", "topic", "offset", "timestamp", "message_id", "broker", "tag")
    texts = ", '|', ".join(f"coalesce(CAST({name} AS STRING), '-')" for name in columns)
    topic = spark.read.format("martlet").options(addresses=server.address, subscribe="t").load()
    of_spark = topic.selectExpr(f"md5(concat({texts})) AS digest").toPandas()["digest"]
    scan = arrow.scan("t", addresses=server.address)
    assert scan.schema.names == topic.columns
    names = {"timestamp": "strftime(timestamp AT TIME ZONE 'UTC', '%Y-%m-%d %H:%M:%S')"}
    names |= {name: f"decode({name})" for name in ("key", "value")}
    quoted = ", '|', ".join(
        f"coalesce(CAST({names.get(name, chr(34) + name + chr(34))} AS VARCHAR), '-')"
        for name in columns
    )
    relation = duckdb.sql(f"SELECT md5(concat({quoted})) FROM scan")
    assert relation is not None
    of_duckdb = relation.fetchall()
    assert len(of_duckdb) == 1000
    assert sorted(of_spark) == sorted(digest for (digest,) in of_duckdb)
