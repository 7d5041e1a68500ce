"""The options of ``martlet groups``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.durations import MILLISECOND_NS
from martlet.options.door import DoorOptions
from martlet.options.flag import FlagKind, OptionError, option
from martlet.options.replay import time_ns
from martlet.options.tools import require_names

ACTIONS = ("list", "describe", "reset")


@dataclass(frozen=True, kw_only=True)
class GroupOptions(DoorOptions):
    """What ``martlet groups`` is started with.

    Raises:
        OptionError: there is no such action, or it is not said which group, or where to.
    """

    action: str = option(
        "action", FlagKind.STRING, "", f"one of {', '.join(ACTIONS)}", section="what to do"
    )
    topic: str = option("topic", FlagKind.STRING, "", "the topic", section="which group")
    group: str = option("group", FlagKind.STRING, "", "its name")
    to_first: bool = option(
        "to-first", FlagKind.BOOL, False, "to all that is there", section="where to reset it"
    )
    to_last: bool = option("to-last", FlagKind.BOOL, False, "to what comes from now on")
    to_time: str = option(
        "to-time",
        FlagKind.STRING,
        "",
        "to what was published at or after this time: 2026-01-31T12:00:00 in local time, with Z or"
        " +01:00 in another, seconds since 1970, or how long ago, as 90m",
    )
    to_offset: int = option(
        "to-offset",
        FlagKind.INT,
        -1,
        "to this offset, of one --queue where there are several (default: not given)",
        limits=(-1, None),
    )
    queue: int = option(
        "queue",
        FlagKind.INT,
        -1,
        "only this queue of the topic (default: all of them)",
        limits=(-1, 1023),
    )
    force: bool = option(
        "force", FlagKind.BOOL, False, "though it has members: they have to join again"
    )
    json: bool = option("json", FlagKind.BOOL, False, "lines of JSON", section="output")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action not in ACTIONS:
            told = f"{self.action!r} is none of them" if self.action else "none is given"
            raise OptionError(f"what to do is one of {', '.join(ACTIONS)}: {told}")
        for flag in ("topic", "group"):
            value = getattr(self, flag)
            if value:
                require_names(flag, [value])
            elif self.action != "list":
                raise OptionError(f"which group? Name --{flag}")
        if self.action == "reset":
            self._check_reset()

    def _check_reset(self) -> None:
        given = self.to_first + self.to_last + bool(self.to_time) + (self.to_offset >= 0)
        if given != 1:
            raise OptionError(
                "say where to, with one of --to-first, --to-last, --to-time and --to-offset"
            )
        if self.to_time:
            time_ns("to-time", self.to_time, 0)
        if self.to_offset >= 0 and len(self.nsqd_http_addresses) != 1:
            raise OptionError(
                "--to-offset needs one --nsqd-http-address: each broker counts offsets of its own"
            )

    def fields(self, now_ns: int) -> dict[str, object]:
        """Those of the call."""
        fields: dict[str, object] = {}
        if self.topic:
            fields["topic"] = self.topic
        if self.action == "list":
            return fields
        fields["group"] = self.group
        if self.action == "reset":
            fields["force"] = self.force
            if self.queue >= 0:
                fields["queue"] = self.queue
            if self.to_time:
                time_ms = time_ns("to-time", self.to_time, now_ns) // MILLISECOND_NS
                fields |= {"to": "time", "time_ms": time_ms}
            elif self.to_offset >= 0:
                fields |= {"to": "offset", "offset": self.to_offset}
            else:
                fields["to"] = "first" if self.to_first else "last"
        return fields
