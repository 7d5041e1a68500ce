"""``martlet replay``: rewind a channel, or create one that begins in the past."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from martlet.cli import tool
from martlet.cli.broker_http import ChannelOptions
from martlet.client.admin import AdminError, Answers, ReplayResult
from martlet.options.checks import parse_time
from martlet.options.flag import OptionError, option
from martlet.text import counted


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(ChannelOptions):
    """The options of ``martlet replay``."""

    to_offset: int = option(
        -1,
        "the first message to redeliver, by its offset; offsets are each broker's own"
        " (default: not given)",
        limits=(-1, None),
        section="target",
    )
    queue: int = option(
        -1,
        "only this queue of the topic, each of which has its own offsets (default: all of them)",
        limits=(-1, 1023),
    )
    to_time: str = option(
        "",
        "the first message to redeliver, by its publish time: 2026-01-31T12:00:00 in local"
        " time, with Z or +01:00 in another, seconds since 1970, or how long ago, as 90m",
    )
    beginning: bool = option(False, "redeliver everything that the log still has")
    new_channel: bool = option(False, "create the channel, which must not exist, instead")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.to_offset >= 0) + bool(self.to_time) + self.beginning != 1:
            raise OptionError(
                "give one of --to-offset, --to-time and --beginning; --help says how far back"
                " the log goes"
            )
        if self.to_offset >= 0 and len(self.nsqd_http_addresses) != 1:
            raise OptionError(
                "--to-offset needs one --address: each broker counts offsets of its own"
            )
        if self.to_time:
            parse_time("to-time", self.to_time, 0)


_FLAGS = {
    "add queue, or use timestamp_ns or beginning": "add --queue=N, or use --to-time or --beginning",
    "the offset must be": "--to-offset must be",
    "omit new=true": "omit --new-channel",
}
"""The broker names the arguments of its HTTP API."""


async def rewind(options: ReplayOptions) -> Answers[ReplayResult]:
    """Rewind the channel on each broker; return each one's answer. Raises AdminError."""
    to_time_ns = None
    if options.to_time:
        to_time_ns = parse_time("to-time", options.to_time, time.time_ns())
    async with options.admin() as admin:
        return await admin.channels.replay(
            options.topic,
            options.channel,
            beginning=options.beginning,
            to_time_ns=to_time_ns,
            to_offset=options.to_offset if options.to_offset >= 0 else None,
            queue=options.queue if options.queue >= 0 else None,
            new_channel=options.new_channel,
        )


def explain(error: AdminError) -> str:
    """Return the text of an error, with the flags of the command."""
    why = error.why.removeprefix("MISSING_ARG_QUEUE: ")
    for argument, flag in _FLAGS.items():
        why = why.replace(argument, flag)
    return why


def describe(options: ReplayOptions, answer: ReplayResult) -> str:
    """Format a broker's answer."""
    what = "begins at" if options.new_channel else "is set back to"
    if "queues" in answer.fields:
        offsets = ", ".join(f"{queue.offset} of queue {queue.queue}" for queue in answer.queues)
    else:
        offsets = str(answer.queues[0].offset)
    return (
        f"channel {options.channel} of topic {options.topic} {what} offset {offsets};"
        f" {counted(answer.message_count, 'message')} from there on"
    )


DESCRIPTION = (
    "Rewind a channel to an offset or a time, or with --new-channel create one that begins"
    " there: all messages from there on are delivered (again), with attempts from 1, and those"
    " in flight are taken from its consumers. The topic and the channel may stand without their"
    " flags: martlet replay TOPIC CHANNEL --to-time=90m. It can go back as far as the log keeps"
    " messages: a segment of the log (--max-bytes-per-file of martlet broker) is removed when"
    " every channel has passed it. To keep more, set --retention there or retention_ms of the"
    " topic's policy (martlet topic configure)."
)


def main(argv: Sequence[str]) -> int:
    """Rewind the channel; return the exit code of the process."""
    operands = ("topic", "channel")
    options = tool.options("replay", DESCRIPTION, ReplayOptions, argv, "TOPIC CHANNEL", operands)
    return tool.run_at_each(
        lambda: rewind(options), lambda answer: describe(options, answer), explain
    )
