"""The options of ``martlet topic``, ``channel``, ``nodes`` and ``health``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from martlet.options.door import ChannelOptions, DoorOptions, TopicOptions, require_name
from martlet.options.flag import FlagKind, option

MAX_QUEUES = 1024


@dataclass(frozen=True, kw_only=True)
class TopicCreateOptions(TopicOptions):
    """What ``martlet topic create`` is started with."""

    queues: int = option(
        "queues",
        FlagKind.INT,
        1,
        "how many queues it has on each broker; a topic that is there gets more, and never fewer",
        limits=(1, MAX_QUEUES),
    )


def _force() -> Any:
    return option(
        "force",
        FlagKind.BOOL,
        False,
        "do it: messages are lost; without it, what would be lost is shown and nothing is done",
    )


@dataclass(frozen=True, kw_only=True)
class TopicDropOptions(TopicOptions):
    """What ``martlet topic delete`` and ``empty`` are started with."""

    force: bool = _force()


@dataclass(frozen=True, kw_only=True)
class ChannelDropOptions(ChannelOptions):
    """What ``martlet channel delete`` and ``empty`` are started with."""

    force: bool = _force()


@dataclass(frozen=True, kw_only=True)
class InventoryOptions(DoorOptions):
    """What ``martlet nodes`` and ``martlet health`` are started with."""

    json: bool = option("json", FlagKind.BOOL, False, "lines of JSON", section="output")


@dataclass(frozen=True, kw_only=True)
class ListOptions(InventoryOptions):
    """What ``martlet topic list`` and ``martlet channel list`` are started with.

    Raises:
        OptionError: the topic's name is not valid.
    """

    topic: str = option(
        "topic", FlagKind.STRING, "", "only this topic (default: every topic)", section="what"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topic:
            require_name("topic", self.topic)
