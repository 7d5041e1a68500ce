"""The archive: every message once, in its folder, whatever it holds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.publish import publish

from martlet.pipeline.archive import Archive
from martlet.testing import BrokerProcess

# A machine that is busy elsewhere starts a Java virtual machine in a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        yield process


def flight(number: int) -> bytes:
    return json.dumps({"number": number, "origin": "EWR" if number % 3 else "JFK"}).encode()


def test_fields_of_the_message_become_columns_and_folders(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    archive = Archive(
        addresses=broker.http_address,
        topics="flights",
        out=str(tmp_path / "out"),
        json_schema="number INT, origin STRING",
        partition_by=("origin", "topic"),
        max_offsets=400,
        once=True,
    )
    publish(broker.http_address, "flights", map(flight, range(1000)))
    assert archive.start(spark).awaitTermination(60)
    publish(broker.http_address, "flights", [b"no JSON", b'{"number": "no number"}'])
    assert archive.start(spark).awaitTermination(60)

    rows = spark.read.parquet(archive.out).orderBy("_offset").collect()
    assert [row._offset for row in rows] == list(range(1002))
    assert [row.number for row in rows] == [*range(1000), None, None]
    assert rows[-2]._corrupt_record == "no JSON"
    assert rows[-1]._corrupt_record == '{"number": "no number"}'
    assert rows[0]._corrupt_record is None
    assert all(row.origin == ("EWR" if row.number % 3 else "JFK") for row in rows[:1000])
    assert (tmp_path / "out" / "origin=JFK" / "topic=flights").is_dir()


def test_a_column_that_is_not_there_is_told(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    archive = Archive(
        addresses=broker.http_address,
        topics="t",
        out=str(tmp_path / "out"),
        json_schema="number INT",
        partition_by=("origin",),
    )
    with pytest.raises(ValueError, match="cannot partition by origin: there are number, _corrupt"):
        archive.start(spark)


def test_the_command(broker: BrokerProcess, tmp_path: Path) -> None:
    """Bytes as they are, by topic and day, and an error that says what is wrong."""
    publish(broker.http_address, "raw", [b"\xff\x00", b"two"])
    out = tmp_path / "out"
    command = [
        *(sys.executable, "-m", "martlet.apps.main", "pipeline", "archive", "--once"),
        *("--addresses", broker.http_address, "--topic", "raw", "--master", "local[1]"),
    ]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "batch 0: 2 messages archived" in done.stdout
    (day,) = (out / "topic=raw").glob("date=20*")
    import pyarrow.parquet as pq

    table = pq.read_table(day, partitioning=None)
    assert table.column("value").to_pylist() == [b"\xff\x00", b"two"]
