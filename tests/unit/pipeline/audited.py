"""The log of a simulated broker, audited without Spark, with whatever a test does to its files."""

from __future__ import annotations

from collections import defaultdict

from tests.unit.broker.core import Core

from martlet.log import checkpoint_file as checkpoint
from martlet.log.checkpoint_file import Checkpoint
from martlet.log.record import Header, RecordKind, journal_record, read_header
from martlet.log.recovery import RecoveryReport, scan
from martlet.pipeline.audit import unexplained
from martlet.pipeline.audit.facts import Fact, facts_of
from martlet.pipeline.audit.queue_audit import QueueAudit
from martlet.pipeline.audit.reading import checkpoint_facts, extents_of
from martlet.pipeline.audit.record_scan import walk
from martlet.pipeline.audit.result import Audit
from martlet.pipeline.audit.segment_listing import ListedSegment, Survey

BROKER = "b"


class Files:
    """The files of a broker's log, as they are when this is made, to be damaged and audited.

    Attributes:
        segments: their bytes, by base.
        checkpoint: its content.
    """

    def __init__(self, core: Core) -> None:
        self.segments = {s.base: bytearray(s.view) for s in core.storage.segments()}
        loaded = checkpoint.load(core.storage)
        self.checkpoint = loaded if isinstance(loaded, Checkpoint) else None
        self._headers = [header for header, _ in scan(core.storage.segments(), 0, RecoveryReport())]

    def headers(self, kind: RecordKind, topic: int = 0) -> list[Header]:
        """The records of a kind, in order."""
        return [h for h in self._headers if h.kind == kind and topic in (0, h.topic)]

    def headers_of_all(self) -> list[Header]:
        """All records, in order."""
        return list(self._headers)

    def damage(self, header: Header, at: int = 100) -> None:
        """Change a byte of a record."""
        base = self.base_of(header)
        self.segments[base][header.position - base + min(at, header.length - 1)] ^= 0xFF

    def drop(self, header: Header) -> None:
        """Put something else in the place of a record, so that nothing looks damaged."""
        base = self.base_of(header)
        at = header.position - base
        filler = journal_record(
            RecordKind.TRACE, bytes(header.length - 80), position=header.position,
            epoch=header.epoch, topic=0, stored_at_ns=header.stored_at_ns,
        )  # fmt: skip
        assert len(filler) == header.length
        self.segments[base][at : at + header.length] = filler
        read_header(self.segments[base], at, header.position)

    def base_of(self, header: Header) -> int:
        """Of the segment that a record is in."""
        return max(base for base in self.segments if base <= header.position)

    def audit(self) -> Audit:
        """Return the audit of the files."""
        bases = sorted(self.segments)
        segments = tuple(
            ListedSegment(BROKER, base, len(self.segments[base]), -1, base == bases[-1], "", None)
            for base in bases
        )
        survey = Survey(BROKER, "there", segments, self.checkpoint, is_running=False)
        facts: list[Fact] = checkpoint_facts(survey)
        for segment in segments:
            data = memoryview(bytes(self.segments[segment.base]))
            facts += facts_of(BROKER, walk(data, segment.base), last=segment.last)
        extents = extents_of([survey], [fact for fact in facts if not fact.topic])
        by_topic: dict[int, list[Fact]] = defaultdict(list)
        for fact in facts:
            by_topic[fact.topic].append(fact)
        books = [QueueAudit(extents[BROKER], own) for topic, own in by_topic.items() if topic]
        findings = [finding for book in books for finding in book.findings]
        findings += unexplained(extents, findings)
        lines = [line for book in books for line in book.lines.values()]
        return Audit(lines, findings, [], 0)


def audited(core: Core) -> Audit:
    """Audit a broker, with its journal written."""
    core.broker.write_journal()
    return Files(core).audit()


def counts_of(audit: Audit, topic: str, channel: str = "") -> dict[str, int]:
    """The counts of a channel, or of the topic itself, over all hours, but for those that are 0."""
    counts: dict[str, int] = defaultdict(int)
    for line in audit.lines:
        if (line.topic, line.channel) == (topic, channel):
            for name, count in line.counts.items():
                counts[name] += count
    return {name: count for name, count in counts.items() if count and name != "bytes"}
