"""The options of ``martlet delayed``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from martlet.options.door import DoorOptions
from martlet.options.flag import FlagKind, OptionError, option
from martlet.options.tools import require_names

ACTIONS = ("list", "cancel")
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class DelayedOptions(DoorOptions):
    """What ``martlet delayed`` is started with.

    Raises:
        OptionError: there is no such action, no topic, or it is not said what to cancel.
    """

    action: str = option(
        "action", FlagKind.STRING, "", f"one of {', '.join(ACTIONS)}", section="what to do"
    )
    topic: str = option("topic", FlagKind.STRING, "", "the topic that they are for")
    ids: tuple[str, ...] = option(
        "id", FlagKind.STRINGS, (), "cancel this one; may be given several times"
    )
    all: bool = option("all", FlagKind.BOOL, False, "cancel all of the topic's")
    limit: int = option(
        "limit",
        FlagKind.INT,
        20,
        "list so many of each broker (0: all of them)",
        limits=(0, None),
        section="output",
    )
    json: bool = option("json", FlagKind.BOOL, False, "a line of JSON for each message")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action not in ACTIONS:
            told = f"{self.action!r} is none of them" if self.action else "none is given"
            raise OptionError(f"what to do is one of {', '.join(ACTIONS)}: {told}")
        if not self.topic:
            raise OptionError(f"which topic is it? martlet delayed {self.action} TOPIC")
        require_names("topic", [self.topic])
        for id in self.ids:
            if not _ID.fullmatch(id):
                raise OptionError(f"--id={id}: an id has 16 hexadecimal digits")
        if self.action == "cancel" and bool(self.ids) == self.all:
            raise OptionError(
                "which ones are meant? Name their ids, as martlet delayed list tells them, or --all"
            )
