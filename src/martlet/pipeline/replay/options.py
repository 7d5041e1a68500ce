"""The options of ``martlet pipeline replay``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.checks import require_names
from martlet.options.flag import OptionError, option
from martlet.pipeline.options import JobOptions
from martlet.text import SECOND_NS

TOPIC_PLACE = "{topic}"


@dataclass(frozen=True, kw_only=True)
class ReplayJobOptions(JobOptions):
    """The messages to send again, and the topic to send them to."""

    from_topics: tuple[str, ...] = option(
        (),
        "a topic whose earlier messages are sent again; may be given several times",
        name="from-topic",
        section="replay",
    )
    from_archive: str = option(
        "", "instead: the folder or URL of an archive, as `martlet pipeline archive` writes it"
    )
    start: str = option(
        "earliest",
        "the start: earliest, latest-1000, now-1h, 2026-11-22T08:00:00Z; for topics also JSON,"
        ' {"orders": {"0": 17}}',
    )
    end: str = option("latest", "the end, in the same notation, exclusive")
    where: str = option("", "a condition for messages in Spark SQL, like tag = 'paid'")
    json_schema: str = option(
        "", "fields of JSON messages, for --where: 'customer STRING, amount DOUBLE'"
    )
    to_topic: str = option(
        "", "the topic to send to; {topic} in it stands for the original topic of each message"
    )
    to_addresses: tuple[str, ...] = option(
        (), "<addr>:<port> of the HTTP listener of the brokers to send to (default: --address)"
    )
    rate: int = option(
        0, "maximum messages a second, before --where; 0 for no limit", limits=(0, None)
    )
    interval_ns: int = option(
        SECOND_NS, "with --rate: the time between two steps", limits=(100_000_000, None)
    )
    max_offsets: int = option(
        250_000, "maximum messages of one step, which is one transaction", limits=(1, None)
    )
    checkpoint: str = option(
        "",
        "folder or URL that stores the position: a restarted replay continues, and sends nothing"
        " twice",
    )
    dry_run: bool = option(False, "send nothing; only count the messages")

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.from_topics) == bool(self.from_archive):
            raise OptionError(
                "say what to replay: either --from-topic=TOPIC or --from-archive=FOLDER"
            )
        require_names("from-topic", self.from_topics)
        if self.from_topics or not self.to_addresses:
            self.require_brokers()
        if self.dry_run:
            return
        if not self.to_topic:
            raise OptionError("say where to: --to-topic=TOPIC")
        require_names("to-topic", [self.to_topic.replace(TOPIC_PLACE, "t")])
        if self.to_topic in self.from_topics or (self.from_topics and self.to_topic == TOPIC_PLACE):
            raise OptionError(f"--to-topic={self.to_topic} is where the messages are already")
        if not (self.to_addresses or self.addresses):
            raise OptionError("say which brokers get them: --to-addresses=HOST:PORT")
        if not self.checkpoint:
            raise OptionError(
                "name a checkpoint: --checkpoint=FOLDER stores the replay's position, so that no"
                " message is sent twice"
            )

    @property
    def step_offsets(self) -> int:
        """The maximum number of messages of one step."""
        by_rate = self.rate * self.interval_ns // SECOND_NS
        return min(self.max_offsets, max(1, by_rate)) if self.rate else self.max_offsets
