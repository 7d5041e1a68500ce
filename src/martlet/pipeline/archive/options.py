"""The options of ``martlet pipeline archive``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.checks import require_names
from martlet.options.flag import OptionError, Size, option
from martlet.pipeline.options import StreamJobOptions


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(StreamJobOptions):
    """The topics and the table of an archive."""

    topics: tuple[str, ...] = option(
        (), "what to archive; may be given several times", name="topic", section="archive"
    )
    topic_pattern: str = option(
        "", "or every topic whose whole name matches this regular expression, those to come too"
    )
    out: str = option("", "the table's folder, or a URL")
    format: str = option(
        "parquet",
        "parquet: plain files; delta: a table of Delta Lake",
        choices=(("parquet", "parquet"), ("delta", "delta")),
    )
    json_schema: str = option("", "fields of the messages: 'origin STRING, month INT'")
    keep_value: bool = option(False, "with --json-schema: keep each message's bytes too")
    partition_by: str = option(
        "topic,date,hour",
        "columns that become folders: topic, date, hour, and fields of the messages",
    )
    compression: str = option(
        "snappy",
        "of the files: snappy, zstd, gzip or none",
        choices=tuple((name, name) for name in ("snappy", "zstd", "gzip", "none")),
    )
    flush: bool = option(True, "wait until files are on the disk before they count")
    channel: str = option("archive", "keeps at the broker what is not archived yet; empty for none")
    group: str = option(
        "", "does so in the channel's place, as a group whose lag martlet groups shows"
    )
    starting_offsets: str = option(
        "earliest", "where an archive begins: earliest, latest, or as the source's startingOffsets"
    )
    fail_on_data_loss: bool = option(
        True, "false: go on behind messages that have gone unarchived, and log it"
    )
    compact: bool = option(
        False,
        "archive nothing: join the small files that are there, and end",
        section="small files",
    )
    compact_files: int = option(
        32, "join them during a run too, once a folder has so many (0: never)", limits=(0, None)
    )
    compact_idle_ns: int = option(
        5 * 60 * 10**9, "or once a folder got no more for so long", limits=(0, None)
    )
    target_bytes: Size = option(128 << 20, "how large joined files become", limits=(1 << 10, None))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compact:
            if not self.out:
                raise OptionError("say which archive to compact: --out=FOLDER")
            return
        self.require_brokers()
        if bool(self.topics) == bool(self.topic_pattern) or not self.out:
            raise OptionError(
                "say what to archive and where: --topic=TOPIC or --topic-pattern=REGEX, and"
                " --out=FOLDER"
            )
        require_names("topic", self.topics)
        if self.keep_value and not self.json_schema:
            raise OptionError("--keep-value is for --json-schema; without it all bytes are kept")

    @property
    def partitions(self) -> tuple[str, ...]:
        """The columns that become folders, one a piece."""
        return tuple(name.strip() for name in self.partition_by.split(",") if name.strip())
