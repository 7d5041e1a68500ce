"""Groups: their members, queues and lag, and a reset that says which lag would follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from martlet.client.admin import GroupAdmin, GroupSummary
from martlet.console.actions import Action, Preview, silent, with_failures
from martlet.console.inputs import Inputs
from martlet.console.listing import Column, listing
from martlet.console.site import SITE
from martlet.schema.groups import ResetGroup
from martlet.text import counted

_MAX_LINES = 50
_TO = {
    "first": "the first stored message",
    "last": "the end",
    "time": "a time",
    "offset": "an offset",
}


@dataclass
class GroupTotals:
    """A group of all brokers."""

    topic: str
    group: str
    kind: str
    """``offsets`` or ``follower``."""
    members: int = 0
    queues: int = 0
    lag: int = 0
    is_paused: bool = False
    """Whether it gets no messages at any broker."""
    brokers: list[str] = field(default_factory=list)

    def add(self, broker: str, summary: GroupSummary) -> None:
        """Add what a broker says."""
        self.members += summary.member_count
        self.queues += summary.queue_count
        self.lag += summary.lag
        self.is_paused |= summary.is_paused
        self.brokers.append(broker)


_COLUMNS: tuple[Column[GroupTotals], ...] = (
    Column("name", "Group", lambda totals: (totals.topic, totals.group)),
    Column("lag", "Lag", lambda totals: totals.lag, "Messages that are not committed yet"),
    Column("members", "Members", lambda totals: totals.members),
    Column("queues", "Queues", lambda totals: totals.queues),
    Column("brokers", "Brokers", lambda totals: len(totals.brokers)),
)


async def overview(request: web.Request) -> web.StreamResponse:
    """``/groups``"""
    site = request.app[SITE]
    await site.collector.fresh()
    answers = await site.admin.groups.list()
    groups: dict[tuple[str, str], GroupTotals] = {}
    for url, summaries in answers.values.items():
        for summary in summaries:
            key = summary.topic, summary.group
            groups.setdefault(key, GroupTotals(*key, summary.kind)).add(url, summary)
    table = listing(
        list(groups.values()), _COLUMNS, request.query, lambda row: f"{row.topic} / {row.group}",
        "-lag",
    )  # fmt: skip
    failures = list(answers.failures.values())
    return site.page(request, "groups.html", {"list": table, "failures": failures})


async def group(request: web.Request) -> web.StreamResponse:
    """``/groups/T/G``"""
    site = request.app[SITE]
    await site.collector.fresh()
    topic, name = request.match_info["topic"], request.match_info["group"]
    answers = await site.admin.groups.describe(topic, name)
    context: dict[str, Any] = {
        "topic": topic,
        "group": name,
        "descriptions": sorted(answers.values.items()),
        "lag": answers.total(lambda description: description.lag),
        "failures": list(answers.failures.values()),
        "targets": _TO,
    }
    return site.page(request, "group.html", context)


def _where(request: ResetGroup) -> str:
    if request.offset is not None and request.to == "offset":
        return f"offset {request.offset:,}"
    return f"{_TO[request.to]} given" if request.to == "time" else _TO[request.to]


async def _preview(inputs: Inputs) -> Preview:
    request = inputs.request(ResetGroup, dry_run=True)
    title = f"Reset group {request.group} of {request.topic}"
    fields = {}
    if request.time_ms is not None:
        # A time such as 90m would be another one when the button is pressed.
        fields["time"] = f"{request.time_ms / 1000:.3f}"
    answers = await GroupAdmin.reset.run(inputs.admin.http, request)
    described = await inputs.admin.groups.describe(request.topic, request.group)
    members = described.total(lambda description: len(description.members))
    rows = [
        f"Queue {queue.queue} at {url.partition('://')[2]}: from offset {queue.before:,} to"
        f" {queue.offset:,}, which leaves a lag of {queue.lag:,}."
        for url, reset in sorted(answers.values.items())
        for queue in reset.queues
    ]
    lines = rows[:_MAX_LINES]
    if len(rows) > len(lines):
        lines.append(f"{len(rows) - len(lines):,} more queues.")
    skipped = sum(
        max(0, queue.offset - queue.before)
        for reset in answers.values.values()
        for queue in reset.queues
    )
    if skipped:
        lines.append(f"{skipped:,} offsets are passed: their messages are not delivered.")
    some, obstacle = counted(members, "member"), ""
    if members and request.force:
        verb = "has" if members == 1 else "have"
        lines.append(f"Its {some} {verb} to join again, and may get messages twice.")
    elif members:
        who = "it" if members == 1 else "them"
        obstacle = f"It has {some}: stop {who} first, or choose to reset it even with members."
    lag = answers.total(lambda reset: reset.lag)
    return Preview(
        title=title,
        button=f"Reset to {_where(request)}: lag {lag:,}",
        lines=[*lines, *silent(answers)],
        fields=fields,
        is_possible=bool(rows),
        obstacle=obstacle,
    )


async def _do(inputs: Inputs) -> str:
    request = inputs.request(ResetGroup, dry_run=False)
    answers = await GroupAdmin.reset.run(inputs.admin.http, request)
    lag = answers.total(lambda reset: reset.lag)
    text = f"Group {request.group} of {request.topic} was reset; its lag is {lag:,}"
    return with_failures(text, answers)


ACTIONS = {"reset_group": Action(_preview, _do)}
