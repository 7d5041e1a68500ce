"""The audit of real brokers' logs, in Spark."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.spark.publish import publish

from martlet.broker.tracing.counters import FIRST_BUCKET
from martlet.client.sync import Consumer, Producer
from martlet.pipeline.audit import JOB, AuditOptions, audit
from martlet.pipeline.audit.facts import FactKind
from martlet.pipeline.audit.reading import decoded
from martlet.pipeline.audit.segment_listing import survey_folder
from martlet.pipeline.job import LOSS, OK, carry_out
from martlet.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT_BYTES = 64 << 10


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a broker that was killed, went on and was stopped.

    A channel has finished 700 of 1200 messages, and had one of them back once.
    """
    folder = tmp_path_factory.mktemp("broker")
    segments = f"--max-bytes-per-file={SEGMENT_BYTES}"
    arguments = (segments, "--journal-interval=10ms", "--retention=1h")
    with BrokerProcess(folder, *arguments) as broker:
        publish(broker.http_address, "orders", [b"x" * 100] * 300)
        consume(broker, 300, requeued=1)
        await_finished(folder, 300)
        broker.kill()
        broker.restart()
        for _ in range(9):
            publish(broker.http_address, "orders", [b"y" * 200] * 100)
        consume(broker, 400)
        broker.stop()
    return folder


def consume(broker: BrokerProcess, count: int, requeued: int = 0) -> None:
    """Finish a number of messages."""
    with Consumer("orders", "billing", broker.tcp_address) as consumer:
        for message in consumer:
            if requeued:
                requeued -= 1
                message.requeue(backoff=False)
                continue
            message.finish()
            count -= 1
            if not count:
                break


def await_finished(folder: Path, count: int) -> None:
    """Wait until the journal has `count` finished messages."""
    ends_s = time.monotonic() + 60
    while time.monotonic() < ends_s:
        facts = [fact for place in survey_folder(str(folder)).segments for fact in decoded(place)]
        accounts = [fact for fact in facts if fact.kind == FactKind.ACCOUNT]
        counts = [np.frombuffer(fact.payload, "<i8")[FIRST_BUCKET:].sum() for fact in accounts]
        if counts and max(counts) == count:
            return
        time.sleep(0.02)
    raise AssertionError(f"the journal does not tell of {count} messages")


def audited(capsys: pytest.CaptureFixture[str], **options: Any) -> Any:
    """The exit code of the command, and what it prints as JSON."""
    code = carry_out(JOB, AuditOptions(json=True, **options))
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("spark")
def test_a_log_is_clean_after_a_kill_and_its_counts_are_reported(
    stopped: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, result = audited(capsys, data_paths=(str(stopped),), out=str(out))
    assert (code, result["findings"]) == (OK, [])
    (row,) = result["totals"]
    assert (row["topic"], row["channel"], row["published"]) == ("orders", "billing", 1200)
    assert (row["finished"], row["open"]) == (700, 500)
    assert row["requeued"] >= 1
    assert row["delivered"] >= 701
    assert row["p50_ms"] <= row["p99_ms"]
    assert json.loads((out / "audit.json").read_text())["totals"] == result["totals"]
    page = (out / "audit.html").read_text()
    assert all(part in page for part in ("nothing is lost", "<svg", "orders"))


@pytest.mark.usefixtures("spark")
def test_a_cut_segment_is_named_and_ends_with_3(
    stopped: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(stopped, folder)
    path = sorted((folder / "log").glob("*.log"))[-2]
    with path.open("r+b") as file:
        file.truncate(SEGMENT_BYTES // 2)
    code, result = audited(capsys, data_paths=(str(folder),))
    assert code == LOSS
    lost = next(finding for finding in result["findings"] if finding["kind"] == "lost")
    assert (lost["topic"], result["lost"] > 0) == ("orders", True)
    assert any(place["file"] == f"log/{path.name}" for place in lost["places"])


def test_a_running_broker_is_audited_over_http(spark: SparkSession, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", f"--max-bytes-per-file={SEGMENT_BYTES}") as broker:
        for _ in range(5):
            publish(broker.http_address, "orders", [b"y" * 200] * 100)
        # As on a machine where there is another broker's folder under the same path.
        identity = tmp_path / "data" / "broker.json"
        identity.write_text(json.dumps({"broker": "another", "version": 1}))
        result = audit(AuditOptions(addresses=(broker.http_address,)), spark)
    assert not result.findings
    assert [row["published"] for row in result.totals()] == [500]


@pytest.mark.usefixtures("spark")
def test_what_a_filter_rejects_counts_as_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "broker"
    condition = "region = 'eu'"
    with BrokerProcess(folder, "--journal-interval=10ms", "--retention=1h") as broker:
        with Consumer("orders", "billing", broker.tcp_address, filter=condition):
            pass
        with Producer(broker.tcp_address) as producer:
            for start in range(0, 300, 100):
                producer.send_many("orders", [b"us"] * 50, headers={"region": "us"})
                producer.send_many("orders", [b"%d" % start], headers={"region": "eu"})
        consume(broker, 2)
        await_finished(folder, 2)
        broker.kill()
        broker.restart()
        consume(broker, 1)
        broker.stop()
    code, result = audited(capsys, data_paths=(str(folder),))
    assert (code, result["findings"]) == (OK, [])
    (row,) = result["totals"]
    assert (row["published"], row["finished"], row["filtered"], row["open"]) == (153, 153, 150, 0)
    assert carry_out(JOB, AuditOptions(data_paths=(str(folder),))) == OK
    assert "filtered" in capsys.readouterr().out.splitlines()[-4]
