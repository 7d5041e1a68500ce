"""The options of ``martlet replay``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from martlet.durations import SECOND_NS, parse_duration
from martlet.options.door import ChannelOptions
from martlet.options.flag import FlagKind, OptionError, option

_SECONDS = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(ChannelOptions):
    """What ``martlet replay`` is started with.

    Raises:
        OptionError: it is not said where to, or in more than one way.
    """

    to_offset: int = option(
        "to-offset",
        FlagKind.INT,
        -1,
        "the first message that comes again, by its offset; offsets are each broker's own"
        " (default: not given)",
        limits=(-1, None),
        section="where to",
    )
    queue: int = option(
        "queue",
        FlagKind.INT,
        -1,
        "only this queue of the topic; an offset is one of a queue (default: all of them)",
        limits=(-1, 1023),
    )
    to_time: str = option(
        "to-time",
        FlagKind.STRING,
        "",
        "the first message that comes again, by when it was published: 2026-01-31T12:00:00 in local"
        " time, with Z or +01:00 in another, seconds since 1970, or how long ago, as 90m",
    )
    beginning: bool = option(
        "beginning", FlagKind.BOOL, False, "everything that the log still has comes again"
    )
    new_channel: bool = option(
        "new-channel", FlagKind.BOOL, False, "make the channel, which must not be there, instead"
    )

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
