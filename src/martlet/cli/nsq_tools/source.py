"""The source of a tool: the consumer that its options ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from martlet.cli.nsq_tools.client_options import (
    ClientOptions,
    client_options,
    consumer_settings,
    without_effect,
)
from martlet.client import Consumer
from martlet.durations import SECOND_NS
from martlet.options.checks import require_addresses, require_names
from martlet.options.flag import Flag, OptionError, option
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
        (), "a topic; may be given several times", name="topic", section="messages"
    )
    nsqd_tcp_addresses: tuple[str, ...] = option(
        (), "<addr>:<port> of a broker; may be given several times", name="nsqd-tcp-address"
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        "<addr>:<port> of a lookup daemon; may be given several times",
        name="lookupd-http-address",
    )
    max_in_flight: int = option(
        200, "how many messages may be here and not be answered", limits=(1, 2**31 - 1)
    )
    consumer_opts: tuple[str, ...] = option(
        (),
        "KEY,VALUE: TLS, compression, AUTH and more, named as in NSQ's Go client; may be given"
        " several times, and an unknown key lists all",
        name="consumer-opt",
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
        require_names("topic", self.topics)
        require_names("channel", filter(None, [getattr(self, "channel", "")]))
        require_addresses("nsqd-tcp-address", self.nsqd_tcp_addresses)


@dataclass(frozen=True, kw_only=True)
class TailOptions(SourceOptions):
    """What ``martlet tail`` is started with."""

    channel: str = option("", "the channel (default: an ephemeral one of its own)")
    count: int = option(
        0,
        "show so many messages and end (0: until it is stopped)",
        name="n",
        limits=(0, None),
        section="output",
    )
    print_topic: bool = option(False, "put the topic's name before each message")
    print_properties: bool = option(False, "put the properties of each message before it, as JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topics:
            raise OptionError("--topic is missing: which topics are to be shown?")


@dataclass(frozen=True, kw_only=True)
class PublishOptions(LogOptions):
    """What ``martlet pub`` is started with."""

    topic: str = option("", "the topic to publish to", section="messages")
    nsqd_tcp_addresses: tuple[str, ...] = option(
        (),
        "<addr>:<port> of a broker; may be given several times: each gets every message",
        name="nsqd-tcp-address",
    )
    delimiter: str = option("\n", "one character, which ends each message of the input")
    dead_letters: bool = option(
        False,
        "the input is what an earlier version kept of a full disk in --dead-letter-path:"
        " lines of JSON",
    )
    timeout_ns: int = option(
        10 * SECOND_NS, "how long a broker may be out of reach", limits=(1, None)
    )
    rate: int = option(0, "at most so many messages a second (0: no limit)", limits=(0, None))
    producer_opts: tuple[str, ...] = option(
        (),
        "KEY,VALUE: TLS, compression, AUTH and more, named as in NSQ's Go client; may be given"
        " several times, and an unknown key lists all",
        name="producer-opt",
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
        require_names("topic", [self.topic])
        require_addresses("nsqd-tcp-address", self.nsqd_tcp_addresses)
        if len(self.delimiter.encode()) != 1:
            raise OptionError(f"--delimiter={self.delimiter!r} must be one byte")


def consumer(
    options: SourceOptions, topic: str, channel: str, max_in_flight: int | None = None
) -> Consumer:
    """A consumer of one of a tool's topics, which is not connected yet.

    Args:
        options: where the messages are, and how a client is to be.
        topic: which of the topics.
        channel: the channel.
        max_in_flight: how many messages may be here, where it is not what the options say.
    """
    return Consumer(
        topic,
        channel,
        options.nsqd_tcp_addresses or None,
        lookup=options.lookupd_http_addresses or None,
        max_in_flight=max_in_flight or options.max_in_flight,
        **consumer_settings(options.client),
    )
