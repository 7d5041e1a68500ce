"""The replay: messages of the past sent again, each once, whatever was killed."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from tests.spark.publish import ask, post, publish, wait_for

from martlet.options.flag import OptionError
from martlet.pipeline import archive
from martlet.pipeline.archive import ArchiveOptions
from martlet.pipeline.job import OK, JobFailed, Run, carry_out
from martlet.pipeline.replay import JOB, Replayed, ReplayJobOptions, replay
from martlet.pipeline.replay.progress import Ledger
from martlet.pipeline.replay.replay import ReplayJob
from martlet.testing import BrokerProcess

# A machine that is busy elsewhere starts a Java virtual machine in a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
COUNT = 1000


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        for first in range(0, COUNT, 100):
            publish(process.http_address, "past", map(body, range(first, first + 100)))
        yield process


def body(number: int) -> bytes:
    return json.dumps({"number": number, "kind": "odd" if number % 2 else "even"}).encode()


def options_of(
    broker: BrokerProcess, folder: Path, to_topic: str, topic: str = "past", **more: Any
) -> ReplayJobOptions:
    """A replay of a topic, with its checkpoint in a folder."""
    options = ReplayJobOptions(
        addresses=(broker.http_address,),
        from_topics=(topic,),
        to_topic=to_topic,
        checkpoint=str(folder / "checkpoint"),
    )
    return options.replace(**more)


def archived(spark: SparkSession, broker: BrokerProcess, topic: str, out: Path, **more: Any) -> str:
    """Archive a topic. Returns where."""
    options = ArchiveOptions(
        addresses=(broker.http_address,), topics=(topic,), out=str(out), once=True, **more
    )
    archive.JOB.work(options, Run(spark))
    return str(out)


def rows_of(spark: SparkSession, broker: BrokerProcess, topic: str) -> list[Row]:
    reader = spark.read.format("martlet").options(addresses=broker.http_address, topic=topic)
    return reader.load().orderBy("offset").collect()


def numbers_of(spark: SparkSession, broker: BrokerProcess, topic: str) -> list[int]:
    return [json.loads(row["value"])["number"] for row in rows_of(spark, broker, topic)]


def test_selected_messages_are_sent_in_order_and_once_over_a_stop(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    selected = {
        "json_schema": "number INT, kind STRING",
        "where": "kind = 'odd' AND number >= 100",
    }
    options = options_of(broker, tmp_path, "again-{topic}", max_offsets=400, **selected)
    assert replay(options.replace(dry_run=True), spark=spark).sent_count == 450

    run = Run(spark)
    run.say = lambda line: run.stopping.set()  # type: ignore[method-assign]  # after one step
    first = ReplayJob(options, run).run()
    assert (first.read_count, first.sent_count, first.left_count) == (400, 150, 600)
    # Messages published meanwhile are not of the past that was fixed.
    publish(broker.http_address, "past", map(body, range(COUNT, COUNT + 7)))
    # A step that was cut off by a kill is done again, and published once.
    step = tmp_path / "checkpoint" / "step.json"
    state = json.loads(step.read_text())
    assert (state.pop("is_done"), state.pop("sent_count")) == (True, 150)
    step.write_text(json.dumps(state))
    assert replay(options, spark=spark) == Replayed(1000, 450, 0)
    assert replay(options, spark=spark) == Replayed(0, 0, 0, sent_before_count=450)
    expected = [number for number in range(100, COUNT) if number % 2]
    assert numbers_of(spark, broker, "again-past") == expected

    with pytest.raises(JobFailed, match="another --where; give it a folder"):
        replay(options.replace(where="kind = 'even'"), spark=spark)


def test_an_archive_in_delta_is_sent_once_over_its_leftovers(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for first in (0, 50):
        publish(broker.http_address, "delta", map(body, range(first, first + 50)))
        archived(spark, broker, "delta", out, format="delta")
    # A batch that was cut off by a kill leaves its files, and joined ones stay for a week.
    file = next(out.rglob("*.parquet"))
    shutil.copy(file, file.with_name(f"again-{file.name}"))
    archived(spark, broker, "delta", out, format="delta", compact=True)
    options = options_of(broker, tmp_path, "once", from_topics=(), from_archive=str(out))
    assert replay(options, spark=spark) == Replayed(100, 100, 0)
    assert numbers_of(spark, broker, "once") == list(range(100))


def test_messages_that_are_not_there_any_more_are_counted(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--max-bytes-per-file=64KiB", "--checkpoint-interval=100ms")
    with BrokerProcess(tmp_path / "data", *flags) as broker:
        address = broker.http_address
        for _ in range(20):
            publish(address, "past", [b"x" * 100] * 100)
        out = archived(spark, broker, "past", tmp_path / "all")

        def queue() -> dict[str, int]:
            (listed,) = ask(address, "/log/topics?names=past")["topics"][0]["queues"]
            return dict(listed)

        wait_for(lambda: queue()["start_offset"] > 0)
        publish(address, "past", [b"x"])
        gone = queue()["start_offset"]
        capsys.readouterr()
        options = options_of(broker, tmp_path, "again", dry_run=True)
        for start, is_said in (("earliest", True), ("now-1h", True), ("latest-1", False)):
            replay(options.replace(start=start), spark=spark)
            said = f"there had been {gone:,} messages before these, which the broker has deleted"
            assert (said in capsys.readouterr().out) is is_said, start
        part = archived(spark, broker, "past", tmp_path / "part", starting_offsets="latest-1")
        capsys.readouterr()
        for folder, is_said in ((out, False), (part, True)):
            from_archive = options.replace(from_topics=(), from_archive=folder)
            replay(from_archive, spark=spark)
            text = "there had been 2,000 messages before these, which the archive does not have"
            assert (text in capsys.readouterr().out) is is_said, folder


@pytest.mark.usefixtures("spark")
def test_a_replay_that_is_complete_has_nothing_to_do(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end = '{"past": {"0": 30}}'
    options = options_of(broker, tmp_path, "complete", end=end, max_offsets=20)
    assert carry_out(JOB, options) == OK
    assert capsys.readouterr().out.endswith("\n30 of 30 messages were sent again\n")
    assert carry_out(JOB, options) == OK
    assert capsys.readouterr().out == (
        "nothing to do: 30 messages were replayed before; another replay needs another"
        " --checkpoint\n"
    )


def test_an_archive_is_sent_again(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker.http_address, "kept", map(body, range(50)))
    post(broker.http_address, "/pub?topic=kept", b"with headers")
    out = archived(spark, broker, "kept", tmp_path / "archive")
    options = options_of(
        broker, tmp_path, "restored", from_topics=(), from_archive=out, max_offsets=30
    )
    assert replay(options, spark=spark).sent_count == 51
    assert [row["value"] for row in rows_of(spark, broker, "restored")] == [
        *map(body, range(50)),
        b"with headers",
    ]


def clashing(number: int) -> bytes:
    fields = {"number": number, "offset": -number, "topic": f"x{number % 2}", "value": "v"}
    return json.dumps(fields, separators=(",", ":")).encode()


def test_fields_that_are_called_as_columns_of_the_source_are_not_taken_for_them(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker.http_address, "clash", map(clashing, range(10)))
    fields = "number INT, offset INT, topic STRING, value STRING"
    where = "offset < -2 AND topic = 'x1' AND value = 'v'"
    options = options_of(
        broker, tmp_path, "{topic}-again", "clash", json_schema=fields, where=where
    )
    assert replay(options, spark=spark).sent_count == 4
    expected = [clashing(number) for number in (3, 5, 7, 9)]
    assert [row["value"] for row in rows_of(spark, broker, "clash-again")] == expected
    out = archived(
        spark, broker, "clash", tmp_path / "archive", json_schema=fields, partition_by="date,hour"
    )
    past = {"from_topics": (), "from_archive": out, "to_topic": "{topic}-archived"}
    options = options.replace(**past, checkpoint=str(tmp_path / "archived"))
    assert replay(options, spark=spark).sent_count == 4
    # Written anew of the fields, and of nothing that the folders are named by.
    assert [row["value"] for row in rows_of(spark, broker, "clash-archived")] == expected


def test_a_recreated_topic_is_not_replayed(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker.http_address, "anew", map(body, range(9)))
    options = options_of(broker, tmp_path, "anew-again", "anew")
    replay(options, spark=spark)
    step = tmp_path / "checkpoint" / "step.json"
    step.write_text(json.dumps(json.loads(step.read_text()) | {"is_done": False}))
    post(broker.http_address, "/topic/delete?topic=anew")
    publish(broker.http_address, "anew", map(body, range(9)))
    with pytest.raises(JobFailed, match="topic 'anew' was deleted since the replay has begun"):
        replay(options, spark=spark)
    assert numbers_of(spark, broker, "anew-again") == list(range(9))
    step.write_bytes(b"{")
    with pytest.raises(JobFailed, match=r"step\.json cannot be read"):
        replay(options, spark=spark)


def test_a_rate_is_kept(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    end = '{"past": {"0": 60}}'
    options = options_of(broker, tmp_path, "slowly", end=end, rate=30, interval_ns=10**9)
    assert options.step_offsets == 30
    waited: list[float] = []

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    run = Run(spark)
    run.stopping = Stopping()
    assert ReplayJob(options, run).run().sent_count == 60
    assert len(waited) == 2
    assert waited[0] == 0.0
    assert 0.0 <= waited[1] <= 1.0  # less, by what the first step took
    progress = Ledger(options.checkpoint).progress()
    assert progress is not None
    assert (progress.is_done, progress.sent_count) == (True, 60)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"from_topics": ()}, "say what to replay"),
        ({"from_archive": "a"}, "say what to replay"),
        ({"to_topic": ""}, "say where to"),
        ({"to_topic": "past"}, "is where the messages are already"),
        ({"to_topic": "{topic}"}, "is where the messages are already"),
        ({"to_topic": "a b"}, "--to-topic=a b is not valid"),
        ({"checkpoint": ""}, "--checkpoint=FOLDER stores"),
        ({"addresses": ()}, "no brokers"),
    ],
)
def test_options_that_cannot_be_are_refused(change: dict[str, object], said: str) -> None:
    options = ReplayJobOptions(
        addresses=("a:1",), from_topics=("past",), to_topic="t", checkpoint="c"
    )
    with pytest.raises(OptionError, match=said):
        options.replace(**change)


def test_missing_topics_and_archives_are_named(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    options = options_of(broker, tmp_path, "t", "nothing")
    with pytest.raises(ValueError, match=r"there is no topic 'nothing' at .*; there is .*past"):
        replay(options, spark=spark)
    with pytest.raises(JobFailed, match=r"--where=nosuch = 1: .*`nosuch`"):
        replay(options.replace(from_topics=("past",), where="nosuch = 1"), spark=spark)
    with pytest.raises(JobFailed, match=r"--from-archive=.*: .*PATH_NOT_FOUND"):
        replay(options.replace(from_topics=(), from_archive=str(tmp_path / "no")), spark=spark)
