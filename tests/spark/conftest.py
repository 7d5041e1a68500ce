"""One Spark session for all tests, as each costs ten seconds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from martlet.spark.java import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        # py4j leaves the pipes of its Java to the collector.
        warnings.simplefilter("ignore", ResourceWarning)
        session = spark_session("martlet tests")
        yield session
        session.stop()
