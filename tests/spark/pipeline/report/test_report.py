"""The live report: figures as a description says, shown, kept, and found again."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests import brokers
from tests.spark.publish import publish

from martlet.options.flag import OptionError
from martlet.pipeline.job import JobFailed
from martlet.pipeline.report import LiveReportOptions, of_sql, parse, report
from martlet.testing import BrokerProcess

# A machine that is busy elsewhere starts a Java virtual machine in a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
START = datetime(2026, 1, 31, 12, tzinfo=UTC)
DESCRIPTION = """
title = "Orders"
topics = ["orders"]
schema = "number INT, country STRING, amount DOUBLE, at TIMESTAMP, window STRING"
time = "at"
watermark = "30 seconds"

[figures.sales]
window = "1 minute"
by = ["country"]
where = "amount >= 0"
count = true
rate = true
percentiles = { amount = [50] }
distinct = ["number"]
top = { "number % 3" = 1 }
values = { revenue = "sum(amount)" }
"""


def order(number: int, *, minute: int, country: str = "NL", amount: float = 1.0) -> bytes:
    at = START + timedelta(minutes=minute, seconds=number % 60)
    fields = {"number": number, "country": country, "amount": amount, "at": at.isoformat()}
    return json.dumps(fields).encode()


broker = brokers.process()


def options_of(broker: BrokerProcess, folder: Path | None = None, **more: Any) -> LiveReportOptions:
    """A report of all there is now, which goes on from its checkpoint in a folder."""
    checkpoint = "" if folder is None else str(folder / "checkpoint")
    options = LiveReportOptions(addresses=(broker.http_address,), once=True, checkpoint=checkpoint)
    return options.replace(**more)


def test_figures_are_counted_by_window_and_group_and_final_ones_shown_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    page, parquet = tmp_path / "page.html", tmp_path / "parquet"
    options = options_of(broker, tmp_path, page=str(page), parquet=str(parquet))
    bodies = [order(n, minute=0, amount=float(n)) for n in range(30)]
    bodies += [order(n, minute=0, country="BE") for n in range(3)]
    bodies += [order(99, minute=0, amount=-1.0), b"no JSON"]
    publish(broker.http_address, "orders", bodies)
    belgium, holland = sorted(
        report(options, parse(DESCRIPTION), spark=spark)["sales"], key=lambda row: row["country"]
    )

    assert holland == {
        "window_start": START,
        "window_end": START + timedelta(minutes=1),
        "country": "NL",
        "count": 30,
        "rate": 0.5,
        "amount_p50": 14.0,
        "number_distinct": 30,
        "number_3_top": [{"item": holland["number_3_top"][0]["item"], "count": 10}],
        "revenue": sum(range(30)),
    }
    assert belgium["count"] == 3
    assert spark.read.parquet(f"{options.parquet}/sales").count() == 0  # it is open yet

    # A later minute, and one that still comes in time; then one that ends both; then one too late.
    unseen = options.replace(console=False, page="")
    in_time = order(30, minute=0, amount=7.0)
    for bodies in ([order(1, minute=1), in_time], [order(0, minute=5)]):
        publish(broker.http_address, "orders", bodies)
        report(unseen, parse(DESCRIPTION), spark=spark)
    publish(broker.http_address, "orders", [order(31, minute=0)])
    shown = report(options, parse(DESCRIPTION), spark=spark)["sales"]

    final_rows = spark.read.parquet(f"{options.parquet}/sales").orderBy("window_start", "country")
    counts = [(row.country, row["count"]) for row in final_rows.collect()]
    assert counts == [("BE", 3), ("NL", 31), ("NL", 1)]
    assert {(row["country"], row["window_start"]) for row in shown} == {
        ("NL", START),
        ("BE", START),
        ("NL", START + timedelta(minutes=1)),
        ("NL", START + timedelta(minutes=5)),
    }
    assert page.read_text().count("<svg") == 6  # five numbers, and the top of the newest window
    assert not re.search(r"""(src|href)=["'](?!#)""", page.read_text())


def test_a_custom_query(spark: SparkSession, broker: BrokerProcess) -> None:
    publish(broker.http_address, "words", [b"a", b"b", b"a"])
    options = options_of(broker, sql="given below")
    sql = "SELECT CAST(value AS STRING) AS word, count(*) AS times FROM messages GROUP BY 1"
    boards = report(options, of_sql(sql, topics=("words",), mode="complete"), spark=spark)
    assert sorted((row["word"], row["times"]) for row in boards["report"]) == [("a", 2), ("b", 1)]


def test_rows_of_a_query_are_identified_by_its_grouping(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    page = str(tmp_path / "page.html")
    options = options_of(broker, tmp_path, console=False, page=page, topics=("dice",))
    counted = """
        [figures.rolls]
        sql = "SELECT length(value) AS eyes, count(*) AS times FROM messages GROUP BY 1"
    """
    publish(broker.http_address, "dice", [b".", b"...", b".."])
    report(options, parse(counted), spark=spark)
    publish(broker.http_address, "dice", [b"..."])
    boards = report(options, parse(counted), spark=spark)
    rolls = [(row["eyes"], row["times"]) for row in boards["rolls"]]
    assert sorted(rolls) == [(1, 1), (2, 1), (3, 2)]

    # Its counts would be of both.
    other = parse(counted.replace("GROUP BY", "WHERE value <> '.' GROUP BY"))
    with pytest.raises(JobFailed, match=r"was another one when .* was begun: sql changed since"):
        report(options, other, spark=spark)
    alike = "SELECT count(*) AS times FROM messages GROUP BY value"
    with pytest.raises(JobFailed, match="no columns identify them: SELECT all columns of GROUP BY"):
        report(options.replace(sql="-"), of_sql(alike, topics=("dice",)), spark=spark)


def test_final_rows_go_to_a_topic_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker.http_address, "whispers", [b"a", b"b"])
    options = options_of(broker, tmp_path, console=False, to_topic="shouts")
    sql = "SELECT upper(CAST(value AS STRING)) AS word FROM messages"
    description = of_sql(sql, topics=("whispers",), mode="append")
    report(options, description, spark=spark)
    publish(broker.http_address, "whispers", [b"c"])
    report(options, description, spark=spark)
    reader = spark.read.format("martlet").options(addresses=broker.http_address, topic="shouts")
    rows = reader.load().orderBy("offset").collect()
    assert [json.loads(row["value"]) for row in rows] == [
        {"figure": "report", "word": word} for word in "ABC"
    ]
    assert {row["tag"] for row in rows} == {"report"}


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT nothing FROM messages", "figures.report is invalid: .*`nothing`"),
        ("SELEKT 1", "figures.report is invalid: .*PARSE_SYNTAX_ERROR"),
        ("SELECT 1 / 0 AS n FROM messages", "figures.report has failed: .DIVIDE_BY_ZERO. Div"),
        ("SELECT 1", "does not read the table messages"),
        ("SELECT tag, key AS TAG FROM messages", "several of its columns are called tag"),
    ],
)
def test_an_impossible_query_is_reported_in_a_line(
    spark: SparkSession, broker: BrokerProcess, sql: str, said: str
) -> None:
    with pytest.raises(JobFailed, match=said):
        report(options_of(broker, sql=sql), of_sql(sql, topics=("words",)), spark=spark)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"time": "at"}, "time = 'at' is invalid: .*`at`"),
        ({"time": "topic"}, "of type TIMESTAMP, and this is STRING"),
        ({"watermark": "1 minit"}, "watermark = '1 minit' is invalid: .*1 minit"),
        ({"json_schema": "n IMT"}, "the schema 'n IMT' is invalid: .*IMT"),
    ],
)
def test_a_missing_setting_of_a_figure_is_reported_in_a_line(
    spark: SparkSession, broker: BrokerProcess, change: dict[str, Any], said: str
) -> None:
    options = options_of(broker, sql="SELECT tag FROM messages", topics=("words",), **change)
    with pytest.raises(JobFailed, match=said):
        report(options, spark=spark)


def test_a_report_of_nothing_is_refused(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(OptionError, match="which topics"):
        report(options_of(broker, sql="SELECT 1"), spark=spark)
