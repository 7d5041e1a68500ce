"""The options of ``martlet pipeline report``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.checks import require_names
from martlet.options.flag import OptionError, option
from martlet.pipeline.options import StreamJobOptions


@dataclass(frozen=True, kw_only=True)
class LiveReportOptions(StreamJobOptions):
    """The figures of a report, and its outputs."""

    description: str = option(
        "",
        "a TOML file with the figures; or a file with a query, its name ending in .sql",
        section="report",
    )
    sql: str = option("", "instead of a file: a query on the table messages")
    mode: str = option(
        "update",
        "the rows of --sql to show: update (changed rows), append (final rows) or complete (all)",
        choices=tuple((name, name) for name in ("update", "append", "complete")),
    )
    topics: tuple[str, ...] = option(
        (),
        "a topic to read, in addition to the description's; may be given several times",
        name="topic",
    )
    json_schema: str = option("", "with --sql: fields of JSON messages, 'origin STRING, n INT'")
    time: str = option("timestamp", "with --sql: the event time column")
    watermark: str = option("1 minute", "with --sql: the maximum delay of a message")
    start: str = option("earliest", "where to start without a checkpoint: earliest or latest")
    console: bool = option(True, "print the newest figures", section="output")
    page: str = option("", "an HTML file with plots, rewritten with each micro-batch")
    parquet: str = option(
        "", "a folder or URL for final rows, whose windows have ended; a folder for each figure"
    )
    to_topic: str = option("", "a topic for final rows, each a JSON message")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_brokers()
        if self.description and self.sql:
            raise OptionError("--description and --sql exclude each other")
        require_names("topic", self.topics)
        if self.to_topic:
            require_names("to-topic", [self.to_topic])
            if not self.addresses:
                raise OptionError("--to-topic needs --address: the brokers of the topic")
        if self.start not in ("earliest", "latest"):
            raise OptionError(f"--start={self.start} is neither earliest nor latest")
        if (self.parquet or self.to_topic) and not self.checkpoint:
            raise OptionError(
                "--parquet and --to-topic need --checkpoint=FOLDER, so that each final row is"
                " written once"
            )
