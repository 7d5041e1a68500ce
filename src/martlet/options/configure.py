"""The options of ``martlet topic configure`` and ``martlet channel configure``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.door import ChannelOptions, DoorOptions
from martlet.options.flag import Kind, OptionError, option


@dataclass(frozen=True, kw_only=True)
class TopicConfigureOptions(DoorOptions):
    """What ``martlet topic configure`` is started with.

    Raises:
        OptionError: no topic is named.
    """

    topic: str = option("topic", Kind.STRING, "", "the topic", section="topic")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topic:
            raise OptionError("which topic is it? martlet topic configure TOPIC NAME=VALUE ...")


@dataclass(frozen=True, kw_only=True)
class ChannelConfigureOptions(ChannelOptions):
    """What ``martlet channel configure`` is started with."""
