"""``martlet dead-letters``: what channels have given up, listed, shown, brought back or purged."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence

from martlet.apps import tool
from martlet.options.dead_letters import DeadLetterOptions
from martlet.plural import counted
from martlet.tools.dead_letters import DeadLetterTool, count_lines, letter_lines, line
from martlet.tools.standard_output import StandardOutput

DESCRIPTION = (
    "List, show, bring back (redrive) or throw away (purge) the messages that channels with a retry"
    " policy have given up. What to do, the topic and the channel may stand without their flags:"
    " martlet dead-letters show TOPIC CHANNEL. Dead letters are in the topic TOPIC.CHANNEL.dead, or"
    " the one that the policy names, until they are redriven, purged, or finished by a consumer of"
    " its channel dead-letters."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Do it; the result is the exit code of the process."""
    found = tool.named(DeadLetterOptions, argv, "action", "topic", "channel")
    options = tool.options(
        "dead-letters", DESCRIPTION, DeadLetterOptions, found, "ACTION [TOPIC CHANNEL]"
    )
    work = DeadLetterTool(options)
    kept: Counter[tuple[str, str]] = Counter()

    async def show(output: StandardOutput) -> None:
        is_empty = True
        async for page in work.pages():
            lines = []
            for letter in page:
                lines += [line(letter)] if options.json else letter_lines(letter, _now_ms())
            if lines:
                is_empty = False
                await output.show([f"{each}\n".encode() for each in lines])
        if is_empty and not options.json:
            log.info("nothing of that is there")

    async def count(output: StandardOutput) -> None:
        topics = await work.counts()
        lines = [line(each) for each in topics] if options.json else count_lines(topics, _now_ms())
        if lines:
            await output.show([f"{each}\n".encode() for each in lines])
        elif not options.json:
            log.info("there are no dead letters")

    async def act() -> None:
        done = "redriven" if options.action == "redrive" else "purged"
        counts: Counter[str] = Counter()
        async for url, number, stay in work.act():
            counts[url] += number
            kept.update({(url, why): many for why, many in stay.items()})
        would_be = "would be " if options.dry_run else ""
        await tool.show(
            f"{url}: {counted(number, 'dead letter')} {would_be}{done}"
            for url, number in counts.items()
        )
        for (url, why), many in kept.items():
            log.error("%s: %d stay where they are: %s", url, many, why)
        for id in work.unknown:
            log.error("no dead letter that is meant has the id %s, or had it before", id)

    async def run() -> None:
        if options.action in ("redrive", "purge"):
            await act()
            return
        output = StandardOutput(sys.stdout.fileno())
        await (count(output) if options.action == "list" else show(output))

    code = tool.run_alone(run)
    return 1 if kept or work.unknown else code


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
