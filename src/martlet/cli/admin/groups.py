"""``martlet groups``: list, describe and reset the groups whose members fetch from assigned queues.

The command calls each broker (see `martlet.server.rpc.groups`), which has groups of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from martlet.cli import tool
from martlet.cli.broker_http import BrokerHttpOptions
from martlet.cli.text import json_line, laid_out, printable
from martlet.client.admin import Answers, Described
from martlet.durations import MILLISECOND_NS
from martlet.options.checks import parse_time, require_action, require_names
from martlet.options.flag import OptionError, option
from martlet.plural import counted

Fields = Mapping[str, Any]
ACTIONS = ("list", "describe", "reset")


@dataclass(frozen=True, kw_only=True)
class GroupOptions(BrokerHttpOptions):
    """The options of ``martlet groups``."""

    action: str = option("", f"one of {', '.join(ACTIONS)}", section="what to do")
    topic: str = option("", "the topic", section="which group")
    group: str = option("", "its name")
    to_first: bool = option(False, "to the first stored message", section="where to reset it")
    to_last: bool = option(False, "to the end: only new messages")
    to_time: str = option(
        "",
        "to the first message published at or after this time: 2026-01-31T12:00:00 in local time,"
        " with Z or +01:00 in another, seconds since 1970, or how long ago, as 90m",
    )
    to_offset: int = option(
        -1,
        "to this offset, of one --queue where there are several (default: not given)",
        limits=(-1, None),
    )
    queue: int = option(
        -1, "only this queue of the topic (default: all of them)", limits=(-1, 1023)
    )
    force: bool = option(False, "even if it has members: they have to join again")
    dry_run: bool = option(False, "only show the offsets and the lag that would follow")
    json: bool = option(False, "lines of JSON", section="output")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_action(self.action, ACTIONS)
        for flag in ("topic", "group"):
            value = getattr(self, flag)
            if value:
                require_names(flag, [value])
            elif self.action != "list":
                raise OptionError(f"the {flag} is missing: add its name, or --{flag}=NAME")
        if self.action == "reset":
            self._check_reset()

    def _check_reset(self) -> None:
        given = self.to_first + self.to_last + bool(self.to_time) + (self.to_offset >= 0)
        if given != 1:
            raise OptionError(
                "say where to, with one of --to-first, --to-last, --to-time and --to-offset"
            )
        if self.to_time:
            parse_time("to-time", self.to_time, 0)
        if self.to_offset >= 0 and len(self.nsqd_http_addresses) != 1:
            raise OptionError(
                "--to-offset needs one --address: each broker counts offsets of its own"
            )


async def ask(options: GroupOptions) -> Answers[Fields]:
    """Ask for an action; return each broker's answer. Raises AdminError."""
    async with options.admin() as admin:
        if options.action == "list":
            found = await admin.groups.list(options.topic)
            return found.map(lambda groups: {"groups": [each.fields for each in groups]})
        if options.action == "describe":
            return _fields(await admin.groups.describe(options.topic, options.group))
        to_time_ms = None
        if options.to_time:
            to_time_ms = parse_time("to-time", options.to_time, time.time_ns()) // MILLISECOND_NS
        return _fields(
            await admin.groups.reset(
                options.topic,
                options.group,
                to_first=options.to_first,
                to_last=options.to_last,
                to_time_ms=to_time_ms,
                to_offset=options.to_offset if options.to_offset >= 0 else None,
                queue=options.queue if options.queue >= 0 else None,
                force=options.force,
                dry_run=options.dry_run,
            )
        )


def _fields(answers: Answers[Described]) -> Answers[Fields]:
    return answers.map(lambda answer: answer.fields)


def list_lines(answers: Iterable[Fields]) -> list[str]:
    """Format groups as text, a line each."""
    rows: list[tuple[str, ...]] = [("TOPIC", "GROUP", "MEMBERS", "QUEUES", "LAG", "BROKER")]
    for answer in answers:
        for group in answer["groups"]:
            count = [str(group[name]) for name in ("members", "queues", "lag")]
            paused = " (paused)" if group["paused"] else _follows(group)
            rows.append((group["topic"], group["group"] + paused, *count, answer["broker"]))
    return laid_out(rows, (2, 3, 4))


def describe_lines(answer: Fields, now_ms: int) -> list[str]:
    """Format a group as text."""
    paused = ", paused" if answer["paused"] else ""
    who = _follows(answer).strip(" ()") or (
        f"{counted(len(answer['members']), 'member')}, {answer['strategy']}"
    )
    if answer.get("leader") is not None:
        who += f" over all brokers, led by {printable(answer['leader'])}"
    wanted = f", only tags {', '.join(answer['tags'])}" if answer["tags"] else ""
    if answer.get("filter"):
        wanted += f", only where {printable(answer['filter'])}"
    lines = [
        f"{answer['topic']}/{answer['group']} at {answer['broker']}: lag {answer['lag']},"
        f" {who}{paused}{wanted}"
    ]
    rows: list[tuple[str, ...]] = [("QUEUE", "MEMBER", "COMMITTED", "END", "LAG", "DEFERRED")]
    for queue in answer["queues"]:
        holder = printable(queue["member"] or "-")
        if queue["revoked"]:
            holder += " (releasing)"
        count = [str(queue[name]) for name in ("offset", "end_offset", "lag", "deferred")]
        rows.append((str(queue["queue"]), holder, *count))
    lines += ["", *laid_out(rows, (0, 2, 3, 4, 5))]
    if answer["members"]:
        rows = [("MEMBER", "ADDRESS", "ROOM", "SINCE", "QUEUES")]
        for member in answer["members"]:
            since = f"{max(0, now_ms - member['since_ms']) // 1000}s"
            queues = " ".join(map(str, member["queues"])) or "-"
            name, room = printable(member["member"]), printable(member["room"])
            rows.append((name, member["address"], room, since, queues))
        lines += ["", *laid_out(rows, (3,))]
    return lines


def _follows(group: Fields) -> str:
    """Mark a group that shows an external reader."""
    if group.get("kind") != "follower":
        return ""
    return " (follower, retains)" if group["retain"] else " (follower)"


def reset_lines(answer: Fields, *, is_dry: bool = False) -> list[str]:
    """Format a reset as text."""
    names = ("queue", "before", "offset", "lag")
    head = ("IS AT", "WOULD BE AT") if is_dry else ("WAS AT", "IS AT")
    rows: list[tuple[str, ...]] = [("QUEUE", *head, "LAG")]
    rows += [tuple(str(queue[name]) for name in names) for queue in answer["queues"]]
    done = "would be reset" if is_dry else "reset"
    return [f"{done} at {answer['broker']}", "", *laid_out(rows, (0, 1, 2, 3))]


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
        found = await ask(options)
        if options.action != "reset":
            found.check()
        answers = [{"broker": url, **answer} for url, answer in found.values.items()]
        lines: list[str] = []
        if options.json:
            lines = [json_line(answer) for answer in answers]
        elif options.action == "list":
            lines = list_lines(answers)
            if not lines:
                log.info("there are no groups")
        elif options.action == "reset":
            for answer in answers:
                lines += reset_lines(answer, is_dry=options.dry_run)
        else:
            for number, answer in enumerate(answers):
                lines += [""] * bool(number)
                lines += describe_lines(answer, time.time_ns() // MILLISECOND_NS)
        await tool.show(lines)
        found.check()

    return tool.run_alone(run)
