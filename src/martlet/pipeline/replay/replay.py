"""The job: replay messages in steps, each a transaction of the sink, at a limited rate if wanted.

The messages of a queue stay in their order: one task sends all messages of a queue in a step, and
the steps run one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from martlet.options.flag import OptionError
from martlet.pipeline.job import OK, Job, Run, query_errors_as, retried, session, with_fields
from martlet.pipeline.replay.options import TOPIC_PLACE, ReplayJobOptions
from martlet.pipeline.replay.progress import Ledger, ReplayPlan, ReplayStep
from martlet.pipeline.replay.source import (
    ArchiveReplaySource,
    Position,
    ReplaySource,
    TopicReplaySource,
    sent_columns,
)
from martlet.reader import offsets
from martlet.reader.offset_bound import parse_bound
from martlet.text import SECOND_NS, counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUEUE = ("broker", "topic", "partition")
_KEPT = "_message"


@dataclass(frozen=True)
class Replayed:
    """The result of a replay."""

    read_count: int
    sent_count: int
    """The number of messages that it has sent; with `dry_run`, would have sent."""
    left_count: int
    sent_before_count: int = 0
    """The number of messages that earlier runs have sent."""


def replay(options: ReplayJobOptions, *, spark: SparkSession | None = None) -> Replayed:
    """Send earlier messages to a topic, each exactly once.

    Raises:
        JobFailed: the replay cannot continue.
        NoSuchTopicError: a topic does not exist.
        ValueError: the bounds are invalid.
    """
    with session("replay", options, spark) as own:
        return ReplayJob(options, Run(own)).run()


class ReplayJob:
    """One run of the job."""

    def __init__(self, options: ReplayJobOptions, run: Run) -> None:
        self._options = options
        self._run = run
        self._source: ReplaySource = (
            ArchiveReplaySource(options, run.spark)
            if options.from_archive
            else TopicReplaySource(options, run.spark)
        )

    def run(self) -> Replayed:
        """Run the steps that are left, until the run must end."""
        with closing(self._source):
            if not self._options.dry_run:
                return self._run_steps()
            start, end = self._bounds()
            count = _left(start, end)
            wanted_count = retried(lambda: self._wanted(start, end).count(), self._run)
            return Replayed(count, wanted_count, count)

    def _run_steps(self) -> Replayed:
        ledger = Ledger(self._options.checkpoint)
        plan = ledger.plan(_terms(self._options), self._bounds)
        last = ledger.progress()
        before = last.sent_count if last is not None else 0
        read = sent = 0
        reached = _reached(plan, last)
        for step in self._steps(plan, last):
            ledger.note(replace(step, is_done=False, sent_count=before + sent))
            began_s = time.monotonic()
            count = retried(partial(self._send, plan, step), self._run)
            seconds = time.monotonic() - began_s
            reached = step.end
            size, lag = _left(step.start, step.end), _left(reached, plan.end)
            read, sent = read + size, sent + count
            ledger.note(replace(step, is_done=True, sent_count=before + sent))
            self._run.meter.batch(count, seconds, lag=lag)
            self._run.say(
                f"step {step.number}: {count:,} of {counted(size, 'message', form=',')} sent again,"
                f" {size / max(seconds, 1e-9):,.0f} a second, {lag:,} to go"
            )
        return Replayed(read, sent, _left(reached, plan.end), before)

    def _bounds(self) -> tuple[Position, Position]:
        """Find the start and the end, and say what had been before it."""
        bounds = retried(self._source.bounds, self._run)
        if count := self._source.earlier_count:
            messages = counted(count, "message", form=",")
            self._run.say(f"there had been {messages} before these, {self._source.earlier_where}")
        return bounds

    def _steps(self, plan: ReplayPlan, last: ReplayStep | None) -> Iterator[ReplayStep]:
        """Yield the interrupted step and the following ones, each when it is due."""
        interrupted = last if last is not None and not last.is_done else None
        number = last.number + last.is_done if last is not None else 0
        reached = _reached(plan, last)
        due_s = time.monotonic()
        while _left(reached, plan.end):
            if self._run.stopping.wait(max(0.0, due_s - time.monotonic())):
                return
            step = interrupted
            if step is None:
                end = offsets.step(reached, plan.end, self._options.step_offsets)
                step = ReplayStep(number, reached, end)
            interrupted = None
            yield step
            if self._options.rate:
                due_s += _left(step.start, step.end) / self._options.rate
            # No burst after a slow step.
            due_s = max(due_s, time.monotonic() - self._options.interval_ns / SECOND_NS)
            number, reached = number + 1, step.end

    def _send(self, plan: ReplayPlan, step: ReplayStep) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        messages = self._wanted(step.start, step.end)
        topic = F.lit(self._options.to_topic)
        if TOPIC_PLACE in self._options.to_topic:
            topic = F.replace(topic, F.lit(TOPIC_PLACE), F.col("topic"))
        queues = len(list(offsets.spans(step.start, step.end)))
        tasks = min(max(1, queues), self._run.spark.sparkContext.defaultParallelism)
        target = self._options.sink
        if self._options.to_addresses:
            target["addresses"] = ",".join(self._options.to_addresses)
        observed = Observation()
        (
            messages.repartition(tasks, *_QUEUE)
            .sortWithinPartitions(*_QUEUE, "offset")
            .select(*sent_columns(messages), topic.alias("topic"))
            .observe(observed, F.count(F.lit(1)).alias("count"))
            .write.format("martlet")
            .mode("append")
            .options(**target)
            .option("applicationId", plan.name)
            .option("batchId", step.number)
            .save()
        )
        return int(observed.get["count"])

    def _wanted(self, start: Position, end: Position) -> DataFrame:
        from pyspark.sql import functions as F

        messages = self._source.between(start, end)
        if not self._options.where:
            return messages
        # A JSON field must not replace a column that is sent.
        kept = messages.withColumn(_KEPT, F.struct(*messages.columns))
        with query_errors_as(f"--where={self._options.where}"):
            fields = with_fields(kept, self._options.json_schema)
            return fields.where(self._options.where).select(f"{_KEPT}.*")


def _left(start: Position, end: Position) -> int:
    return offsets.unread(offsets.spans(start, end))


def _reached(plan: ReplayPlan, last: ReplayStep | None) -> Position:
    """Return the position up to which all steps are completed."""
    if last is None:
        return plan.start
    return last.end if last.is_done else last.start


def _terms(options: ReplayJobOptions) -> dict[str, object]:
    """Return the options that must not change during a replay; the rate may."""
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
        "Send earlier messages of a topic, or those of an archive, to a topic: all or those that"
        " match a condition, at a limited rate, each exactly once, even if the job is killed and"
        " started again."
    ),
    options=ReplayJobOptions,
    work=_work,
    check=_check,
)
