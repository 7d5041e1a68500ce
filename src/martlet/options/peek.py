"""The options of ``martlet peek``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.door import ChannelOptions
from martlet.options.flag import FlagKind, OptionError, option

STATES = ("in_flight", "deferred", "due", "waiting")


@dataclass(frozen=True, kw_only=True)
class PeekOptions(ChannelOptions):
    """What ``martlet peek`` is started with."""

    states: tuple[str, ...] = option(
        "state",
        FlagKind.STRINGS,
        (),
        f"only messages in this state, one of {', '.join(STATES)}; may be given several times",
        section="messages",
    )
    offset: int = option(
        "offset",
        FlagKind.INT,
        0,
        "begin with the message at this offset, of each queue",
        limits=(0, None),
    )
    limit: int = option(
        "limit",
        FlagKind.INT,
        20,
        "show so many messages of each broker (0: all of them)",
        limits=(0, None),
    )
    max_body_bytes: int = option(
        "max-body-bytes",
        FlagKind.SIZE,
        1024,
        "show no more of a body",
        limits=(0, 8 << 20),
        section="output",
    )
    json: bool = option("json", FlagKind.BOOL, False, "a line of JSON for each message")

    def __post_init__(self) -> None:
        super().__post_init__()
        for state in self.states:
            if state not in STATES:
                raise OptionError(f"--state={state} is none of {', '.join(STATES)}")
