"""The page of an audit: the verdict, the findings, plots of each topic by the hour, and tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from martlet.broker.tracing.finish_ages import BOUNDS_NS
from martlet.pipeline.audit.journal import HOUR_NS
from martlet.pipeline.audit.result import EARLIER, Audit, CountLine
from martlet.pipeline.html_page import HtmlTable, Page, Plot, Section, Text
from martlet.text import format_duration

MAX_PLOTTED_TOPICS = 50
"""The topics with most messages have plots; the tables have all topics."""
_COLUMNS = (
    "topic", "channel", "hour", "published", "delivered", "finished", "retried", "dead", "lost",
    "doubled", "open", "p50_ms", "p99_ms",
)  # fmt: skip
_OUTCOMES = ("delivered", "finished", "retried", "dead", "lost")
_NOTES = {
    "hour": "by which messages were stored, and channels counted, UTC; 'earlier' sums up what"
    " segments had that the broker has deleted",
    "published": "messages that were stored",
    "delivered": "deliveries to consumers; a message that comes again counts again",
    "finished": "messages that consumers finished",
    "retried": "deliveries that were not a message's first",
    "dead": "messages that were given up, and are dead letters now; see martlet dead-letters",
    "lost": "messages that should be in the log and are not",
    "doubled": "messages that the log has twice",
    "open": "messages that the channel has yet to finish",
    "p50_ms": "half of the messages were finished within this time from their publish",
    "p99_ms": "99 % of the messages were finished within this time from their publish",
}
_LOG_NOTES = {
    "segments": "files of the log",
    "records": "entries of the log: batches of messages, and the journal of channels",
    "starts": "how often the broker was started, as far as the log goes back",
}


def page_of(audit: Audit) -> Page:
    """Create the page of an audit."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Page("Audit", f"made {now}, in {audit.took_s:.1f} s", tuple(_sections(audit)))


def _sections(audit: Audit) -> Iterator[Section]:
    is_doubtful = bool(audit.dead or audit.doubled)
    yield Text(audit.verdict, "bad" if audit.is_lossy else "warn" if is_doubtful else "good")
    for finding in audit.findings:
        yield Text(audit.describe(finding), "plain" if finding.kind == "doubled" else "bad")
    yield from map(Text, audit.notes)
    totals, rows, lines = audit.totals(), audit.rows(), audit.lines
    sizes: dict[str, int] = {}
    for line in lines:
        sizes[line.topic] = sizes.get(line.topic, 0) + line.counts.get("published", 0)
    topics = sorted(sizes, key=lambda topic: -sizes[topic])
    for topic in topics[:MAX_PLOTTED_TOPICS]:
        yield from _plots(topic, [line for line in lines if line.topic == topic])
    if len(topics) > MAX_PLOTTED_TOPICS:
        yield Text(f"{len(topics) - MAX_PLOTTED_TOPICS} smaller topics have no plots here.")
    columns = [name for name in _COLUMNS if name != "hour"]
    yield HtmlTable(
        "All hours", columns, [[row[name] for name in columns] for row in totals],
        frozenset(n for n, row in enumerate(totals) if row["lost"] or row["lost_of_topic"]),
        _NOTES,
    )  # fmt: skip
    hours = [[row[name] or ("earlier" if name == "hour" else row[name]) for name in _COLUMNS]
             for row in rows]  # fmt: skip
    bad = frozenset(n for n, row in enumerate(rows) if row["lost"] or row["lost_of_topic"])
    yield HtmlTable("By the hour", _COLUMNS, hours, bad, {"hour": _NOTES["hour"]})
    fields = ("broker", "place", "segments", "bytes", "records", "messages", "starts")
    values = [[getattr(log, name) for name in fields] for log in audit.logs]
    yield HtmlTable("Logs", fields, values, notes=_LOG_NOTES)


def _plots(topic: str, lines: list[CountLine]) -> Iterator[Section]:
    hours = sorted({line.hour for line in lines if line.hour != EARLIER})
    if not hours:
        return
    times = [datetime.fromtimestamp(hour * HOUR_NS // 10**9, UTC) for hour in hours]
    by_hour = {(line.channel, line.hour): line for line in lines}
    channels = sorted({line.channel for line in lines if line.channel})

    def counts(channel: str, name: str) -> list[float]:
        hourly = [by_hour.get((channel, hour)) for hour in hours]
        return [line.counts.get(name, 0) if line is not None else 0 for line in hourly]

    series: dict[str, list[float]] = {"published": counts("", "published")}
    for channel in channels:
        series |= {
            f"{channel} {name}": values
            for name in _OUTCOMES
            if any(values := counts(channel, name))
        }
    yield Plot(f"{topic}: messages an hour", times, series, "messages")
    finished: dict[str, list[float]] = {}
    for channel in channels:
        buckets = np.array([line.buckets for line in lines if line.channel == channel])
        total = buckets.sum(axis=0)
        if total.any():
            finished[channel] = total.astype(float).tolist()
    if finished:
        names = [f"≤ {format_duration(bound_ns)}" for bound_ns in BOUNDS_NS] + ["more"]
        first, last = _used(finished)
        shown = {channel: values[first:last] for channel, values in finished.items()}
        title = f"{topic}: from publish to finish"
        yield Plot(title, names[first:last], shown, "messages", "bar")


def _used(series: dict[str, list[float]]) -> tuple[int, int]:
    """Return the range of positions outside of which all series are 0."""
    sums = [sum(values) for values in zip(*series.values(), strict=True)]
    used = [number for number, value in enumerate(sums) if value]
    return used[0], used[-1] + 1
