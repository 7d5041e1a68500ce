"""A job that is to read a topic that no broker has says so, and makes nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.publish import ask, publish

from martlet.pipeline import archive as archive_job
from martlet.pipeline import audit as audit_job
from martlet.pipeline import replay as replay_job
from martlet.pipeline import report as report_job
from martlet.pipeline.archive import ArchiveOptions, archive
from martlet.pipeline.audit import AuditOptions
from martlet.pipeline.job import OK, WRONG, carry_out
from martlet.pipeline.replay import ReplayJobOptions
from martlet.pipeline.report import LiveReportOptions, report
from martlet.pipeline.report.description import of_sql
from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

# A machine that is busy elsewhere starts a Java virtual machine in a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
COUNT_SQL = "SELECT count(*) AS n FROM messages"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        publish(process.http_address, "orders", [b"one", b"two"])
        yield process


def topics_of(broker: BrokerProcess) -> dict[str, list[str]]:
    """The channels of each topic."""
    stats = ask(broker.http_address, "/stats?format=json")
    return {
        topic["topic_name"]: [channel["channel_name"] for channel in topic["channels"]]
        for topic in stats["topics"]
    }


def required_code(job: Any, options: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the stderr of a job that has to end with 2."""
    assert carry_out(job, options) == WRONG
    return capsys.readouterr().err


def test_streams_refuse_before_they_begin(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = topics_of(broker)
    out = tmp_path / "out"
    archived = ArchiveOptions(
        addresses=(broker.http_address,), topics=("orders", "ordres"), out=str(out), once=True
    )
    error_text = required_code(archive_job.JOB, archived, capsys)
    assert "martlet pipeline archive: there is no topic 'ordres' at 127.0.0.1:" in error_text
    assert "; there is orders. --allow-missing-topics goes on without it" in error_text
    by_pattern = archived.replace(topics=(), topic_pattern="ordres.*")
    error_text = required_code(archive_job.JOB, by_pattern, capsys)
    assert "there is no topic that matches /ordres.*/ at" in error_text
    reported = LiveReportOptions(
        addresses=(broker.http_address,), topics=("ordres",), sql=COUNT_SQL, mode="complete"
    )
    error_text = required_code(report_job.JOB, reported, capsys)
    assert "martlet pipeline report: there is no topic 'ordres' at" in error_text
    assert topics_of(broker) == before
    assert not out.exists()


@pytest.mark.usefixtures("spark")
def test_a_replay_and_an_audit_refuse(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = topics_of(broker)
    replayed = ReplayJobOptions(
        addresses=(broker.http_address,),
        from_topics=("ordres",),
        to_topic="again",
        checkpoint=str(tmp_path / "checkpoint"),
    )
    for options in (replayed, replayed.replace(dry_run=True)):
        error_text = required_code(replay_job.JOB, options, capsys)
        assert "martlet pipeline replay: there is no topic 'ordres' at 127.0.0.1:" in error_text
    audited = AuditOptions(addresses=(broker.http_address,), topics=("orders", "ordres"))
    error_text = required_code(audit_job.JOB, audited, capsys)
    assert (
        error_text == "martlet pipeline audit: the logs have no topic 'ordres'; there is orders\n"
    )
    assert topics_of(broker) == before
    assert not (tmp_path / "checkpoint").exists()


def test_topics_that_are_yet_to_come(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    address = broker.http_address
    before = topics_of(broker)
    options = ArchiveOptions(
        addresses=(address,),
        topics=("late",),
        out=str(tmp_path / "out"),
        once=True,
        allow_missing_topics=True,
    )
    assert archive(options, spark).rows == 0
    reported = LiveReportOptions(
        addresses=(address,), once=True, console=False, sql="-", allow_missing_topics=True
    )
    report(reported, of_sql(COUNT_SQL, topics=("late",), mode="complete"), spark=spark)
    assert topics_of(broker) == before

    publish(address, "late", [b"three"])
    assert archive(options, spark).rows == 1
    assert topics_of(broker)["late"] == ["archive"]


def test_a_job_is_stopped_while_it_waits_for_a_broker(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [
        *(sys.executable, "-m", "martlet", "pipeline", "archive", "--topic=orders"),
        *(f"--addresses=127.0.0.1:{free_port()}", f"--out={out}"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "is out of reach" in process.stderr.readline()
        process.terminate()
        assert process.wait(60) == OK  # and not once --timeout, five minutes, is over
    assert not out.exists()
