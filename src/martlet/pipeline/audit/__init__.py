"""The audit job: account for every message in the logs of all brokers.

For each topic, channel and hour it counts the messages that were published, delivered, finished,
retried, dead-lettered, lost and duplicated, and the time from publish to finish.  It reads the log
files, of running and of stopped brokers, and does not rely on the brokers' own statistics.  A loss
is reported with its topic, channels, offsets, segment file and position.

``docs/pipelines/audit.md`` defines each number.

It may import the client, Spark's brokers and the log. Start reading with
`martlet.pipeline.audit.queue_audit`, which counts one queue.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from martlet.addresses import lookup_address
from martlet.client.copied_folder import Copies, refusal
from martlet.log.folder import NoLog
from martlet.pipeline.audit.coverage import Extent
from martlet.pipeline.audit.facts import Fact, FactKind
from martlet.pipeline.audit.options import AuditOptions
from martlet.pipeline.audit.result import Audit, Finding, LogSummary
from martlet.pipeline.audit.segment_listing import Survey, survey_broker, survey_folder
from martlet.pipeline.job import LOSS, OK, Job, JobFailed, Run, retried, session
from martlet.reader.brokers.addresses import NO_TOKEN, OperatorToken, SparkTls
from martlet.reader.brokers.brokers import NoSuchTopicError
from martlet.reader.brokers.endpoint import CopiedFolder, Endpoint
from martlet.text import MILLISECOND_NS, counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JOB", "Audit", "AuditOptions", "audit"]

_MAX_ATTEMPTS = 3
"""How often a log is read if segments are removed meanwhile."""
_GENERAL = 0
_HEAD_BYTES = 1 << 20
"""How much of a segment is read for the state of the log, with which it begins."""


def audit(options: AuditOptions, spark: SparkSession | None = None) -> Audit:
    """Audit the logs of brokers.

    Raises:
        JobFailed: a folder is not a broker's data folder.
        NoSuchTopicError: no log has a topic that the options name.
        BrokerUnreachable, BrokerRefused: a broker does not answer, or rejects the request.
    """
    require_topics(options)
    with session("audit", options, spark) as own:
        return _audit(options, Run(own), say=False)


def _audit(options: AuditOptions, run: Run, *, say: bool) -> Audit:
    once = partial(_audit_once, options, run, say=say)
    result = retried(once, run)
    for _ in range(_MAX_ATTEMPTS - 1):
        if not result.changed:
            break
        result = retried(once, run)
    return result


def _audit_once(options: AuditOptions, run: Run, *, say: bool) -> Audit:
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    from martlet.pipeline.audit import reading

    started_s = time.monotonic()
    surveys = _surveys(options)
    segments = [segment for survey in surveys for segment in survey.segments]
    if say:
        length = sum(survey.bytes for survey in surveys)
        of = f"{counted(len(segments), 'segment')} of {counted(len(surveys), 'broker')}"
        run.say(f"reading {of}, {length / 1e6:,.0f} MB")
    cores = run.spark.sparkContext.defaultParallelism
    facts = reading.read_segments(run.spark, segments)
    facts = facts.unionByName(reading.checkpointed(run.spark, surveys))
    facts = facts.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        rows = facts.where(F.col("topic") == _GENERAL).collect()
        general = [Fact(*row) for row in rows]
        extents = reading.extents_of(surveys, general)
        books = reading.read_books(facts, extents, options.topics)
        books = books.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            sums = [F.sum(name).alias(name) for name in (*reading.COLUMNS, *reading.BUCKETS)]
            keys = ("topic", "channel", "hour")
            lines = books.where("finding IS NULL").repartition(cores, *keys).groupBy(*keys)
            counts = [reading.line_of(row.asDict()) for row in lines.agg(*sums).collect()]
            findings = [
                reading.finding_of(row.finding)
                for row in books.where("finding IS NOT NULL").select("finding").collect()
            ]
        finally:
            books.unpersist()
    finally:
        facts.unpersist()
    findings += unexplained(extents, findings)
    logs = [_summary(survey, extents[survey.broker], general) for survey in surveys]
    took_s = time.monotonic() - started_s
    run.meter.batch(sum(log.messages for log in logs), took_s)
    return Audit(
        lines=sorted(counts, key=lambda line: (line.topic, line.channel, line.hour)),
        findings=sorted(findings, key=attrgetter("kind", "topic", "stretches")),
        logs=logs,
        took_s=took_s,
        changed=any(extent.gone for extent in extents.values()),
    )


def require_topics(options: AuditOptions) -> None:
    """Check that the logs have the topics that the options name, before Spark starts.

    The checkpoints name topics, the newest segments, and the heads of the others.

    Raises:
        JobFailed, BrokerUnreachable, BrokerRefused: as `audit`.
        NoSuchTopicError: none of them names a topic.
    """
    missing, existing = set(options.topics), set[str]()
    if not missing:
        return
    from martlet.pipeline.audit import reading

    surveys = _surveys(options)
    segments = [segment for survey in surveys for segment in reversed(survey.segments)]
    segments.sort(key=lambda segment: not segment.last)
    sources = chain(
        map(reading.checkpoint_facts, surveys),
        (reading.decoded(s if s.last else s.head(_HEAD_BYTES)) for s in segments),
    )
    for facts in sources:
        existing |= reading.topic_names(facts)
        if missing <= existing:
            return
    there = ", ".join(sorted(existing)) or "none"
    raise NoSuchTopicError(f"the logs have no topic {min(missing - existing)!r}; there is {there}")


def _surveys(options: AuditOptions) -> list[Survey]:
    files = options.tls_ca_file, options.tls_cert_file, options.tls_key_file
    try:
        tls = SparkTls.parse(*files, verify=options.tls_verify)
        token = OperatorToken.checked(
            options.operator_token_file, options.http_addresses, options.trusted_brokers
        )
    except ValueError as error:
        raise JobFailed(str(error)) from None

    def endpoint(address: str, token: OperatorToken = NO_TOKEN) -> Endpoint:
        return Endpoint(address, options.timeout_ns // MILLISECOND_NS, tls, token=token)

    addresses = dict.fromkeys(options.http_addresses)
    for lookup in options.lookup_addresses:
        addresses |= dict.fromkeys(_known_by(endpoint(lookup)))
    surveys = [survey_broker(endpoint(address, token)) for address in addresses]
    try:
        surveys += [survey_folder(path) for path in options.data_paths]
    except NoLog as error:
        raise JobFailed(f"--data-path: {error}") from error
    return _distinct(surveys)


def _distinct(surveys: list[Survey]) -> list[Survey]:
    """Return one survey of each broker, which may be named twice, by its address and its folder, or
    by several replicas. Raises CopiedFolder.
    """
    by_broker: dict[str, Survey] = {}
    for survey in surveys:
        first = by_broker.setdefault(survey.broker, survey)
        if first.is_replica or survey.is_replica or not (first.folder and survey.folder):
            continue
        if first.folder != survey.folder:
            copies = Copies(survey.broker, (first.source, survey.source))
            raise CopiedFolder(refusal(copies, "the audit would leave out the log of one"))
    return list(by_broker.values())


def _known_by(endpoint: Endpoint) -> list[str]:
    """Return the HTTP addresses of the brokers that a lookup knows. Raises JobFailed: one is none;
    a log that is left out is no audit.
    """
    try:
        return [
            str(lookup_address(node["broadcast_address"], node["http_port"]))
            for node in endpoint.nodes()
        ]
    except ValueError as error:
        raise JobFailed(
            f"the lookup daemon at {endpoint.address} names a broker that cannot be read: {error}"
        ) from None
    finally:
        endpoint.close()


def unexplained(extents: dict[str, Extent], findings: list[Finding]) -> list[Finding]:
    """Return findings for damaged or missing ranges that no lost message or record explains."""
    explained = {(finding.broker, lost.start) for finding in findings for lost in finding.places}
    damage = []
    for broker, extent in extents.items():
        for lost in [*extent.damage, *extent.missing]:
            if (broker, lost.start) not in explained:
                text = "no message and no finish record is known that stood there"
                damage.append(Finding("damage", broker, "", 0, "", [], 0, {}, [lost], text))
    return damage


def _summary(survey: Survey, extent: Extent, general: list[Fact]) -> LogSummary:
    segments = [
        fact for fact in general if fact.broker == survey.broker and fact.kind == FactKind.SEGMENT
    ]
    return LogSummary(
        broker=survey.broker,
        place=survey.source,
        segments=len(segments),
        bytes=sum(fact.body_bytes for fact in segments),
        records=sum(fact.messages for fact in segments),
        messages=sum(fact.end for fact in segments),
        starts=len(extent.epochs),
        since_ns=min((fact.since_ns for fact in segments if fact.since_ns), default=0),
        until_ns=max((fact.until_ns for fact in segments), default=0),
        is_whole=extent.start == 0,
        trouble=survey.trouble,
    )


def _work(options: AuditOptions, run: Run) -> int:
    result = _audit(options, run, say=not options.json)
    if options.out:
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "audit.json").write_text(result.json() + "\n", encoding="utf-8")
        result.page().write(folder / "audit.html")
    run.say(result.json() if options.json else result.text())
    if options.out and not options.json:
        run.say(f"wrote {Path(options.out) / 'audit.html'} and audit.json")
    sys.stdout.flush()
    if result.is_lossy or (options.fail_on_doubled and result.doubled):
        return LOSS
    return OK


JOB = Job(
    name="audit",
    description="Audit the logs of brokers: what was published, delivered, finished, lost.",
    options=AuditOptions,
    work=_work,
    check=require_topics,
    has_steps=False,
)
