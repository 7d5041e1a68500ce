"""The job: step by step, each one transaction of the sink, at a rate if one is given.

The messages of a queue are sent in their order: one task sends all of a queue's in a step, and the
steps follow each other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from martlet.durations import SECOND_NS
from martlet.options.flag import OptionError
from martlet.pipeline.fields import with_fields
from martlet.pipeline.job import OK, Job, Run, query_errors_as, session
from martlet.pipeline.replay.options import TOPIC_PLACE, ReplayJobOptions
from martlet.pipeline.replay.progress import Ledger, ReplayPlan, ReplayProgress, ReplayStep
from martlet.pipeline.replay.source import Past, Position, left, sent_columns
from martlet.plural import counted
from martlet.spark.read import offsets
from martlet.spark.read.offset_bound import parse_bound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUEUE = ("broker", "topic", "partition")
_KEPT = "_message"


@dataclass(frozen=True)
class Replayed:
    """What has come of a replay.

    Attributes:
        read_count: how many messages were looked at in this run.
        sent_count: how many of them were sent; with `dry_run`, how many would be.
        left_count: how many are still to be looked at, where it was told to end before.
        sent_before_count: how many were sent by runs before this one.
    """

    read_count: int
    sent_count: int
    left_count: int
    sent_before_count: int = 0


def replay(options: ReplayJobOptions, *, spark: SparkSession | None = None) -> Replayed:
    """Send messages of the past to a topic, each exactly once.

    Args:
        options: the job's.
        spark: where to; else the active session, or one of its own.

    Raises:
        JobFailed: it cannot go on.
        NoSuchTopicError: a topic does not exist.
        ValueError: the bounds are none.
    """
    if spark is not None:
        return ReplayJob(options, Run(spark)).run()
    with session("replay", options) as own:
        return ReplayJob(options, Run(own)).run()


class ReplayJob:
    """One run of the job."""

    def __init__(self, options: ReplayJobOptions, run: Run) -> None:
        self._options = options
        self._run = run
        self._past = Past.of(options, run.spark)

    def run(self) -> Replayed:
        """Do all steps that are left, or those until the run is to end."""
        with closing(self._past):
            return self._count() if self._options.dry_run else self._go_on()

    def _go_on(self) -> Replayed:
        ledger = Ledger(self._options.checkpoint)
        plan = ledger.plan(_terms(self._options), self._past.bounds)
        last = ledger.progress()
        before = last.sent_count if last is not None else 0
        read = sent = 0
        reached = _reached(plan, last)
        for step in self._steps(plan, last):
            ledger.note(ReplayProgress(step, False, before + sent))
            began_s = time.monotonic()
            count = self._send(plan, step)
            seconds = time.monotonic() - began_s
            reached = step.end
            size, lag = left(step.start, step.end), left(reached, plan.end)
            read, sent = read + size, sent + count
            ledger.note(ReplayProgress(step, True, before + sent))
            self._run.meter.batch(count, seconds, lag=lag)
            self._run.say(
                f"step {step.number}: {count:,} of {counted(size, 'message', form=',')} sent again,"
                f" {size / max(seconds, 1e-9):,.0f} a second, {lag:,} to go"
            )
        return Replayed(read, sent, left(reached, plan.end), before)

    def _steps(self, plan: ReplayPlan, last: ReplayProgress | None) -> Iterator[ReplayStep]:
        """The step that was cut off, and those behind it, each when its time has come."""
        cut_off = last.step if last is not None and not last.is_done else None
        number = last.step.number + last.is_done if last is not None else 0
        reached = _reached(plan, last)
        due_s = time.monotonic()
        while left(reached, plan.end):
            if self._run.stopping.wait(max(0.0, due_s - time.monotonic())):
                return
            step = cut_off
            if step is None:
                end = offsets.step(reached, plan.end, self._options.step_offsets)
                step = ReplayStep(number, reached, end)
            cut_off = None
            yield step
            if self._options.rate:
                due_s += left(step.start, step.end) / self._options.rate
            # A step that took longer is not made up for by a burst.
            due_s = max(due_s, time.monotonic() - self._options.interval_ns / SECOND_NS)
            number, reached = number + 1, step.end

    def _send(self, plan: ReplayPlan, step: ReplayStep) -> int:
        """Send a step's messages, and return how many."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        messages = self._wanted(step.start, step.end)
        topic = F.lit(self._options.to_topic)
        if TOPIC_PLACE in self._options.to_topic:
            topic = F.replace(topic, F.lit(TOPIC_PLACE), F.col("topic"))
        queues = len({key for key, first in step.start.items() if step.end[key] > first})
        tasks = min(max(1, queues), self._run.spark.sparkContext.defaultParallelism)
        counted = Observation()
        (
            messages.repartition(tasks, *_QUEUE)
            .sortWithinPartitions(*_QUEUE, "offset")
            .select(*sent_columns(messages), topic.alias("topic"))
            .observe(counted, F.count(F.lit(1)).alias("count"))
            .write.format("martlet")
            .mode("append")
            .options(**self._target())
            .option("applicationId", plan.name)
            .option("batchId", step.number)
            .save()
        )
        return int(counted.get["count"])

    def _count(self) -> Replayed:
        start, end = self._past.bounds()
        return Replayed(left(start, end), self._wanted(start, end).count(), left(start, end))

    def _wanted(self, start: Position, end: Position) -> DataFrame:
        from pyspark.sql import functions as F

        messages = self._past.between(start, end)
        if not self._options.where:
            return messages
        # What a field is called must not go before what is sent.
        kept = messages.withColumn(_KEPT, F.struct(*messages.columns))
        with query_errors_as(f"--where={self._options.where}"):
            fields = with_fields(kept, self._options.json_schema)
            return fields.where(self._options.where).select(f"{_KEPT}.*")

    def _target(self) -> dict[str, str]:
        found = self._options.sink
        if self._options.to_addresses:
            found["addresses"] = ",".join(self._options.to_addresses)
        return found


def _reached(plan: ReplayPlan, last: ReplayProgress | None) -> Position:
    """The position up to which all steps are done."""
    if last is None:
        return plan.start
    return last.step.end if last.is_done else last.step.start


def _terms(options: ReplayJobOptions) -> dict[str, object]:
    """What decides which messages are sent, and where to; a rate may change."""
    return {
        "from-topic": list(options.from_topics),
        "from-archive": options.from_archive,
        "start": options.start,
        "end": options.end,
        "where": options.where,
        "json-schema": options.json_schema,
        "to-topic": options.to_topic,
    }


def _work(options: ReplayJobOptions, run: Run) -> int:
    done = ReplayJob(options, run).run()
    if not (options.dry_run or done.read_count or done.left_count):
        before = counted(done.sent_before_count, "message was", "messages were", form=",")
        run.say(
            f"nothing to do: {before} replayed before; another replay needs another --checkpoint"
        )
        return OK
    read = counted(done.read_count, "message", form=",")
    verb = "would be" if options.dry_run else "was" if done.sent_count == 1 else "were"
    run.say(f"{done.sent_count:,} of {read} {verb} sent again")
    if done.left_count and not options.dry_run:
        run.say(f"{counted(done.left_count, 'is', 'are', form=',')} left: the same command goes on")
    return OK


def _check(options: ReplayJobOptions) -> None:
    for name, text in (("--start", options.start), ("--end", options.end)):
        try:
            parse_bound(name, text)
        except ValueError as error:
            raise OptionError(str(error)) from None


JOB = Job(
    name="replay",
    description=(
        "Send messages of a topic's past, or of an archive, to a topic: all or those that a"
        " condition picks, at a rate, each exactly once, also where it is stopped or killed and"
        " started again."
    ),
    options=ReplayJobOptions,
    work=_work,
    check=_check,
)
