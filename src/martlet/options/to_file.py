"""The options of ``martlet to-file``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from martlet.durations import MINUTE_NS, SECOND_NS
from martlet.options.flag import FlagKind, OptionError, option
from martlet.options.http_client import connect_timeout, request_timeout
from martlet.options.tools import SourceOptions


@dataclass(frozen=True, kw_only=True)
class FileOptions(SourceOptions):
    """What ``martlet to-file`` is started with."""

    channel: str = option("channel", FlagKind.STRING, "nsq_to_file", "the channel")
    topic_pattern: str = option(
        "topic-pattern",
        FlagKind.STRING,
        "",
        "a regular expression: every topic that lookup daemons know and whose name holds it",
    )
    topic_refresh_ns: int = option(
        "topic-refresh",
        FlagKind.DURATION,
        MINUTE_NS,
        "how often lookup daemons are asked for topics",
        limits=(1, None),
    )
    connect_timeout_ns: int = connect_timeout("how long connecting to a lookup daemon may take")
    request_timeout_ns: int = request_timeout(
        "how long a lookup daemon may take to tell its topics"
    )
    output_dir: str = option(
        "output-dir", FlagKind.STRING, "/tmp", "the folder of finished files", section="files"
    )
    work_dir: str = option(
        "work-dir",
        FlagKind.STRING,
        "",
        "the folder of files that are being written (default: the output folder)",
    )
    filename_format: str = option(
        "filename-format",
        FlagKind.STRING,
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "names of files; <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> are replaced",
    )
    datetime_format: str = option(
        "datetime-format", FlagKind.STRING, "%Y-%m-%d_%H", "strftime's format for <DATETIME>"
    )
    host_identifier: str = option(
        "host-identifier",
        FlagKind.STRING,
        "",
        "what <HOST> stands for; <SHORT_HOST> and <HOSTNAME> in it are replaced"
        " (default: the host's short name)",
    )
    gzip: bool = option("gzip", FlagKind.BOOL, False, "compress the files with gzip")
    gzip_level: int = option(
        "gzip-level", FlagKind.INT, 6, "from 1, the fastest, to 9, the smallest", limits=(1, 9)
    )
    zstd: bool = option("zstd", FlagKind.BOOL, False, "compress the files with zstd")
    zstd_level: int = option(
        "zstd-level", FlagKind.INT, 3, "from 1, the fastest, to 19, the smallest", limits=(1, 19)
    )
    rotate_size: int = option(
        "rotate-size",
        FlagKind.SIZE,
        0,
        "begin a file when one has more bytes (0: never for that)",
        limits=(0, None),
    )
    rotate_interval_ns: int = option(
        "rotate-interval",
        FlagKind.DURATION,
        0,
        "begin a file when one is older (0: never for that)",
        limits=(0, None),
    )
    sync_interval_ns: int = option(
        "sync-interval",
        FlagKind.DURATION,
        30 * SECOND_NS,
        "how often files are exchanged whose time is over (--rotate-interval, --datetime-format)"
        " while no message comes; messages are flushed to disk and finished at once, batch by"
        " batch, and wait for no interval",
        limits=(1, None),
    )
    skip_empty_files: bool = option(
        "skip-empty-files", FlagKind.BOOL, False, "begin a file only when there is a message for it"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topics and not self.topic_pattern:
            raise OptionError("say which topics, with --topic or --topic-pattern")
        if self.topic_pattern and not self.lookupd_http_addresses:
            raise OptionError("--topic-pattern needs a --lookupd-http-address")
        try:
            re.compile(self.topic_pattern)
        except re.error as error:
            raise OptionError(f"--topic-pattern={self.topic_pattern}: {error}") from None
        if not self.channel:
            raise OptionError("--channel needs a name")
        if self.gzip and self.zstd:
            raise OptionError("choose one of --gzip and --zstd")
        if self.counts_files and "<REV>" not in self.filename_format:
            raise OptionError(
                "--filename-format needs a <REV> when files are compressed, rotated or moved, so"
                " that none takes the place of another"
            )

    @property
    def work_path(self) -> str:
        """Where files are written."""
        return self.work_dir or self.output_dir

    @property
    def compresses(self) -> bool:
        """Whether files are compressed."""
        return self.gzip or self.zstd

    @property
    def suffix(self) -> str:
        """What the names of compressed files end in."""
        return ".gz" if self.gzip else ".zst" if self.zstd else ""

    @property
    def counts_files(self) -> bool:
        """Whether several files may want one name."""
        rotates = self.rotate_size > 0 or self.rotate_interval_ns > 0
        return self.compresses or rotates or self.work_path != self.output_dir
