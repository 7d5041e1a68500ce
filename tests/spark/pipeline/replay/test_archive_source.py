"""The messages that a replay reads from an archive, as they were before it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from martlet.pipeline.archive import rows as archive_rows
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


def archived(
    folder: Path,
    shape: Shape,
    topic: str,
    bodies: Sequence[bytes | None],
    first: int = 0,
    **carried: object,
) -> ReplayJobOptions:
    """Archive some bodies, from an offset on, and return the options to replay them."""
    count, names = len(bodies), source_schema().names
    columns: dict[str, list[object]] = {name: [carried.get(name)] * count for name in names}
    columns |= {"value": list(bodies), "topic": [topic] * count, "partition": [0] * count}
    columns |= {
        "offset": list(range(first, first + count)),
        "timestamp": [10**15] * count,
        "broker": ["b"] * count,
    }
    messages = pa.RecordBatch.from_pydict(columns, schema=source_schema())
    key, store = QueueKey("b", topic, 0, 7), LocalStore(folder)
    table = ParquetTable(store)
    table.begin("run")
    table.start("run", {key: first})
    stage = table.stage("run", "batch")
    span = Span(key, first, first + count)
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


@pytest.mark.parametrize("fields", [None, FIELDS])
def test_messages_without_a_value_and_with_priorities_come_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: pa.Schema | None
) -> None:
    shape, mark = Shape((), fields), [{"key": "martlet-value", "value": b"null"}]
    with monkeypatch.context() as earlier:
        # As a version without priorities has left it.
        names = [name for name in source_schema().names if name != "priority"]
        earlier.setattr(archive_rows, "_COLUMNS", names)
        origin = {alias: name for alias, name in archive_rows.ORIGIN.items() if name in names}
        earlier.setattr(archive_rows, "ORIGIN", origin)
        archived(tmp_path, shape, "t", [b"1", b"2"])
    options = archived(tmp_path, shape, "t", [None], 2, key=b"k\xff", headers=mark, priority=9)
    source = ArchiveReplaySource(options, spark)
    rows = source.between(*source.bounds()).orderBy("offset").collect()
    assert [(row["value"], row["priority"]) for row in rows] == [
        (b"1", None),
        (b"2", None),
        (b"null" if fields else None, 9),
    ]
    assert (bytes(rows[2]["key"]), rows[2]["headers"][0]["key"]) == (b"k\xff", "martlet-value")
