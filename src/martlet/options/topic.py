"""The options of ``martlet topic``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.door import DoorOptions
from martlet.options.flag import Kind, OptionError, option

MOST_QUEUES = 1024


@dataclass(frozen=True, kw_only=True)
class TopicCreateOptions(DoorOptions):
    """What ``martlet topic create`` is started with.

    Raises:
        OptionError: no topic is named.
    """

    topic: str = option("topic", Kind.STRING, "", "the topic", section="topic")
    queues: int = option(
        "queues",
        Kind.INT,
        1,
        "how many queues it has on each broker; a topic that is there gets more, and never fewer",
        limits=(1, MOST_QUEUES),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topic:
            raise OptionError("which topic is it? martlet topic create TOPIC --queues=8")
