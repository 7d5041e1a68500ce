"""One Spark session for all tests, as each costs ten seconds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from martlet.spark.java import _CHECKPOINTS_BY_RENAME, prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session without any setting of Martlet: Spark has to find the source by itself."""
    prepare_environment()
    from pyspark.sql import SparkSession

    with warnings.catch_warnings():
        # py4j leaves the pipes of its Java to the collector.
        warnings.simplefilter("ignore", ResourceWarning)
        session = (
            SparkSession.builder.appName("martlet tests")
            .master("local[2]")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.ui.enabled", False)
            # Nothing here runs for so long that the thorough compiler is worth its work,
            # nor a garbage collector with threads of its own.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            # Without it, each micro-batch starts processes; `spark_session` sets it too.
            .config("spark.sql.streaming.checkpointFileManagerClass", _CHECKPOINTS_BY_RENAME)
            .getOrCreate()
        )
        yield session
        session.stop()
