"""The options of ``martlet pipeline archive``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.flag import FlagKind, OptionError, option
from martlet.options.options import require_names
from martlet.pipeline.options import StreamJobOptions


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(StreamJobOptions):
    """What to archive, and where.

    Raises:
        OptionError: it is not said what to archive, or where.
    """

    topics: tuple[str, ...] = option(
        "topic",
        FlagKind.STRINGS,
        (),
        "what to archive; may be given several times",
        section="archive",
    )
    topic_pattern: str = option(
        "topic-pattern",
        FlagKind.STRING,
        "",
        "or every topic whose whole name matches this regular expression, those to come too",
    )
    out: str = option("out", FlagKind.STRING, "", "the table's folder, or a URL")
    format: str = option(
        "format",
        FlagKind.CHOICE,
        "parquet",
        "parquet: plain files; delta: a table of Delta Lake",
        choices=(("parquet", "parquet"), ("delta", "delta")),
    )
    json_schema: str = option(
        "json-schema", FlagKind.STRING, "", "fields of the messages: 'origin STRING, month INT'"
    )
    keep_value: bool = option(
        "keep-value", FlagKind.BOOL, False, "with --json-schema: keep each message's bytes too"
    )
    partition_by: str = option(
        "partition-by",
        FlagKind.STRING,
        "topic,date,hour",
        "columns that become folders: topic, date, hour, and fields of the messages",
    )
    compression: str = option(
        "compression",
        FlagKind.CHOICE,
        "snappy",
        "of the files: snappy, zstd, gzip or none",
        choices=tuple((name, name) for name in ("snappy", "zstd", "gzip", "none")),
    )
    flush: bool = option(
        "flush", FlagKind.BOOL, True, "wait until files are on the disk before they count"
    )
    channel: str = option(
        "channel",
        FlagKind.STRING,
        "archive",
        "keeps at the broker what is not archived yet; empty for none",
    )
    group: str = option(
        "group",
        FlagKind.STRING,
        "",
        "does so in the channel's place, as a group whose lag martlet groups shows",
    )
    starting_offsets: str = option(
        "starting-offsets",
        FlagKind.STRING,
        "earliest",
        "where an archive begins: earliest, latest, or as the source's startingOffsets",
    )
    fail_on_data_loss: bool = option(
        "fail-on-data-loss",
        FlagKind.BOOL,
        True,
        "false: go on behind messages that have gone unarchived, and log it",
    )
    compact: bool = option(
        "compact",
        FlagKind.BOOL,
        False,
        "archive nothing: join the small files that are there, and end",
        section="small files",
    )
    compact_files: int = option(
        "compact-files",
        FlagKind.INT,
        32,
        "join them during a run too, once a folder has so many (0: never)",
        limits=(0, None),
    )
    compact_idle_ns: int = option(
        "compact-idle",
        FlagKind.DURATION,
        5 * 60 * 10**9,
        "or once a folder got no more for so long",
        limits=(0, None),
    )
    target_bytes: int = option(
        "target-bytes",
        FlagKind.SIZE,
        128 << 20,
        "how large joined files become",
        limits=(1 << 10, None),
    )

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
