"""The page of an audit: the verdict, what is wrong, and each topic's hours as plots."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from martlet.broker.tracing.finish_ages import BOUNDS_NS
from martlet.durations import format_duration
from martlet.pipeline.audit.journal import HOUR_NS
from martlet.pipeline.audit.result import hours_of
from martlet.pipeline.html_page import HtmlTable, Page, Plot, Section, Text

if TYPE_CHECKING:
    from martlet.pipeline.audit.finding import CountLine
    from martlet.pipeline.audit.result import Audit

MAX_TOPICS = 50
"""So many topics have plots, those with most messages; the tables have all."""
_COLUMNS = (
    "topic", "channel", "hour", "published", "delivered", "finished", "retried", "dead", "lost",
    "doubled", "open", "p50_ms", "p99_ms",
)  # fmt: skip
_OUTCOMES = ("delivered", "finished", "retried", "dead", "lost")


def page_of(audit: Audit) -> Page:
    """The page."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Page("Audit", f"made {now}, in {audit.took_s:.1f} s", tuple(_sections(audit)))


def _sections(audit: Audit) -> Iterator[Section]:
    yield Text(audit.verdict, "bad" if audit.is_lossy else "good")
    for finding in audit.findings:
        yield Text(audit.describe(finding), "plain" if finding.kind == "doubled" else "bad")
    totals = audit.totals()
    columns = [name for name in _COLUMNS if name != "hour"]
    yield HtmlTable(
        "All hours", columns, [[row[name] for name in columns] for row in totals],
        frozenset(n for n, row in enumerate(totals) if row["lost"] or row["lost_of_topic"]),
    )  # fmt: skip
    sizes: dict[str, int] = {}
    for line in audit.lines:
        sizes[line.topic] = sizes.get(line.topic, 0) + line.counts.get("published", 0)
    topics = sorted(sizes, key=lambda topic: -sizes[topic])
    for topic in topics[:MAX_TOPICS]:
        yield from _plots(topic, [line for line in audit.lines if line.topic == topic])
    if len(topics) > MAX_TOPICS:
        yield Text(f"{len(topics) - MAX_TOPICS} smaller topics have no plots here.")
    rows = audit.rows()
    hours = [[row[name] or ("earlier" if name == "hour" else row[name]) for name in _COLUMNS]
             for row in rows]  # fmt: skip
    bad = frozenset(n for n, row in enumerate(rows) if row["lost"] or row["lost_of_topic"])
    yield HtmlTable("By the hour", _COLUMNS, hours, bad)
    fields = ("broker", "place", "segments", "bytes", "records", "messages", "starts")
    yield HtmlTable("Logs", fields, [[getattr(log, name) for name in fields] for log in audit.logs])


def _plots(topic: str, lines: list[CountLine]) -> Iterator[Section]:
    hours = hours_of(lines)
    if not hours:
        return
    times = [datetime.fromtimestamp(hour * HOUR_NS // 10**9, UTC) for hour in hours]
    by_place = {(line.channel, line.hour): line for line in lines}
    channels = sorted({line.channel for line in lines if line.channel})

    def counts(channel: str, name: str) -> list[float]:
        found = [by_place.get((channel, hour)) for hour in hours]
        return [line.counts.get(name, 0) if line is not None else 0 for line in found]

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
        told = np.array([line.buckets for line in lines if line.channel == channel])
        total = told.sum(axis=0)
        if total.any():
            finished[channel] = total.astype(float).tolist()
    if finished:
        names = [f"≤ {format_duration(bound_ns)}" for bound_ns in BOUNDS_NS] + ["more"]
        first, last = _used(finished)
        shown = {channel: values[first:last] for channel, values in finished.items()}
        title = f"{topic}: from publish to finish"
        yield Plot(title, names[first:last], shown, "messages", "bar")


def _used(series: dict[str, list[float]]) -> tuple[int, int]:
    """The stretch of values that are not all 0."""
    sums = [sum(values) for values in zip(*series.values(), strict=True)]
    used = [number for number, value in enumerate(sums) if value]
    return used[0], used[-1] + 1
