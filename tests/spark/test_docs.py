"""The documents' blocks for Spark run as they stand, and show what stands behind them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.docs.page import Page, pages
from tests.docs.runner import Runner

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PAGES = [page for page in pages() if page.needs_spark]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_blocks_run(
    page: Page, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("martlet.spark.java.spark_session", lambda *_names, **_settings: spark)
    with Runner(page, tmp_path) as runner:
        for block in page.blocks:
            runner.run(block)
