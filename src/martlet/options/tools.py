"""The options of the tools, named as NSQ names the flags of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from martlet.duration import MINUTE_NS, SECOND_NS
from martlet.options.client import ClientOptions, client_options, without_effect
from martlet.options.flag import Flag, Kind, OptionError, option
from martlet.options.options import LogOptions

_KEEPS = {"max_attempts": "a message comes again until it is finished"}


@dataclass(frozen=True, kw_only=True)
class SourceOptions(LogOptions):
    """Where a tool gets messages from.

    Attributes:
        gives_up: whether the tool gives messages up that failed too often, where it is told to.

    Raises:
        OptionError: no broker is named, or no topic.
    """

    gives_up: ClassVar[bool] = False
    topics: tuple[str, ...] = option(
        "topic", Kind.STRINGS, (), "a topic; may be given several times", section="messages"
    )
    nsqd_tcp_addresses: tuple[str, ...] = option(
        "nsqd-tcp-address",
        Kind.STRINGS,
        (),
        "<addr>:<port> of a broker; may be given several times",
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        "lookupd-http-address",
        Kind.STRINGS,
        (),
        "<addr>:<port> of a lookup daemon; may be given several times",
    )
    max_in_flight: int = option(
        "max-in-flight",
        Kind.INT,
        200,
        "how many messages may be here and not be answered",
        limits=(1, 2**31 - 1),
    )
    consumer_opts: tuple[str, ...] = option(
        "consumer-opt",
        Kind.STRINGS,
        (),
        "KEY,VALUE: TLS, compression, AUTH and more, named as in NSQ's Go client; may be given"
        " several times, and an unknown key lists all",
    )

    @property
    def client(self) -> ClientOptions:
        """What ``--consumer-opt`` says."""
        return client_options("consumer-opt", self.consumer_opts)

    def without_effect(self) -> list[tuple[Flag, object]]:
        """See `Options`."""
        also = {} if self.gives_up else _KEEPS
        return super().without_effect() + without_effect("consumer-opt", self.client, also)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.client
        if bool(self.nsqd_tcp_addresses) == bool(self.lookupd_http_addresses):
            raise OptionError(
                "say where the messages are, either with --nsqd-tcp-address or with"
                " --lookupd-http-address"
            )


@dataclass(frozen=True, kw_only=True)
class TailOptions(SourceOptions):
    """What ``martlet tail`` is started with."""

    channel: str = option(
        "channel", Kind.STRING, "", "the channel (default: an ephemeral one of its own)"
    )
    count: int = option(
        "n",
        Kind.INT,
        0,
        "show so many messages and end (0: until it is stopped)",
        limits=(0, None),
        section="output",
    )
    print_topic: bool = option(
        "print-topic", Kind.BOOL, False, "put the topic's name before each message"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topics:
            raise OptionError("--topic is missing: which topics are to be shown?")


@dataclass(frozen=True, kw_only=True)
class PublishOptions(LogOptions):
    """What ``martlet pub`` is started with."""

    topic: str = option("topic", Kind.STRING, "", "the topic to publish to", section="messages")
    nsqd_tcp_addresses: tuple[str, ...] = option(
        "nsqd-tcp-address",
        Kind.STRINGS,
        (),
        "<addr>:<port> of a broker; may be given several times: each gets every message",
    )
    delimiter: str = option(
        "delimiter", Kind.STRING, "\n", "one character, which ends each message of the input"
    )
    timeout_ns: int = option(
        "timeout",
        Kind.DURATION,
        10 * SECOND_NS,
        "how long a broker may be out of reach",
        limits=(1, None),
    )
    rate: int = option(
        "rate", Kind.INT, 0, "at most so many messages a second (0: no limit)", limits=(0, None)
    )
    producer_opts: tuple[str, ...] = option(
        "producer-opt",
        Kind.STRINGS,
        (),
        "KEY,VALUE: TLS, compression, AUTH and more, named as in NSQ's Go client; may be given"
        " several times, and an unknown key lists all",
    )

    @property
    def client(self) -> ClientOptions:
        """What ``--producer-opt`` says."""
        return client_options("producer-opt", self.producer_opts)

    def without_effect(self) -> list[tuple[Flag, object]]:
        """See `Options`."""
        return super().without_effect() + without_effect("producer-opt", self.client)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.client
        if not self.topic:
            raise OptionError("--topic is missing: where are the messages to go?")
        if not self.nsqd_tcp_addresses:
            raise OptionError("--nsqd-tcp-address is missing: which broker is to have them?")
        if len(self.delimiter.encode()) != 1:
            raise OptionError(f"--delimiter={self.delimiter!r} must be one byte")


@dataclass(frozen=True, kw_only=True)
class FileOptions(SourceOptions):
    """What ``martlet to-file`` is started with."""

    channel: str = option("channel", Kind.STRING, "nsq_to_file", "the channel")
    topic_pattern: str = option(
        "topic-pattern",
        Kind.STRING,
        "",
        "a regular expression: every topic that lookup daemons know and whose name holds it",
    )
    topic_refresh_ns: int = option(
        "topic-refresh",
        Kind.DURATION,
        MINUTE_NS,
        "how often lookup daemons are asked for topics",
        limits=(1, None),
    )
    output_dir: str = option(
        "output-dir", Kind.STRING, "/tmp", "the folder of finished files", section="files"
    )
    work_dir: str = option(
        "work-dir",
        Kind.STRING,
        "",
        "the folder of files that are being written (default: the output folder)",
    )
    filename_format: str = option(
        "filename-format",
        Kind.STRING,
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "names of files; <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> are replaced",
    )
    datetime_format: str = option(
        "datetime-format", Kind.STRING, "%Y-%m-%d_%H", "strftime's format for <DATETIME>"
    )
    host_identifier: str = option(
        "host-identifier",
        Kind.STRING,
        "",
        "what <HOST> stands for; <SHORT_HOST> and <HOSTNAME> in it are replaced"
        " (default: the host's short name)",
    )
    gzip: bool = option("gzip", Kind.BOOL, False, "compress the files")
    gzip_level: int = option(
        "gzip-level", Kind.INT, 6, "from 1, the fastest, to 9, the smallest", limits=(1, 9)
    )
    rotate_size: int = option(
        "rotate-size",
        Kind.SIZE,
        0,
        "begin a file when one has more bytes (0: never for that)",
        limits=(0, None),
    )
    rotate_interval_ns: int = option(
        "rotate-interval",
        Kind.DURATION,
        0,
        "begin a file when one is older (0: never for that)",
        limits=(0, None),
    )
    sync_interval_ns: int = option(
        "sync-interval",
        Kind.DURATION,
        30 * SECOND_NS,
        "how often what was written is flushed to disk, and finished",
        limits=(1, None),
    )
    skip_empty_files: bool = option(
        "skip-empty-files", Kind.BOOL, False, "begin a file only when there is a message for it"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topics and not self.topic_pattern:
            raise OptionError("say which topics, with --topic or --topic-pattern")
        if self.topic_pattern and not self.lookupd_http_addresses:
            raise OptionError("--topic-pattern needs a --lookupd-http-address")
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
    def counts_files(self) -> bool:
        """Whether several files may want one name."""
        rotates = self.rotate_size > 0 or self.rotate_interval_ns > 0
        return self.gzip or rotates or self.work_path != self.output_dir
