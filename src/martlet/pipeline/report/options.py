"""The options of ``martlet pipeline report``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.checks import require_names
from martlet.options.flag import OptionError, option
from martlet.pipeline.options import StreamJobOptions


@dataclass(frozen=True, kw_only=True)
class LiveReportOptions(StreamJobOptions):
    """The figures of a report, and where they go."""

    description: str = option(
        "",
        "a TOML file that says which figures; or one with a query, its name ending in .sql",
        section="report",
    )
    sql: str = option("", "instead of a file: a query on the table messages")
    mode: str = option(
        "update",
        "what is told of --sql's rows: update (those that changed), append (those that are final)"
        " or complete (all)",
        choices=tuple((name, name) for name in ("update", "append", "complete")),
    )
    topics: tuple[str, ...] = option(
        (),
        "what to read, beside what the description names; may be given several times",
        name="topic",
    )
    json_schema: str = option("", "with --sql: fields of the messages, 'origin STRING, n INT'")
    time: str = option("timestamp", "with --sql: the column that says when a message counts")
    watermark: str = option("1 minute", "with --sql: how late a message may come")
    start: str = option("earliest", "where to begin without a checkpoint: earliest or latest")
    console: bool = option(True, "print the newest figures", section="where to")
    page: str = option("", "an HTML file with plots, written anew each time")
    parquet: str = option(
        "", "a folder or URL for final figures, one folder each: those whose windows have ended"
    )
    to_topic: str = option("", "a topic for final figures, each one message of JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_brokers()
        if self.description and self.sql:
            raise OptionError("--description and --sql exclude each other")
        require_names("topic", self.topics)
        if self.to_topic:
            require_names("to-topic", [self.to_topic])
            if not self.addresses:
                raise OptionError("--to-topic needs --addresses: the brokers that it is at")
        if self.start not in ("earliest", "latest"):
            raise OptionError(f"--start={self.start} is neither earliest nor latest")
        if (self.parquet or self.to_topic) and not self.checkpoint:
            raise OptionError(
                "--parquet and --to-topic need --checkpoint=FOLDER, so that each final figure is"
                " told once"
            )
