"""The options of ``martlet dead-letters``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from martlet.durations import MILLISECOND_NS
from martlet.options.door import DoorOptions
from martlet.options.flag import FlagKind, OptionError, option
from martlet.options.replay import time_ns
from martlet.options.tools import require_names

ACTIONS = ("list", "show", "redrive", "purge")
REASONS = ("max_attempts", "timeout", "disconnected", "rejected", "given_up")
_ID = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class DeadLetterOptions(DoorOptions):
    """What ``martlet dead-letters`` is started with.

    Raises:
        OptionError: there is no such action, or it is not said whose letters, or which.
    """

    action: str = option(
        "action", FlagKind.STRING, "", f"one of {', '.join(ACTIONS)}", section="what to do"
    )
    all: bool = option("all", FlagKind.BOOL, False, "redrive or purge all of the channel's")
    to_topic: str = option(
        "to-topic",
        FlagKind.STRING,
        "",
        "redrive to this topic, to all its channels (default: to the channel that they come from,"
        " and to no other)",
    )
    dry_run: bool = option("dry-run", FlagKind.BOOL, False, "only say what would be done")
    topic: str = option(
        "topic", FlagKind.STRING, "", "the topic that they come from", section="whose dead letters"
    )
    channel: str = option("channel", FlagKind.STRING, "", "the channel that gave them up")
    dead_letter_topic: str = option(
        "dead-letter-topic", FlagKind.STRING, "", "where they are (default: where the channel's go)"
    )
    ids: tuple[str, ...] = option(
        "id",
        FlagKind.STRINGS,
        (),
        "only this one; may be given several times",
        section="which of them",
    )
    reason: str = option(
        "reason",
        FlagKind.STRING,
        "",
        f"only these: {', '.join(REASONS[:-1])} or {REASONS[-1]}",
    )
    error: str = option("error", FlagKind.STRING, "", "only those whose errors contain this")
    since: str = option(
        "since",
        FlagKind.STRING,
        "",
        "only those given up at or after this time: 2026-01-31T12:00:00 in local time, seconds"
        " since 1970, or how long ago, as 90m",
    )
    until: str = option("until", FlagKind.STRING, "", "only those given up until this time")
    limit: int = option(
        "limit",
        FlagKind.INT,
        20,
        "show so many of each broker (0: all of them)",
        limits=(0, None),
        section="output",
    )
    max_body_bytes: int = option(
        "max-body-bytes", FlagKind.SIZE, 1024, "show no more of a body", limits=(0, 8 << 20)
    )
    json: bool = option("json", FlagKind.BOOL, False, "lines of JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action not in ACTIONS:
            told = f"{self.action!r} is none of them" if self.action else "none is given"
            raise OptionError(f"what to do is one of {', '.join(ACTIONS)}: {told}")
        for flag in ("topic", "channel", "dead-letter-topic", "to-topic"):
            value = getattr(self, flag.replace("-", "_"))
            if value:
                require_names(flag, [value])
        for flag in ("since", "until"):
            if text := getattr(self, flag):
                time_ns(flag, text, 0)
        if self.reason and self.reason not in REASONS:
            raise OptionError(f"--reason={self.reason}: it is one of {', '.join(REASONS)}")
        for id in self.ids:
            if not _ID.fullmatch(id):
                raise OptionError(f"--id={id}: an id has 16 hexadecimal digits")
        if self.action == "list":
            if bool(self.topic) != bool(self.channel):
                raise OptionError("--topic and --channel go together; without them all are listed")
            return
        if not self.dead_letter_topic and not (self.topic and self.channel):
            raise OptionError(
                "whose dead letters? Name --topic and --channel, or --dead-letter-topic"
            )
        which = self.ids or self.reason or self.error or self.since or self.until
        if self.action != "show" and not which and not self.all:
            raise OptionError(
                "which dead letters are meant? Say --all, or any of --id, --reason,"
                " --error, --since and --until"
            )

    def whose(self) -> dict[str, object]:
        """The fields of a call that say whose letters are meant."""
        fields = {
            "topic": self.topic,
            "channel": self.channel,
            "dead_letter_topic": self.dead_letter_topic,
        }
        return {name: value for name, value in fields.items() if value}

    def which(self, now_ns: int) -> Mapping[str, object]:
        """The fields that say which of them."""
        fields: dict[str, object] = {"reason": self.reason, "error": self.error}
        if self.ids:
            fields["ids"] = list(self.ids)
        for flag in ("since", "until"):
            if text := getattr(self, flag):
                fields[f"{flag}_ms"] = time_ns(flag, text, now_ns) // MILLISECOND_NS
        return {name: value for name, value in fields.items() if value}
