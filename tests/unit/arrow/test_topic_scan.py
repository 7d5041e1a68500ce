"""A topic in DuckDB, Polars and pandas, and as a stream of Arrow."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from tests.spark.folder import Folder
from tests.spark.log_server import LogServer, serving

from martlet import arrow
from martlet.properties.model import Properties
from martlet.reader.batch_plan import batch_tasks
from martlet.reader.data_loss import DataLossError
from martlet.reader.filters import RowFilter
from martlet.reader.options import ReadOptions
from martlet.reader.split import Task


def rows_of(relation: duckdb.DuckDBPyRelation | None) -> list[Any]:
    assert relation is not None
    return relation.fetchall()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogServer]:
    """1,000 messages, of which every tenth has a tag."""
    folder = Folder(tmp_path_factory.mktemp("scan") / "data")
    for first in range(0, 1000, 10):
        tagged = [(0, Properties(tag="new", headers={"trace": "7"}).pack())]
        bodies = [b"%d" % offset for offset in range(first, first + 10)]
        folder.append("orders", bodies, properties=tagged)
    with serving(LogServer(folder)) as server:
        yield server


@pytest.fixture
def orders(server: LogServer) -> arrow.TopicScan:
    return arrow.scan("orders", addresses=server.address)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The filter of each plan, and the messages of its splits."""
    seen: list[tuple[str, int]] = []
    plan = batch_tasks

    def noted(options: ReadOptions, row_filter: RowFilter | None) -> list[Task]:
        tasks = plan(options, row_filter)
        count = sum(split.end - split.start for task in tasks for split in task.splits)
        seen.append((str(row_filter and row_filter.expression), count))
        return tasks

    monkeypatch.setattr("martlet.arrow.topic_scan.batch_tasks", noted)
    return seen


def test_duckdb_reads_a_topic_and_pushes_down(
    orders: arrow.TopicScan, plans: list[tuple[str, int]]
) -> None:
    query = "SELECT count(*), sum(CAST(decode(value) AS INT)), min(tag) FROM orders"
    assert rows_of(duckdb.sql(query)) == [(1000, 499500, "new")]
    where = " WHERE \"offset\" >= 900 AND tag = 'new'"
    assert rows_of(duckdb.sql(query + where)) == [(10, 9450, "new")]
    assert [count for _, count in plans] == [1000, 100]
    assert "offset >= 900" in plans[1][0]
    recent = "SELECT count(*) FROM orders WHERE timestamp > now() - INTERVAL 1 HOUR"
    assert rows_of(duckdb.sql(recent)) == [(0,)]
    assert plans[2][1] == 0


def test_polars_reads_a_topic_and_pushes_down(
    orders: arrow.TopicScan, plans: list[tuple[str, int]]
) -> None:
    lazy = pl.scan_pyarrow_dataset(orders)
    assert lazy.select(pl.len()).collect().item() == 1000
    late = lazy.filter((pl.col("offset") >= 900) & (pl.col("tag") == "new"))
    assert late.select(pl.col("offset").sum()).collect().item() == 9450
    assert plans[-1][1] == 100
    assert pl.DataFrame(orders).height == 1000
    assert lazy.head(3).collect()["value"].to_list() == [b"0", b"1", b"2"]


def test_pandas_and_arrow_read_a_topic(server: LogServer, orders: arrow.TopicScan) -> None:
    frame = arrow.read("orders", addresses=server.address, columns=["offset", "tag"]).read_pandas()
    assert frame["offset"].sum() == 499500
    assert frame["tag"].count() == 100
    assert pa.table(orders).num_rows == 1000
    assert pa.RecordBatchReader.from_stream(orders).read_all().num_rows == 1000
    assert orders.count_rows() == 1000
    assert orders.head(7).num_rows == 7
    assert orders.to_table(columns=["headers"])["headers"][0].as_py() == [
        {"key": "trace", "value": b"7"}
    ]


def test_a_scan_reads_anew_and_travels(server: LogServer, orders: arrow.TopicScan) -> None:
    copy = pickle.loads(pickle.dumps(orders))
    assert copy.count_rows() == orders.count_rows() == orders.count_rows() == 1000
    assert repr(orders) == "<martlet.arrow.TopicScan of orders>"
    assert orders.filter(pa.compute.field("offset") > 990).count_rows() == 9
    with pytest.raises(NotImplementedError, match="no files and fragments"):
        list(orders.get_fragments())
    with pytest.raises(ValueError, match="a list of names"):
        orders.scanner({"twice": pa.compute.field("offset") * 2})  # type: ignore[arg-type]


def test_start_and_end_are_those_of_the_source(server: LogServer) -> None:
    def offsets(**places: Any) -> list[int]:
        rows = arrow.read("orders", addresses=[server.address], columns=["offset"], **places)
        read: list[int] = rows.read_all()["offset"].to_pylist()
        return read

    assert offsets(start="latest-3") == [997, 998, 999]
    assert offsets(start={"orders": {"0": 5}}, end={"orders": {"0": 7}}) == [5, 6]
    assert offsets(start="now-1h") == []
    with pytest.raises(ValueError, match="for an offset write"):
        offsets(start=17)


def test_options_are_those_of_the_source(server: LogServer) -> None:
    rows = arrow.read(
        topic_pattern="ord.*", addresses=server.address, view="batches", min_partitions=4
    )
    assert rows.read_all().num_rows == 100
    for wrong, error in (
        ({"fail_on_dataloss": 3}, "option failOnDataLoss: '3' is neither true nor false"),
        ({"group": "g"}, "option group is for spark.readStream"),
        ({"colour": "red"}, "unknown option 'colour'"),
    ):
        with pytest.raises(ValueError, match=error):
            arrow.read("orders", addresses=server.address, **wrong)
    with pytest.raises(ValueError, match="there is no topic 'nothing'"):
        arrow.read("nothing", addresses=server.address)
    with pytest.raises(ValueError, match="there is no column 'colour'; there are key, value"):
        arrow.read("orders", addresses=server.address, columns=["colour"])


def test_a_loss_ends_the_stream(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data")
    folder.append("t", [b"a"] * 10)
    folder.append("t", [b"b"] * 10)
    folder.damage("t", 1)
    with serving(LogServer(folder)) as server:
        with pytest.raises(DataLossError, match="data loss by corruption"):
            arrow.read("t", addresses=server.address).read_all()
        rows = arrow.read("t", addresses=server.address, fail_on_data_loss=False)
        assert rows.read_all().num_rows == 10


def test_a_read_holds_two_batches(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data", 32 << 20)
    for _ in range(60):
        folder.append("t", np.full((4096, 200), 97, np.uint8))
    pool = pa.default_memory_pool()
    with serving(LogServer(folder)) as server:
        reader = arrow.read("t", addresses=server.address)
        before = pool.bytes_allocated()
        largest = held = count = 0
        tracemalloc.start()
        for batch in reader:
            count += len(batch)
            largest = max(largest, batch.nbytes)
            held = max(held, pool.bytes_allocated() - before)
        python_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert count == 60 * 4096
    assert largest < 8 << 20
    assert held + python_bytes < 2 * largest
