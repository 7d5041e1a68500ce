"""The archive on a real broker: every message once, in its folder, whatever it holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests import brokers
from tests.spark.publish import publish

from martlet.options.flag import OptionError
from martlet.pipeline.archive import JOB, ArchiveOptions, archive
from martlet.pipeline.job import OK, carry_out, cause
from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

# A machine that is busy elsewhere starts a Java virtual machine in a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


broker = brokers.process(scope="function")


@pytest.fixture
def options(broker: BrokerProcess, tmp_path: Path) -> ArchiveOptions:
    return ArchiveOptions(
        addresses=(broker.http_address,), topics=("t",), out=str(tmp_path / "out"), once=True
    )


def flight(number: int) -> bytes:
    return json.dumps({"number": number, "origin": "EWR" if number % 3 else "JFK"}).encode()


def offsets(options: ArchiveOptions) -> list[int]:
    """As any reader of Parquet finds them."""
    table = ds.dataset(options.out, partitioning="hive").to_table(columns=["offset"])
    return sorted(table["offset"].to_pylist())


def test_fields_of_the_message_become_columns_and_folders(
    spark: SparkSession, broker: BrokerProcess, options: ArchiveOptions
) -> None:
    options = options.replace(
        json_schema="number INT, origin STRING", partition_by="origin,topic", max_offsets=400
    )
    publish(broker.http_address, "t", map(flight, range(1000)))
    first = archive(options, spark)
    assert (first.rows, first.batches) == (1000, 3)
    publish(broker.http_address, "t", [b"no JSON", b'{"number": "no number"}'])
    assert archive(options, spark).rows == 2

    rows = spark.read.parquet(options.out).orderBy("_offset").collect()
    assert [row._offset for row in rows] == list(range(1002))
    assert [row.number for row in rows] == [*range(1000), None, None]
    assert rows[-2]._corrupt_record == "no JSON"
    assert rows[-1]._corrupt_record == '{"number": "no number"}'
    assert rows[0]._corrupt_record is None
    assert all(row.origin == ("EWR" if row.number % 3 else "JFK") for row in rows[:1000])
    assert (Path(options.out) / "origin=JFK" / "topic=t").is_dir()


def test_the_archive_knows_how_far_it_is_without_a_checkpoint(
    spark: SparkSession, broker: BrokerProcess, options: ArchiveOptions, tmp_path: Path
) -> None:
    publish(broker.http_address, "t", [b"%d" % number for number in range(100)])
    archive(options.replace(checkpoint=str(tmp_path / "first")), spark)
    publish(broker.http_address, "t", [b"%d" % number for number in range(100, 150)])
    assert archive(options.replace(checkpoint=str(tmp_path / "second")), spark).rows == 50
    # A checkpoint from before: what it has still to do was done.
    assert archive(options.replace(checkpoint=str(tmp_path / "first")), spark).rows == 0
    assert offsets(options) == list(range(150))


def test_a_checkpoint_without_its_archive_is_refused(
    spark: SparkSession, broker: BrokerProcess, options: ArchiveOptions, tmp_path: Path
) -> None:
    options = options.replace(checkpoint=str(tmp_path / "checkpoint"))
    publish(broker.http_address, "t", [b"one"])
    archive(options, spark)
    publish(broker.http_address, "t", [b"two"])
    with pytest.raises(StreamingQueryException) as failed:
        archive(options.replace(out=str(tmp_path / "elsewhere")), spark)
    assert "ValueError: the checkpoint continues an archive" in cause(failed.value)
    assert archive(options, spark).rows == 1


def test_small_files_are_joined_while_it_is_written_and_afterwards(
    spark: SparkSession, broker: BrokerProcess, options: ArchiveOptions
) -> None:
    publish(broker.http_address, "t", [b"%d" % number for number in range(1000)])
    options = options.replace(max_offsets=100, compact_files=6)
    done = archive(options, spark)
    assert (done.files, done.compacted.files) == (10, 6)
    assert len(list(Path(options.out).rglob("*.parquet"))) == 5
    assert archive(options.replace(compact=True), spark).compacted.into == 1
    (file,) = Path(options.out).rglob("*.parquet")
    assert offsets(options) == list(range(1000))
    assert [row.value for row in spark.read.parquet(str(file)).collect()] == [
        b"%d" % number for number in range(1000)
    ]


def test_a_table_of_delta_of_every_topic_that_matches(
    spark: SparkSession, broker: BrokerProcess, options: ArchiveOptions
) -> None:
    from deltalake import DeltaTable

    for topic in ("t.one", "t.two", "other"):
        publish(broker.http_address, topic, [topic.encode()])
    options = options.replace(
        topics=(), topic_pattern=r"t\..*", format="delta", channel="", group="archive"
    )
    assert [archive(options, spark).rows for _ in range(2)] == [2, 0]
    rows = DeltaTable(options.out).to_pyarrow_table()
    assert sorted(rows["topic"].to_pylist()) == ["t.one", "t.two"]
    assert sorted(rows["value"].to_pylist()) == [b"t.one", b"t.two"]


def test_a_missing_column_is_reported(spark: SparkSession, options: ArchiveOptions) -> None:
    options = options.replace(allow_missing_topics=True)
    with pytest.raises(OptionError, match="cannot partition by origin: there are number, _corrupt"):
        archive(options.replace(json_schema="number INT", partition_by="origin"), spark)


def test_wrong_options_are_reported_in_our_words_and_not_in_spark_s(
    spark: SparkSession, options: ArchiveOptions
) -> None:
    options = options.replace(allow_missing_topics=True)
    with pytest.raises(StreamingQueryException) as failed:
        archive(options.replace(starting_offsets="early"), spark)
    assert cause(failed.value).startswith("ValueError: option startingOffsets: 'early' is neither")
    with pytest.raises(OptionError, match=r"'n DUBLE' is not a schema: .*DUBLE"):
        archive(options.replace(json_schema="n DUBLE"), spark)


def test_a_running_job_is_scraped_and_stopped(
    spark: SparkSession,
    broker: BrokerProcess,
    options: ArchiveOptions,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Metrics are served while it runs, and SIGTERM ends it with 0."""
    publish(broker.http_address, "t", map(flight, range(7)))
    address = f"127.0.0.1:{free_port()}"
    scraped: dict[str, float] = {}
    ended = threading.Event()

    def scrape() -> None:
        deadline_s = time.monotonic() + 200
        while scraped.get("martlet_pipeline_rows_total") != 7 and time.monotonic() < deadline_s:
            with suppress(OSError), urllib.request.urlopen(f"http://{address}/metrics") as answer:
                families = text_string_to_metric_families(answer.read().decode())
                samples = (sample for family in families for sample in family.samples)
                scraped.update(
                    (sample.name, sample.value) for sample in samples if not sample.labels
                )
            if ended.wait(0.05):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    running = options.replace(once=False, interval_ns=0, metrics_address=address)
    try:
        assert carry_out(JOB, running) == OK, capsys.readouterr().err
    finally:
        ended.set()
        scraper.join()
    assert scraped["martlet_pipeline_rows_total"] == 7
    assert scraped["martlet_pipeline_batch_seconds_count"] == 1
    assert scraped["martlet_pipeline_batch_seconds_sum"] > 0
    assert scraped["martlet_pipeline_lag"] == 0
    assert abs(scraped["martlet_pipeline_last_batch_timestamp_seconds"] - time.time()) < 300
    assert scraped["martlet_archive_files_total"] == 1
    assert scraped["martlet_archive_bytes_total"] > 0
    assert scraped["martlet_archive_joined_files_total"] == 0
    assert offsets(options) == list(range(7))
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{address}/metrics")


def test_the_command(broker: BrokerProcess, tmp_path: Path) -> None:
    """Bytes as they are, by topic, day and hour."""
    publish(broker.http_address, "raw", [b"\xff\x00", b"two"])
    out = tmp_path / "out"
    command = [
        *(sys.executable, "-m", "martlet", "pipeline", "archive", "--once"),
        *("--addresses", broker.http_address, "--topic", "raw", "--master", "local[1]"),
    ]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "batch 0: 2 messages archived" in done.stdout
    assert "topic raw had no channel, so the broker has kept 2 messages" in done.stderr
    assert "which is 'archive' now" in done.stderr
    (hour,) = (out / "topic=raw").glob("date=20*/hour=??")
    import pyarrow.parquet as pq

    table = pq.read_table(hour, partitioning=None)
    assert table.column("value").to_pylist() == [b"\xff\x00", b"two"]
