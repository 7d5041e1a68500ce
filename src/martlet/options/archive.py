"""The options of ``martlet pipeline archive``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.flag import Kind, OptionError, option
from martlet.options.pipeline import StreamJobOptions
from martlet.options.tools import require_names


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(StreamJobOptions):
    """What to archive, and where.

    Raises:
        OptionError: it is not said what to archive, or where.
    """

    topics: tuple[str, ...] = option(
        "topic", Kind.STRINGS, (), "what to archive; may be given several times", section="archive"
    )
    out: str = option("out", Kind.STRING, "", "the table's folder, or a URL")
    json_schema: str = option(
        "json-schema", Kind.STRING, "", "fields of the messages: 'origin STRING, month INT'"
    )
    partition_by: str = option(
        "partition-by", Kind.STRING, "topic,date", "columns that become folders"
    )
    channel: str = option(
        "channel",
        Kind.STRING,
        "archive",
        "keeps at the broker what is not archived yet; empty for none",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_brokers()
        if not self.topics or not self.out:
            raise OptionError("say what to archive and where: --topic=TOPIC --out=FOLDER")
        require_names("topic", self.topics)
