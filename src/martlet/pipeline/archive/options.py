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
        (), "a topic to archive; may be given several times", name="topic", section="archive"
    )
    topic_pattern: str = option(
        "",
        "or every topic whose full name matches this regular expression in RE2's syntax, also"
        " future ones",
    )
    out: str = option("", "folder or URL of the table")
    format: str = option(
        "parquet",
        "parquet: plain files; delta: a Delta Lake table",
        choices=(("parquet", "parquet"), ("delta", "delta")),
    )
    json_schema: str = option("", "fields of JSON messages: 'origin STRING, month INT'")
    keep_value: bool = option(False, "with --json-schema: also keep the bytes of each message")
    partition_by: str = option(
        "topic,date,hour",
        "the partition columns: topic, date, hour, and fields of the messages",
    )
    compression: str = option(
        "snappy",
        "compression of the files: snappy, zstd, gzip or none",
        choices=tuple((name, name) for name in ("snappy", "zstd", "gzip", "none")),
    )
    flush: bool = option(True, "flush files to disk before they are committed")
    channel: str = option(
        "archive",
        "the channel that retains messages at the broker until they are archived; empty for none",
    )
    group: str = option(
        "", "a group that retains them instead; martlet groups shows the group's lag"
    )
    starting_offsets: str = option(
        "earliest",
        "where a new archive starts: earliest, latest, or as the source's startingOffsets",
    )
    fail_on_data_loss: bool = option(
        True, "false: log messages that were removed before they were archived, and continue"
    )
    compact: bool = option(
        False,
        "archive nothing: merge the small files that are there, and end",
        section="small files",
    )
    compact_files: int = option(
        32,
        "also merge them during a run, once a folder has this many (0: never)",
        limits=(0, None),
    )
    compact_idle_ns: int = option(
        5 * 60 * 10**9, "or once a folder got no file for this long", limits=(0, None)
    )
    target_bytes: Size = option(128 << 20, "target size of merged files", limits=(1 << 10, None))

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
        """The partition columns, split at commas."""
        return tuple(name.strip() for name in self.partition_by.split(",") if name.strip())
