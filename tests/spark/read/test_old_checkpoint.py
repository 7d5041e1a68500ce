"""A query of an old version goes on: its checkpoint, and the folder of the broker that it used."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.stored import values_of

from martlet.testing import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MADE = Path(__file__).parents[2] / "data" / "checkpoint.tar.xz"
"""Written by `tests/data/old_checkpoint.py` with version 0.1."""


@pytest.mark.parametrize("last_commit", ["kept", "lost"])
def test_a_query_goes_on_from_an_old_checkpoint(
    spark: SparkSession, tmp_path: Path, last_commit: str
) -> None:
    with tarfile.open(MADE) as archive:
        if hasattr(tarfile, "data_filter"):  # before Python 3.11.4 it is missing
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    if last_commit == "lost":  # as by a kill between the broker's commit and Spark's own
        (tmp_path / "checkpoint/commits/2").unlink()
        (tmp_path / "checkpoint/commits/.2.crc").unlink()
    with BrokerProcess(tmp_path / "data") as broker:
        assert values_of(broker.http_address, "copied") == [f"order {n}" for n in range(20)]
        address = broker.http_address
        rows = spark.readStream.format("martlet").options(addresses=address, topic="orders")
        query = (
            rows.option("startingOffsets", "earliest")
            .load()
            .selectExpr("value")
            .writeStream.format("martlet")
            .options(addresses=address, topic="copied")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(200)
        read = [json.loads(progress.json)["numInputRows"] for progress in query.recentProgress]
        assert [count for count in read if count] == ([4, 10] if last_commit == "lost" else [10])
        assert values_of(broker.http_address, "copied") == [f"order {n}" for n in range(30)]
