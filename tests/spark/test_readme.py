"""The README's way into Spark runs as it stands, and shows what the README says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.interop.asking import ask
from tests.interop.test_readme import BLOCKS, SPARK, run

from martlet.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def without_times(text: str) -> str:
    """Columns without their widths too: a time that ends in zeros is shown without them."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?", "TIME", text)
    return re.sub(r" *([-| ])\1*", r"\1", text)


def test_orders_are_shown(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("martlet.spark.java.spark_session", lambda _name: spark)
    (block,) = (block for block in BLOCKS if SPARK in block[0])
    with BrokerProcess() as broker:
        bodies = [b'{"id": 1, "total": 12.5}', *(b'{"id": %d}' % n for n in range(2, 5))]
        ask(broker.http_address, "/mpub?topic=orders", "POST", b"\n".join(bodies))
        run(block[0], broker)
    assert without_times(capsys.readouterr().out).strip() == without_times(block[1]).strip()
