"""``martlet replay``: sets a channel back, or makes one that begins in the past."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from martlet.apps import tool
from martlet.options.replay import ReplayOptions
from martlet.tools.door import NoAnswer
from martlet.tools.replay import Replay, told

DESCRIPTION = (
    "Set a channel back to an offset or a time, or with --new-channel make one that begins there:"
    " all from there on is delivered (again), with attempts from 1, and what is in flight there is"
    " taken from its consumers. The topic and the channel may stand without their flags: martlet"
    " replay TOPIC CHANNEL --to-time=90m. The past is there as far as the log keeps it, and a"
    " segment of the log (--max-bytes-per-file of martlet broker) goes when every channel has"
    " passed it. To keep more, set --retention there or retention_ms of the topic's policy (martlet"
    " topic configure)."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Set the channel back; the result is the exit code of the process."""
    found = tool.named(ReplayOptions, argv, "topic", "channel")
    options = tool.options("replay", DESCRIPTION, ReplayOptions, found, "TOPIC CHANNEL")
    refused: list[NoAnswer] = []

    async def work() -> None:
        done = []
        for url, answer in await Replay(options).run():
            if isinstance(answer, NoAnswer):
                refused.append(answer)
                log.error("%s", answer)
            else:
                done.append(f"{url}: {told(options, answer)}")
        await tool.show(done)

    code = tool.run_alone(work)
    return 1 if refused else code
