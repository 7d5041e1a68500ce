"""The Spark tasks of an audit: segments to facts, and facts to count lines and findings.

::

    segments --- decode, a task for some of them ---> facts --- by queue ---> lines and findings
                                                          `--- extents, on the driver ---^

The facts are few, so they are cached for both uses.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from martlet.broker.journal.entries import checkpoint_head
from martlet.broker.recovery.journal_replay import needed_by
from martlet.broker.tracing.counters import COUNTS, FIRST_BUCKET
from martlet.log.record import RecordKind
from martlet.names import is_system
from martlet.pipeline.audit.coverage import Extent, LogRange, missing_from
from martlet.pipeline.audit.facts import SCHEMA, Fact, FactKind, facts_of, state_fact, table
from martlet.pipeline.audit.journal import Journal
from martlet.pipeline.audit.queue_audit import QueueAudit
from martlet.pipeline.audit.record_scan import walk
from martlet.pipeline.audit.result import COUNTED, CountLine, Finding
from martlet.pipeline.audit.segment_listing import ListedSegment, Survey
from martlet.reader.segments import SegmentGone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES = 128 << 20
"""The size of the log that one task reads, or one segment if that is larger."""

COLUMNS = ("published", "bytes", *COUNTED, "committed", "took_ms", "lost", "doubled", "open")
BUCKETS = tuple(f"bucket_{number}" for number in range(COUNTS - FIRST_BUCKET))
_LINE_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("channel", pa.string(), nullable=False),
        pa.field("hour", pa.int64(), nullable=False),
        pa.field("finding", pa.string()),
        *(pa.field(name, pa.int64(), nullable=False) for name in (*COLUMNS, *BUCKETS)),
    ]
)


def read_segments(spark: SparkSession, segments: Sequence[ListedSegment]) -> DataFrame:
    """Return the facts of all segments, evaluated lazily."""
    from pyspark.sql.pandas.types import from_arrow_schema

    tasks = _tasks(segments, spark.sparkContext.defaultParallelism)

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gc.freeze()  # Spark's workers collect all garbage after each task.
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for segment in tasks[task]:
                    yield table(decoded(segment))

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    return numbers.mapInArrow(decode, from_arrow_schema(SCHEMA))


def _tasks(segments: Sequence[ListedSegment], cores: int) -> list[list[ListedSegment]]:
    """Divide segments into tasks of similar size, at least one for each core."""
    total = sum(segment.bytes for segment in segments)
    task_bytes = min(TASK_BYTES, max(1, total // max(1, cores)))
    tasks: list[list[ListedSegment]] = []
    full = task_bytes
    for segment in segments:
        if full >= task_bytes:
            tasks.append([])
            full = 0
        tasks[-1].append(segment)
        full += segment.bytes
    return tasks


def decoded(segment: ListedSegment) -> list[Fact]:
    """Read the facts of a segment; a fact GONE if the broker has removed the segment."""
    try:
        with segment.opened() as data:
            return list(facts_of(segment.broker, walk(data, segment.base), last=segment.last))
    except SegmentGone:
        return [Fact(segment.broker, 0, FactKind.GONE, segment.base, segment.base)]


def checkpoint_facts(survey: Survey) -> list[Fact]:
    """Return the facts of a log's checkpoint."""
    loaded = survey.checkpoint
    if loaded is None:
        return []
    snapshot, position, epoch, _ = checkpoint_head(loaded)
    journal = Journal()
    for kind, topic, entry in loaded.entries:
        if kind in (RecordKind.TOPOLOGY, RecordKind.CURSOR):
            journal.apply(kind, topic, entry, position, epoch, 0)
    segment = max([p.base for p in survey.segments if p.base <= position], default=0)
    facts = [
        state_fact(survey.broker, topic, segment, state.to_json, checkpoint=True)
        for topic, state in journal.topics.items()
    ]
    ends = {topic.id: topic.end_offset or 0 for topic in snapshot.topics}
    names = {topic.id: topic.name for topic in snapshot.topics}
    for topic, needed in needed_by(loaded).items():
        if is_system(names.get(topic, "")):
            stretches = [(offset, offset + 1) for offset in needed.below]
            if needed.floor < ends[topic]:
                stretches.append((needed.floor, ends[topic]))
            recorded = json.dumps(stretches).encode()
            facts.append(
                Fact(survey.broker, topic, FactKind.NEEDED, segment, position, payload=recorded)
            )
    return facts


def extents_of(surveys: Sequence[Survey], general: Sequence[Fact]) -> dict[str, Extent]:
    """Return the extent of each broker's log."""
    return {
        survey.broker: _extent(survey, [f for f in general if f.broker == survey.broker])
        for survey in surveys
    }


def _extent(survey: Survey, facts: list[Fact]) -> Extent:
    segments = sorted((f for f in facts if f.kind == FactKind.SEGMENT), key=lambda f: f.segment)
    present = [(fact.segment, fact.segment + fact.body_bytes) for fact in segments]
    gone = any(fact.kind == FactKind.GONE for fact in facts)
    recorded: list[tuple[int, list[Any]]] = [
        tuple(json.loads(fact.payload)) for fact in segments if fact.payload != b"null"
    ]
    if survey.checkpoint is not None:
        head = checkpoint_head(survey.checkpoint)
        if head.snapshot.stored is not None:
            recorded.append((head.position, list(head.snapshot.stored)))
    if survey.is_running:
        # The broker may have started new segments after the list.
        listed_end = survey.segments[-1].base + survey.segments[-1].bytes
        recorded = [
            (position, [(first, min(stop, listed_end)) for first, stop in stretches])
            for position, stretches in recorded
        ]
    epochs = {fact.epoch: fact.position for fact in facts if fact.kind == FactKind.EPOCH}
    passed = [
        stretch for f in facts if f.kind == FactKind.EPOCH for stretch in json.loads(f.payload)
    ]
    damage: list[LogRange] = []
    torn: list[LogRange] = []
    for fact in facts:
        if fact.kind == FactKind.DAMAGE:
            lost = LogRange(fact.segment, fact.position, fact.end_position, _reason(fact))
            is_torn = any(first <= lost.start < end for first, end in passed)
            (torn if is_torn else damage).append(lost)
    written_end = max([fact.position for fact in segments], default=0)
    damage += [*_shortened(survey, segments), *_cut(survey, segments, written_end)]
    return Extent(
        broker=survey.broker,
        segments=present,
        missing=[] if gone else [_missing(segments, *s) for s in missing_from(present, recorded)],
        damage=sorted(damage, key=lambda lost: lost.start),
        torn=torn,
        epochs=epochs,
        newest_head=max([fact.segment for fact in segments if fact.first], default=-1),
        written_end=written_end,
        gone=gone,
    )


def _missing(segments: list[Fact], start: int, end: int) -> LogRange:
    """Describe a missing range: the rest of a truncated file, or a segment."""
    usual_bytes = sorted(fact.body_bytes for fact in segments)[len(segments) // 2]
    for fact in segments:
        if fact.segment + fact.body_bytes == start and fact.body_bytes < usual_bytes:
            return LogRange(fact.segment, start, end, "the file is cut here")
    return LogRange(start, start, end, "the segment is missing")


def _shortened(survey: Survey, segments: list[Fact]) -> list[LogRange]:
    """Return the missing end of the newest file, if it is shorter than it was allocated."""
    newest = survey.segments[-1]
    recorded = [fact.payload for fact in segments if fact.segment == newest.base]
    behind = newest.base + newest.bytes
    for _, stretches in filter(None, map(json.loads, recorded)):
        for first, end in stretches:
            if first <= newest.base < end and behind < end:
                return [LogRange(newest.base, behind, end, "the file is cut here")]
    return []


def _cut(survey: Survey, segments: list[Fact], written_end: int) -> list[LogRange]:
    """Return the missing end of the log, if the next segment or the checkpoint was further."""
    if not segments or survey.is_running:
        return []
    newest = segments[-1]
    behind = newest.segment + newest.body_bytes
    if newest.only:
        return [LogRange(behind, behind, behind + 1, "the segment that was begun here is missing")]
    if survey.checkpoint is None:
        return []
    position = int(json.loads(survey.checkpoint.entries[0][2])["position"])
    if position <= written_end:
        return []
    reason = f"the log is cut: the checkpoint is of position {position}"
    return [LogRange(segments[-1].segment, written_end, position, reason)]


def _reason(fact: Fact) -> str:
    recorded = json.loads(fact.payload)
    what = f" (a {recorded['kind']} record)" if "kind" in recorded else ""
    if "first" in recorded:
        offsets = f"offsets {recorded['first']} to {recorded['first'] + recorded['count'] - 1}"
        what = f" (a batch record: {offsets} of topic number {recorded['topic']})"
    return f"{recorded['reason']}{what}"


def topic_names(facts: Iterable[Fact]) -> set[str]:
    """Return the names of all topics in some facts, except system topics."""
    states = (json.loads(fact.payload) for fact in facts if fact.kind == FactKind.STATE)
    return {state["name"] for state in states if not is_system(state["name"])}


def read_books(facts: DataFrame, extents: dict[str, Extent], topics: Sequence[str]) -> DataFrame:
    """Return the count lines and findings of all queues, evaluated lazily."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def book(rows: pa.Table) -> pa.Table:
        columns = [rows.column(name).to_pylist() for name in SCHEMA.names]
        facts = [Fact(*fields) for fields in zip(*columns, strict=True)]
        audit = QueueAudit(extents[facts[0].broker], facts)
        if topics and audit.topic not in topics and not is_system(audit.topic):
            return lines_table((), ())
        return lines_table(audit.lines.values(), audit.findings)

    cores = facts.sparkSession.sparkContext.defaultParallelism
    queues = facts.where("topic > 0").repartition(cores, "broker", "topic")
    return queues.groupBy("broker", "topic").applyInArrow(book, from_arrow_schema(_LINE_SCHEMA))


def lines_table(lines: Iterable[CountLine], findings: Iterable[Finding]) -> pa.Table:
    """Convert lines and findings to columns, findings as JSON."""
    rows: list[dict[str, Any]] = []
    for line in lines:
        row = {"topic": line.topic, "channel": line.channel, "hour": line.hour}
        row |= {name: line.counts.get(name, 0) for name in COLUMNS}
        rows.append(row | dict(zip(BUCKETS, line.buckets.tolist(), strict=True)))
    nothing = dict.fromkeys((*COLUMNS, *BUCKETS), 0)
    rows += [
        {
            "topic": finding.topic,
            "channel": finding.channel,
            "hour": 0,
            "finding": json.dumps(asdict(finding)),
            **nothing,
        }
        for finding in findings
    ]
    return pa.Table.from_pylist(rows, schema=_LINE_SCHEMA)


def finding_of(text: str) -> Finding:
    """Decode a finding from JSON."""
    fields = json.loads(text)
    fields["places"] = [LogRange(**lost) for lost in fields["places"]]
    fields["stretches"] = [tuple(stretch) for stretch in fields["stretches"]]
    return Finding(**fields)


def line_of(fields: dict[str, Any]) -> CountLine:
    """Convert a row to a count line."""
    line = CountLine(fields["topic"], fields["channel"], fields["hour"])
    line.counts.update({name: fields[name] for name in COLUMNS})
    line.buckets = np.array([fields[name] for name in BUCKETS], np.int64)
    return line


def checkpointed(spark: SparkSession, surveys: Iterable[Survey]) -> DataFrame:
    """Return the facts of all checkpoints."""
    facts = [fact for survey in surveys for fact in checkpoint_facts(survey)]
    return spark.createDataFrame(pa.Table.from_batches([table(facts)]))
