"""``martlet replay``: sets a channel back, or makes one that begins in the past."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from martlet.cli import tool
from martlet.cli.broker_http import BrokerHttpClients, ChannelOptions, NoHttpAnswer
from martlet.durations import SECOND_NS, parse_duration
from martlet.options.flag import OptionError, option
from martlet.plural import counted

_SECONDS = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(ChannelOptions):
    """What ``martlet replay`` is started with.

    Raises:
        OptionError: it is not said where to, or in more than one way.
    """

    to_offset: int = option(
        -1,
        "the first message that comes again, by its offset; offsets are each broker's own"
        " (default: not given)",
        limits=(-1, None),
        section="where to",
    )
    queue: int = option(
        -1,
        "only this queue of the topic; an offset is one of a queue (default: all of them)",
        limits=(-1, 1023),
    )
    to_time: str = option(
        "",
        "the first message that comes again, by when it was published: 2026-01-31T12:00:00 in local"
        " time, with Z or +01:00 in another, seconds since 1970, or how long ago, as 90m",
    )
    beginning: bool = option(False, "everything that the log still has comes again")
    new_channel: bool = option(False, "make the channel, which must not be there, instead")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.to_offset >= 0) + bool(self.to_time) + self.beginning != 1:
            raise OptionError(
                "say where to, with one of --to-offset, --to-time and --beginning; up to where the"
                " past is kept says --help"
            )
        if self.to_offset >= 0 and len(self.nsqd_http_addresses) != 1:
            raise OptionError(
                "--to-offset needs one --nsqd-http-address: each broker counts offsets of its own"
            )
        if self.to_time:
            self.time_ns(0)

    def time_ns(self, now_ns: int) -> int:
        """What --to-time stands for, in nanoseconds since 1970. Raises OptionError."""
        return time_ns("to-time", self.to_time, now_ns)


def time_ns(flag: str, text: str, now_ns: int) -> int:
    """What a flag says of a time, in nanoseconds since 1970. Raises OptionError."""
    if _SECONDS.fullmatch(text):
        return round(float(text) * SECOND_NS)
    try:
        return max(0, now_ns - abs(parse_duration(text)))
    except ValueError:
        pass
    try:
        return max(0, round(datetime.fromisoformat(text).timestamp() * SECOND_NS))
    except (ValueError, OverflowError):
        raise OptionError(
            f"--{flag}={text} is no time; write 2026-01-31T12:00:00, or how long ago, as 90m"
        ) from None


class RewindTool:
    """Sets a channel back.

    Args:
        options: as the flags give them.
        clock: nanoseconds since 1970.
    """

    def __init__(self, options: ReplayOptions, clock: Callable[[], int] = time.time_ns) -> None:
        self._options = options
        self._clock = clock

    async def run(self) -> list[tuple[str, dict[str, Any] | NoHttpAnswer]]:
        """Do it on each broker; what each of them answered.

        Raises:
            NoHttpAnswer: no broker was found.
        """
        options = self._options
        arguments = {
            "topic": options.topic,
            "channel": options.channel,
            "new": "true" if options.new_channel else "false",
        }
        if options.queue >= 0:
            arguments["queue"] = str(options.queue)
        if options.to_offset >= 0:
            arguments["offset"] = str(options.to_offset)
        elif options.to_time:
            arguments["timestamp_ns"] = str(options.time_ns(self._clock()))
        else:
            arguments["beginning"] = "true"
        async with BrokerHttpClients(options) as doors:
            urls = await doors.brokers(options.topic)

            async def ask(url: str) -> dict[str, Any] | NoHttpAnswer:
                try:
                    answer: dict[str, Any] = await doors.post(url, "/channel/replay", arguments)
                    return answer
                except NoHttpAnswer as error:
                    return error

            answers = await asyncio.gather(*map(ask, urls))
        return list(zip(urls, answers, strict=True))


def describe(options: ReplayOptions, answer: dict[str, Any]) -> str:
    """A line about what a broker has done."""
    what = "begins at" if options.new_channel else "is set back to"
    name = f"channel {options.channel} of topic {options.topic} {what}"
    if "queues" not in answer:
        count = answer["end_offset"] - answer["offset"]
        return f"{name} offset {answer['offset']}; {counted(count, 'message')} from there on"
    queues = answer["queues"]
    count = sum(each["end_offset"] - each["offset"] for each in queues)
    places = ", ".join(f"{each['offset']} of queue {each['queue']}" for each in queues)
    return f"{name} offset {places}; {counted(count, 'message')} from there on"


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
