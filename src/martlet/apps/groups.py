"""``martlet groups``: the groups whose members fetch from allocated queues, looked at and reset."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Sequence

from martlet.apps import tool
from martlet.options.groups import GroupOptions
from martlet.tools.groups import GroupTool, describe_lines, list_lines, reset_lines
from martlet.tools.standard_output import StandardOutput

DESCRIPTION = (
    "List the groups whose members fetch from the queues allocated to them, describe one (its"
    " members, who has which queue, how far each queue is committed and what is left), or reset its"
    " offsets. What to do, the topic and the group may stand without their flags: martlet groups"
    " describe TOPIC GROUP. A reset is refused while the group has members, unless --force is"
    " given: they have to join again then, which clients do by themselves. A reset forward passes"
    " over what lies between; deferred messages keep their times, wherever the group is set."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Do it; the result is the exit code of the process."""
    found = tool.named(GroupOptions, argv, "action", "topic", "group")
    options = tool.options("groups", DESCRIPTION, GroupOptions, found, "ACTION [TOPIC GROUP]")

    async def run() -> None:
        answers = await GroupTool(options).run()
        lines: list[str] = []
        if options.json:
            lines = [json.dumps(answer, ensure_ascii=False) for answer in answers]
        elif options.action == "list":
            lines = list_lines(answers)
            if not lines:
                log.info("there are no groups")
        elif options.action == "reset":
            for answer in answers:
                lines += reset_lines(answer)
        else:
            for number, answer in enumerate(answers):
                lines += [""] * bool(number)
                lines += describe_lines(answer, time.time_ns() // 1_000_000)
        if lines:
            output = StandardOutput(sys.stdout.fileno())
            await output.show([f"{line}\n".encode() for line in lines])

    return tool.run_alone(run)
