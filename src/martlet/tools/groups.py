"""Groups, as an operator sees them: who is a member, who has which queue, and how far they are.

Each broker is asked by calls (see `martlet.server.rpc.groups`), and has groups of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from martlet.options.groups import GroupOptions
from martlet.plural import counted
from martlet.tools.columns import laid_out, printable
from martlet.tools.door import BrokerHttpClients, NoHttpAnswer

Fields = dict[str, Any]
_NOT_THERE = 404


class GroupTool:
    """Does what the flags say.

    Args:
        options: as the flags give them.
        clock: nanoseconds since 1970.
    """

    def __init__(self, options: GroupOptions, clock: Callable[[], int] = time.time_ns) -> None:
        self._options = options
        self._clock = clock

    async def run(self) -> list[Fields]:
        """What each broker answers, with ``broker`` in it; one that has no such group is passed
        over, if another has. Raises NoHttpAnswer.
        """
        options = self._options
        found: list[Fields] = []
        missing: NoHttpAnswer | None = None
        async with BrokerHttpClients(options) as doors:
            for url in await doors.brokers(options.topic):
                try:
                    fields = options.fields(self._clock())
                    answer = await doors.call(url, f"group.{options.action}", fields)
                except NoHttpAnswer as error:
                    if error.status != _NOT_THERE:
                        raise
                    missing = error
                else:
                    found.append({"broker": url} | answer)
        if missing is not None and not found:
            raise missing
        return found


def list_lines(answers: Iterable[Fields]) -> list[str]:
    """Groups for people, a line each."""
    rows: list[tuple[str, ...]] = [("TOPIC", "GROUP", "MEMBERS", "QUEUES", "LAG", "BROKER")]
    for answer in answers:
        for group in answer["groups"]:
            count = [str(group[name]) for name in ("members", "queues", "lag")]
            paused = " (paused)" if group["paused"] else _follows(group)
            rows.append((group["topic"], group["group"] + paused, *count, answer["broker"]))
    return laid_out(rows, (2, 3, 4))


def describe_lines(answer: Fields, now_ms: int) -> list[str]:
    """A group for people."""
    paused = ", paused" if answer["paused"] else ""
    who = _follows(answer).strip(" ()") or (
        f"{counted(len(answer['members']), 'member')}, {answer['strategy']}"
    )
    if answer.get("leader") is not None:
        who += f" over all brokers, led by {printable(answer['leader'])}"
    tags = f", only tags {', '.join(answer['tags'])}" if answer["tags"] else ""
    lines = [
        f"{answer['topic']}/{answer['group']} at {answer['broker']}: lag {answer['lag']},"
        f" {who}{paused}{tags}"
    ]
    rows: list[tuple[str, ...]] = [("QUEUE", "MEMBER", "COMMITTED", "END", "LAG", "DEFERRED")]
    for queue in answer["queues"]:
        holder = printable(queue["member"] or "-")
        if queue["revoked"]:
            holder += " (to let go of it)"
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
    """Whether a group stands for a reader that keeps its own place."""
    if group.get("kind") != "follower":
        return ""
    return " (follower, retains)" if group["retain"] else " (follower)"


def reset_lines(answer: Fields) -> list[str]:
    """What became of a reset, for people."""
    names = ("queue", "before", "offset", "lag")
    rows: list[tuple[str, ...]] = [("QUEUE", "WAS AT", "IS AT", "LAG")]
    rows += [tuple(str(queue[name]) for name in names) for queue in answer["queues"]]
    return [f"reset at {answer['broker']}", "", *laid_out(rows, (0, 1, 2, 3))]
