"""The messages that a replay reads from an archive, as they were before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from martlet.pipeline.archive.parquet_table import ParquetTable
from martlet.pipeline.archive.rows import Shape, source_schema
from martlet.pipeline.archive.store import LocalStore
from martlet.pipeline.archive.writing import Writing
from martlet.pipeline.replay import ReplayJobOptions
from martlet.pipeline.replay.source import ArchiveReplaySource
from martlet.reader.offsets import QueueKey, Span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = pa.schema([("customer", pa.string()), ("id", pa.int32())])


def archived(folder: Path, shape: Shape, topic: str, bodies: list[bytes]) -> ReplayJobOptions:
    """Archive some bodies, and return the options to replay them."""
    count = len(bodies)
    columns: dict[str, list[object]] = {name: [None] * count for name in source_schema().names}
    columns |= {"value": list(bodies), "topic": [topic] * count, "partition": [0] * count}
    columns |= {
        "offset": list(range(count)),
        "timestamp": [10**15] * count,
        "broker": ["b"] * count,
    }
    messages = pa.RecordBatch.from_pydict(columns, schema=source_schema())
    key, store = QueueKey("b", topic, 0, 7), LocalStore(folder)
    table = ParquetTable(store)
    table.begin("run")
    table.start("run", {key: 0})
    stage = table.stage("run", "batch")
    span = Span(key, 0, count)
    table.commit("run", [Writing(str(folder), shape).write([messages], span, stage, store)])
    return ReplayJobOptions(
        from_archive=str(folder), to_topic="again", to_addresses=("127.0.0.1:1",), dry_run=True
    )


def test_a_value_that_was_shortened_for_its_folder_comes_back_in_full(
    spark: SparkSession, tmp_path: Path
) -> None:
    sent = [{"customer": name, "id": 1} for name in ("plain", "L" * 300, "M" * 300)]
    shape = Shape(("customer",), FIELDS)
    options = archived(tmp_path, shape, "t", [json.dumps(fields).encode() for fields in sent])
    source = ArchiveReplaySource(options, spark)
    rows = source.between(*source.bounds()).orderBy("offset").collect()
    assert [json.loads(row["value"]) for row in rows] == sent


@pytest.mark.parametrize("topic", ["007", "1e5", "2026"])
def test_a_topic_that_reads_as_a_number_keeps_its_name(
    spark: SparkSession, tmp_path: Path, topic: str
) -> None:
    options = archived(tmp_path, Shape(("topic", "date")), topic, [b"one"])
    source = ArchiveReplaySource(options, spark)
    start, end = source.bounds()
    assert [key.topic for key in start] == [topic]
    assert [row["topic"] for row in source.between(start, end).collect()] == [topic]
