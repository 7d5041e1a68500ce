"""``martlet groups``: list, describe and reset the groups whose members fetch from assigned queues.

The command calls each broker (see `martlet.schema.groups`), which has groups of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from martlet.cli import tool
from martlet.cli.operation_flags import OperationOptions, with_flags_of
from martlet.cli.text import json_line, laid_out, printable
from martlet.client.admin import (
    Answers,
    GroupAdmin,
    GroupDescription,
    GroupReset,
    GroupSummary,
)
from martlet.options.flag import OptionError, option
from martlet.schema.groups import DESCRIBE, LIST, RESET, ResetGroupTo
from martlet.text import MILLISECOND_NS, counted


@with_flags_of(list=LIST, describe=DESCRIBE, reset=RESET)
@dataclass(frozen=True, kw_only=True)
class GroupOptions(OperationOptions):
    """The options of ``martlet groups``."""

    json: bool = option(False, "lines of JSON", section="output")

    def __post_init__(self) -> None:
        super().__post_init__()
        is_at_one = len(self.nsqd_http_addresses) == 1
        if self.action == "reset" and not is_at_one and self.request(ResetGroupTo).to == "offset":
            raise OptionError(
                "--to-offset needs one --address: each broker counts offsets of its own"
            )


def list_lines(answers: Mapping[str, tuple[GroupSummary, ...]]) -> list[str]:
    """Format the groups of brokers as text, a line each."""
    rows: list[tuple[str, ...]] = [("TOPIC", "GROUP", "MEMBERS", "QUEUES", "LAG", "BROKER")]
    for url, groups in answers.items():
        for group in groups:
            count = map(str, (group.member_count, group.queue_count, group.lag))
            paused = " (paused)" if group.is_paused else _follows(group)
            rows.append((group.topic, group.group + paused, *count, url))
    return laid_out(rows, (2, 3, 4))


def describe_lines(url: str, group: GroupDescription, now_ms: int) -> list[str]:
    """Format a group of a broker as text."""
    paused = ", paused" if group.is_paused else ""
    who = _follows(group).strip(" ()") or (
        f"{counted(len(group.members), 'member')}, {group.strategy}"
    )
    if group.leader is not None:
        who += f" over all brokers, led by {printable(group.leader)}"
    filter_text = f", only tags {', '.join(group.tags)}" if group.tags else ""
    if group.filter:
        filter_text += f", only where {printable(group.filter)}"
    lines = [f"{group.topic}/{group.group} at {url}: lag {group.lag}, {who}{paused}{filter_text}"]
    rows: list[tuple[str, ...]] = [("QUEUE", "MEMBER", "COMMITTED", "END", "LAG", "DEFERRED")]
    for queue in group.queues:
        holder = printable(queue.member or "-")
        if queue.is_revoked:
            holder += " (releasing)"
        count = map(str, (queue.offset, queue.end_offset, queue.lag, queue.deferred_count))
        rows.append((str(queue.queue), holder, *count))
    lines += ["", *laid_out(rows, (0, 2, 3, 4, 5))]
    if group.members:
        rows = [("MEMBER", "ADDRESS", "ROOM", "SINCE", "QUEUES")]
        for member in group.members:
            since = f"{max(0, now_ms - member.since_ms) // 1000}s"
            queues = " ".join(map(str, member.queues)) or "-"
            name, room = printable(member.member), printable(member.room)
            rows.append((name, member.address, room, since, queues))
        lines += ["", *laid_out(rows, (3,))]
    return lines


def _follows(group: GroupSummary | GroupDescription) -> str:
    """Mark a group that shows an external reader."""
    if group.kind != "follower":
        return ""
    return " (follower, retains)" if group.retains else " (follower)"


def reset_lines(url: str, reset: GroupReset, *, is_dry: bool = False) -> list[str]:
    """Format a reset at a broker as text."""
    head = ("IS AT", "WOULD BE AT") if is_dry else ("WAS AT", "IS AT")
    rows: list[tuple[str, ...]] = [("QUEUE", *head, "LAG")]
    rows += [
        tuple(map(str, (queue.queue, queue.before, queue.offset, queue.lag)))
        for queue in reset.queues
    ]
    done = "would be reset" if is_dry else "reset"
    return [f"{done} at {url}", "", *laid_out(rows, (0, 1, 2, 3))]


DESCRIPTION = (
    "List the groups whose members fetch from assigned queues, describe one (its"
    " members, and the holder, committed offset and lag of each queue), or reset its"
    " offsets. The action, the topic and the group may stand without their flags: martlet groups"
    " describe TOPIC GROUP. A reset is refused while the group has members, unless --force is"
    " given: they have to join again then, which clients do by themselves. A reset forward skips"
    " the messages between; deferred messages keep their times, wherever the group is reset."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """List, describe or reset groups; return the exit code of the process."""
    operands = ("action", "topic", "group")
    options = tool.options(
        "groups", DESCRIPTION, GroupOptions, argv, "ACTION [TOPIC GROUP]", operands
    )

    async def run() -> None:
        request = options.request(options.operations[options.action].parameters)
        answers: Answers[Any]
        async with options.admin() as admin:
            answers = await getattr(GroupAdmin, options.action).run(admin.http, request)
        if options.action != "reset":
            answers.check()
        lines: list[str] = []
        if options.json:
            for url, answer in answers.values.items():
                is_list = options.action == "list"
                fields = {"groups": [item.fields for item in answer]} if is_list else answer.fields
                lines.append(json_line({"broker": url, **fields}))
        elif options.action == "list":
            lines = list_lines(answers.values)
            if not lines:
                log.info("there are no groups")
        elif isinstance(request, ResetGroupTo):
            for url, answer in answers.values.items():
                lines += reset_lines(url, answer, is_dry=request.dry_run)
        else:
            for url, answer in answers.values.items():
                lines += [""] * bool(lines)
                lines += describe_lines(url, answer, time.time_ns() // MILLISECOND_NS)
        await tool.show(lines)
        answers.check()

    return tool.run_alone(run)
