"""The result of an audit: hourly counts, findings and summaries of the logs; as a table for a
terminal, and as JSON.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from martlet.broker.offset_ranges import Stretch
from martlet.broker.tracing.counters import COUNTS, FIRST_BUCKET
from martlet.broker.tracing.finish_ages import BOUNDS_NS
from martlet.pipeline.audit.coverage import LogRange
from martlet.pipeline.audit.journal import HOUR_NS
from martlet.text import counted, format_duration

if TYPE_CHECKING:
    from martlet.pipeline.html_page import Page

EARLIER = -1
"""In place of an hour: before the first message that the log still has."""
_SHOWN = ("published", "delivered", "finished", "retried", "dead", "lost", "doubled")
_RARE = ("dropped", "filtered")
"""Columns that are shown where they count anything."""
_MAX_FINDINGS = 50
"""The findings to print on a terminal; JSON has all."""
_MAX_PLACES = 3
COUNTED = (
    "delivered", "finished", "retried", "requeued", "timed_out", "dead", "dropped", "filtered",
)  # fmt: skip


@dataclass
class CountLine:
    """The counts of a channel in one hour, or of the topic itself if `channel` is empty."""

    topic: str
    channel: str
    hour: int
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    buckets: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(COUNTS - FIRST_BUCKET, np.int64)
    )
    """The histogram of the times from publish to finish."""


@dataclass
class Finding:
    """A problem in a log."""

    kind: str
    """``lost`` messages, missing ``finish`` records, ``doubled`` messages, or ``damage`` that
    explains none of these."""
    broker: str
    topic: str
    queue: int
    channel: str
    """The channel of finish records."""
    stretches: Sequence[Stretch]
    """The offsets, or the first ones of very many."""
    count: int
    unfinished: dict[str, int]
    """By channel, the number of messages that it had not finished."""
    places: Sequence[LogRange]
    text: str = ""


@dataclass(frozen=True)
class LogSummary:
    """The summary of one broker's log."""

    broker: str
    place: str
    segments: int
    bytes: int
    records: int
    messages: int
    starts: int
    since_ns: int
    until_ns: int
    """`since_ns` and `until_ns`: the timestamps of the first and the last record."""
    is_whole: bool
    """Whether the log still begins at position 0."""
    trouble: str = ""


@dataclass(frozen=True)
class Audit:
    """The result of an audit."""

    lines: Sequence[CountLine]
    """The counts by topic, channel and hour; those of a topic have an empty channel."""
    findings: Sequence[Finding]
    logs: Sequence[LogSummary]
    took_s: float
    changed: bool = False
    """Whether brokers removed segments during the audit, so that their messages cannot be judged.
    """

    @property
    def lost(self) -> int:
        """The number of lost messages."""
        return sum(finding.count for finding in self.findings if finding.kind == "lost")

    @property
    def doubled(self) -> int:
        """The number of messages that are stored twice."""
        return sum(finding.count for finding in self.findings if finding.kind == "doubled")

    @property
    def dead(self) -> int:
        """The number of messages that channels gave up."""
        return sum(line.counts.get("dead", 0) for line in self.lines if line.channel)

    @property
    def is_lossy(self) -> bool:
        """Whether messages or finish records are lost, or damage may have contained some."""
        return any(finding.kind != "doubled" for finding in self.findings)

    # the rows of the table

    def rows(self) -> list[dict[str, Any]]:
        """Build a row for each channel and hour, with the topic's counts of that hour; a topic
        without channels has rows of its own.
        """
        topics = {(line.topic, line.hour): line for line in self.lines if not line.channel}
        channels: dict[str, set[str]] = {}
        for line in self.lines:
            if line.channel:
                channels.setdefault(line.topic, set()).add(line.channel)
        lines = {(line.topic, line.channel, line.hour): line for line in self.lines}
        keys = {key for key in lines if key[1]}
        for topic, hour in topics:
            keys |= {(topic, channel, hour) for channel in channels.get(topic, {""})}
        return [_row(*key, lines.get(key), topics.get((key[0], key[2]))) for key in sorted(keys)]

    def totals(self) -> list[dict[str, Any]]:
        """Build a row for each channel over all hours."""
        sums: dict[tuple[str, str], CountLine] = {}
        for line in self.lines:
            total = sums.setdefault(
                (line.topic, line.channel), CountLine(line.topic, line.channel, 0)
            )
            for name, count in line.counts.items():
                total.counts[name] += count
            total.buckets = total.buckets + line.buckets
        with_channels = {topic for topic, channel in sums if channel}
        rows = [
            _row(topic, channel, 0, line, sums.get((topic, "")))
            for (topic, channel), line in sorted(sums.items())
            if channel or topic not in with_channels
        ]
        for row in rows:
            del row["hour"]
        return rows

    # as text

    def text(self) -> str:
        """Format the table, the findings and the verdict for a terminal."""
        blocks = [self._table(), *self._finding_lines(), self._verdict()]
        return "\n".join(block for block in blocks if block)

    def _table(self) -> str:
        hourly = self.rows()
        rare = (name for name in _RARE if any(row[name] for row in hourly))
        shown = (*_SHOWN, *rare)
        rows = [("topic", "channel", "hour", *shown, "p50", "p99")]
        for row in hourly:
            latencies = [_shown_ms(row[name]) for name in ("p50_ms", "p99_ms")]
            counts = [f"{row[name]:,}" for name in shown]
            hour = row["hour"] or "earlier"
            rows.append((row["topic"], row["channel"] or "-", hour, *counts, *latencies))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for texts in rows:
            cells = [
                cell.ljust(width) if number < 3 else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(texts, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _finding_lines(self) -> list[str]:
        lines = [self.describe(finding) for finding in self.findings[:_MAX_FINDINGS]]
        if len(self.findings) > _MAX_FINDINGS:
            lines.append(f"... and {len(self.findings) - _MAX_FINDINGS} more findings")
        return ["", *lines] if lines else []

    def describe(self, finding: Finding) -> str:
        """Describe a finding; with several brokers, also name the log."""
        sources = [log.place for log in self.logs if log.broker == finding.broker]
        where = f"\n  in the log of {sources[0]}" if sources and len(self.logs) > 1 else ""
        return describe(finding) + where

    def _verdict(self) -> str:
        messages = sum(log.messages for log in self.logs)
        read = (
            f"{_many(messages, 'message', 'messages')} in"
            f" {counted(sum(log.segments for log in self.logs), 'segment')} of"
            f" {counted(len(self.logs), 'broker')},"
            f" {sum(log.bytes for log in self.logs) / 1e6:,.0f} MB, read in {self.took_s:.1f} s"
        )
        return "\n".join(["", *self.notes, f"{read}: {self.verdict}"])

    @property
    def notes(self) -> list[str]:
        """The notes about what the logs do not have, and why."""
        notes = []
        for log in self.logs:
            if not log.is_whole:
                since = datetime.fromtimestamp(log.since_ns // 10**9, UTC)
                notes.append(
                    f"the log of {log.place} goes back to {since:%Y-%m-%d %H:%M:%S}: the broker has"
                    " deleted earlier segments, once no channel needed their messages"
                )
        earlier = [line for line in self.lines if line.hour == EARLIER and not line.channel]
        if count := sum(line.counts.get("published", 0) for line in earlier):
            messages = _many(count, "message", "messages")
            notes.append(f"deleted segments had {messages}, which count as 'earlier'")
        notes += [
            f"{log.place}: {log.trouble}; what may be cut of the log's end cannot be told"
            for log in self.logs
            if log.trouble
        ]
        if self.changed:
            notes.append(
                "a broker deleted segments meanwhile; what is missing of them is not judged"
            )
        return notes

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        finishes = sum(finding.count for finding in self.findings if finding.kind == "finish")
        damaged = sum(finding.kind == "damage" for finding in self.findings)
        counts = (
            (self.lost, "message is lost", "messages are lost"),
            (finishes, "finish record is lost", "finish records are lost"),
            (damaged, "place is damaged", "places are damaged"),
            (self.doubled, "message is stored twice", "messages are stored twice"),
            (self.dead, "message is a dead letter", "messages are dead letters"),
        )
        outcomes = [_many(*count) for count in counts if count[0]]
        return ", ".join(outcomes if self.findings else ["nothing is lost", *outcomes])

    # as JSON

    def json(self) -> str:
        """Format the result as JSON."""
        return json.dumps(
            {
                "lost": self.lost,
                "doubled": self.doubled,
                "is_lossy": self.is_lossy,
                "verdict": self.verdict,
                "totals": _finite(self.totals()),
                "hours": _finite(self.rows()),
                "findings": [_finding_fields(finding) for finding in self.findings],
                "logs": [asdict(log) for log in self.logs],
                "took_s": round(self.took_s, 3),
                "changed": self.changed,
            },
            indent=2,
            allow_nan=False,
        )

    # as a page

    def page(self) -> Page:
        """Create a page with tables and plots."""
        from martlet.pipeline.audit.plots import page_of

        return page_of(self)


def _row(
    topic: str, channel: str, hour: int, line: CountLine | None, of_topic: CountLine | None
) -> dict[str, Any]:
    counts = line.counts if line is not None else {}
    shared = of_topic.counts if of_topic is not None else {}
    buckets = line.buckets if line is not None else np.zeros(len(BOUNDS_NS) + 1, np.int64)
    timed = int(buckets.sum())
    names = [*(f"{bound / 1e6:g}" for bound in BOUNDS_NS), "more"]
    return {
        "topic": topic,
        "channel": channel,
        "hour": None if hour == EARLIER else _hour(hour),
        "published": shared.get("published", 0),
        "bytes": shared.get("bytes", 0),
        **{name: counts.get(name, 0) for name in COUNTED},
        "lost": counts.get("lost", 0) if channel else shared.get("lost", 0),
        "lost_of_topic": shared.get("lost", 0),
        "doubled": shared.get("doubled", 0),
        "open": counts.get("open", 0),
        "mean_ms": round(counts.get("took_ms", 0) / timed, 1) if timed else None,
        "p50_ms": quantile_ms(buckets, 0.5),
        "p99_ms": quantile_ms(buckets, 0.99),
        "within_ms": {names[number]: int(count) for number, count in enumerate(buckets) if count},
    }


def _finite(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put null for a quantile beyond the last bound: JSON has no infinity."""
    return [
        {name: None if value == float("inf") else value for name, value in row.items()}
        for row in rows
    ]


def quantile_ms(buckets: Any, quantile: float) -> float | None:
    """Return the bucket bound of a quantile in milliseconds; None for an empty histogram, infinity
    beyond the last bound.
    """
    total = int(buckets.sum())
    if not total:
        return None
    number = int(np.searchsorted(np.cumsum(buckets), quantile * total))
    return BOUNDS_NS[number] / 1e6 if number < len(BOUNDS_NS) else float("inf")


def _hour(hour: int) -> str:
    return datetime.fromtimestamp(hour * HOUR_NS // 10**9, UTC).strftime("%Y-%m-%d %H:00")


def _shown_ms(bound_ms: float | None) -> str:
    if bound_ms is None:
        return "-"
    if bound_ms == float("inf"):
        return f">{format_duration(BOUNDS_NS[-1])}"
    return f"<={format_duration(int(bound_ms * 1e6))}"


def describe(finding: Finding) -> str:
    """Describe a finding with its ranges of the log."""
    where = f"topic {finding.topic!r}" if finding.topic else f"broker {finding.broker}"
    if finding.queue:
        where += f" queue {finding.queue}"
    if finding.channel:
        where += f" channel {finding.channel!r}"
    offsets = ", ".join(f"{first} to {end - 1}" for first, end in finding.stretches if end > first)
    messages = _many(finding.count, "message", "messages")
    title = {
        "lost": f"LOST: {messages} of {where}, offsets {offsets}",
        "finish": f"LOST: {_many(finding.count, 'finish record', 'finish records')} of {where}"
        + (f", of offsets {offsets} and older ones" if offsets else ""),
        "doubled": f"DOUBLED: {messages} of {where}, offsets {offsets}",
        "damage": f"DAMAGED: {where}",
    }[finding.kind]
    lines = [title]
    unfinished = [
        f"{channel!r} had yet to finish {count:,}" if channel else f"{count:,} waited for a channel"
        for channel, count in sorted(finding.unfinished.items())
    ]
    if finding.kind == "lost" and finding.topic and not finding.topic.startswith("%"):
        lines.append(f"  {'; '.join(unfinished) or 'every channel had finished them'}")
    if finding.text:
        lines.append(f"  {finding.text}")
    lines += [
        f"  {lost.file}, position {lost.start} to {lost.end}"
        f" (byte {lost.start - lost.base} of the file): {lost.reason}"
        for lost in finding.places[:_MAX_PLACES]
    ]
    if len(finding.places) > _MAX_PLACES:
        lines.append(f"  and {len(finding.places) - _MAX_PLACES} places more")
    return "\n".join(lines)


def _finding_fields(finding: Finding) -> dict[str, Any]:
    fields = asdict(finding)
    fields["offsets"] = [list(stretch) for stretch in fields.pop("stretches")]
    fields["places"] = [
        {**asdict(lost), "file": lost.file, "byte": lost.start - lost.base}
        for lost in finding.places
    ]
    return fields


def _many(count: int, one: str, more: str) -> str:
    return counted(count, one, more, form=",")
