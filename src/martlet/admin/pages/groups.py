"""Groups: their members, queues and lag, and a reset that says which lag would follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from martlet.admin.actions import Action, Preview, silent, with_failures
from martlet.admin.inputs import Inputs
from martlet.admin.listing import Column, listing
from martlet.admin.site import SITE
from martlet.client.admin import GroupAdmin, GroupSummary
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
    """A group of all brokers.

    Attributes:
        kind: ``offsets`` or ``follower``.
        is_paused: whether it gets no messages at any broker.
    """

    topic: str
    group: str
    kind: str
    members: int = 0
    queues: int = 0
    lag: int = 0
    is_paused: bool = False
    brokers: list[str] = field(default_factory=list)

    def add(self, broker: str, summary: GroupSummary) -> None:
        """Add what a broker says."""
        self.members += summary.member_count
        self.queues += summary.queue_count
        self.lag += summary.lag
        self.is_paused |= summary.is_paused
        self.brokers.append(broker)


_COLUMNS: tuple[Column[GroupTotals], ...] = (
    Column("name", "Group", lambda each: (each.topic, each.group)),
    Column("lag", "Lag", lambda each: each.lag, "Messages that are not committed yet"),
    Column("members", "Members", lambda each: each.members),
    Column("queues", "Queues", lambda each: each.queues),
    Column("brokers", "Brokers", lambda each: len(each.brokers)),
)


async def overview(request: web.Request) -> web.StreamResponse:
    """``/groups``"""
    site = request.app[SITE]
    await site.collector.fresh()
    answers = await site.admin.groups.list()
    groups: dict[tuple[str, str], GroupTotals] = {}
    for url, summaries in answers.values.items():
        for each in summaries:
            key = each.topic, each.group
            groups.setdefault(key, GroupTotals(*key, each.kind)).add(url, each)
    table = listing(
        list(groups.values()), _COLUMNS, request.query, lambda each: f"{each.topic} / {each.group}",
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
        "lag": answers.total(lambda each: each.lag),
        "failures": list(answers.failures.values()),
        "places": _TO,
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
    members = described.total(lambda each: len(each.members))
    rows = [
        f"Queue {each.queue} at {url.partition('://')[2]}: from offset {each.before:,} to"
        f" {each.offset:,}, which leaves a lag of {each.lag:,}."
        for url, found in sorted(answers.values.items())
        for each in found.queues
    ]
    lines = rows[:_MAX_LINES]
    if len(rows) > len(lines):
        lines.append(f"{len(rows) - len(lines):,} more queues.")
    skipped = sum(
        max(0, each.offset - each.before)
        for found in answers.values.values()
        for each in found.queues
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
    lag = answers.total(lambda each: each.lag)
    return Preview(
        title=title,
        button=f"Reset to {_where(request)}: lag {lag:,}",
        lines=[*lines, *silent(answers)],
        fields=fields,
        is_possible=bool(rows),
        obstacle=obstacle,
    )


async def _do(inputs: Inputs) -> str:
    request = inputs.request(ResetGroup)
    answers = await GroupAdmin.reset.run(inputs.admin.http, request)
    lag = answers.total(lambda each: each.lag)
    text = f"Group {request.group} of {request.topic} was reset; its lag is {lag:,}"
    return with_failures(text, answers)


ACTIONS = {"reset_group": Action(_preview, _do)}
