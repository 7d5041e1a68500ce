"""``martlet replay``: sets a channel back, or makes one that begins in the past."""

from __future__ import annotations

from collections.abc import Sequence

from martlet.apps import tool
from martlet.options.replay import ReplayOptions
from martlet.tools.replay import RewindTool, describe

DESCRIPTION = (
    "Set a channel back to an offset or a time, or with --new-channel make one that begins there:"
    " all from there on is delivered (again), with attempts from 1, and what is in flight there is"
    " taken from its consumers. The topic and the channel may stand without their flags: martlet"
    " replay TOPIC CHANNEL --to-time=90m. The past is there as far as the log keeps it, and a"
    " segment of the log (--max-bytes-per-file of martlet broker) goes when every channel has"
    " passed it. To keep more, set --retention there or retention_ms of the topic's policy (martlet"
    " topic configure)."
)


def main(argv: Sequence[str]) -> int:
    """Set the channel back; the result is the exit code of the process."""
    found = tool.named(ReplayOptions, argv, "topic", "channel")
    options = tool.options("replay", DESCRIPTION, ReplayOptions, found, "TOPIC CHANNEL")
    return tool.run_at_each(RewindTool(options).run, lambda answer: describe(options, answer))
