"""The options of ``martlet stat``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.durations import SECOND_NS
from martlet.options.door import DoorOptions
from martlet.options.flag import FlagKind, OptionError, option


@dataclass(frozen=True, kw_only=True)
class StatOptions(DoorOptions):
    """What ``martlet stat`` is started with.

    Raises:
        OptionError: a channel without its topic.
    """

    topic: str = option(
        "topic", FlagKind.STRING, "", "only this topic (default: every topic)", section="what"
    )
    channel: str = option(
        "channel", FlagKind.STRING, "", "only this channel of it (default: every channel)"
    )
    interval_ns: int = option(
        "interval",
        FlagKind.DURATION,
        2 * SECOND_NS,
        "how often the brokers are asked",
        limits=(1, None),
        section="output",
    )
    count: int = option(
        "count",
        FlagKind.INT,
        0,
        "print so many lines and end (0: until it is stopped)",
        limits=(0, None),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channel and not self.topic:
            raise OptionError("--topic is missing: of which topic is that channel?")
