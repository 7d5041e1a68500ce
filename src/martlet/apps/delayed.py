"""``martlet delayed``: the messages that wait for their time, listed and cancelled."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Sequence

from martlet.apps import tool
from martlet.options.delayed import DelayedOptions
from martlet.plural import counted
from martlet.tools.delayed import DelayedTool, line, lines
from martlet.tools.standard_output import StandardOutput

DESCRIPTION = (
    "List or cancel messages of a topic that were sent to be delivered at a time. What to do, the"
    " topic and the ids may stand without their flags: martlet delayed list TOPIC, martlet delayed"
    " cancel TOPIC ID ... An id is told when the message is sent, and by the list. (A message that"
    " DPUB defers is its channels' as in nsqd, as long as there are few: martlet peek shows those.)"
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Do it; the result is the exit code of the process."""
    found = _named(argv)
    options = tool.options("delayed", DESCRIPTION, DelayedOptions, found, "ACTION TOPIC [ID ...]")
    work = DelayedTool(options)
    not_waiting: list[str] = []

    async def show() -> None:
        output = StandardOutput(sys.stdout.fileno())
        shown: Counter[str] = Counter()
        pending: dict[str, int] = {}
        async for url, count, page in work.pages():
            shown[url] += len(page)
            pending[url] = count
            text = [line(url, each) for each in page] if options.json else lines(page)
            if text:
                await output.show([f"{each}\n".encode() for each in text])
        for url, count in pending.items():
            told = f"{url}: {counted(count, 'message')} waiting, {shown[url]} listed"
            if options.json:
                log.info("%s", told)
            else:
                await tool.show([told])

    async def cancel() -> None:
        counts: Counter[str] = Counter()
        cancelled: set[str] = set()
        async for url, ids in work.cancel():
            counts[url] += len(ids)
            cancelled.update(ids)
        await tool.show(
            f"{url}: {counted(count, 'message')} cancelled" for url, count in counts.items()
        )
        not_waiting.extend(id for id in options.ids if id not in cancelled)
        for id in not_waiting:
            log.error("%s does not wait: it is unknown, delivered, or cancelled already", id)

    code = tool.run_alone(show if options.action == "list" else cancel)
    return 1 if not_waiting else code


def _named(argv: Sequence[str]) -> list[str]:
    """The command line with what stands without a flag as the values of flags."""
    found, others = tool.split(DelayedOptions, argv)
    names = ["action", "topic", *["id"] * len(others)]
    return found + [f"--{name}={value}" for name, value in zip(names, others, strict=False)]
