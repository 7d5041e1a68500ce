"""The options of tools that ask brokers' HTTP doors."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.names import is_valid_name
from martlet.options.flag import FlagKind, OptionError, option
from martlet.options.http_client import connect_timeout, request_timeout
from martlet.options.options import LogOptions


@dataclass(frozen=True, kw_only=True)
class DoorOptions(LogOptions):
    """Which brokers are asked, and how long they may take.

    Raises:
        OptionError: no broker is named, or both brokers and lookup daemons are.
    """

    nsqd_http_addresses: tuple[str, ...] = option(
        "nsqd-http-address",
        FlagKind.STRINGS,
        (),
        "<addr>:<port> of a broker's HTTP; may be given several times",
        section="brokers",
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        "lookupd-http-address",
        FlagKind.STRINGS,
        (),
        "<addr>:<port> of a lookup daemon, which knows the brokers that have the topic; may be"
        " given several times",
    )
    connect_timeout_ns: int = connect_timeout()
    request_timeout_ns: int = request_timeout()

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.nsqd_http_addresses) == bool(self.lookupd_http_addresses):
            raise OptionError(
                "say which brokers to ask, either with --nsqd-http-address or with"
                " --lookupd-http-address"
            )


@dataclass(frozen=True, kw_only=True)
class TopicOptions(DoorOptions):
    """Which topic is asked for.

    Raises:
        OptionError: none is named, or its name is not valid.
    """

    topic: str = option("topic", FlagKind.STRING, "", "the topic", section="topic")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topic:
            raise OptionError("which topic is it? Write its name, or --topic=NAME")
        require_name("topic", self.topic)


@dataclass(frozen=True, kw_only=True)
class ChannelOptions(DoorOptions):
    """Which channel is asked for.

    Raises:
        OptionError: none is named, or its name is not valid.
    """

    topic: str = option("topic", FlagKind.STRING, "", "the topic", section="channel")
    channel: str = option("channel", FlagKind.STRING, "", "the channel")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topic or not self.channel:
            raise OptionError("--topic and --channel are needed: which channel is it?")
        require_name("topic", self.topic)
        require_name("channel", self.channel)


def require_name(flag: str, name: str) -> None:
    """See that a topic or a channel may be called that. Raises OptionError."""
    if not is_valid_name(name):
        raise OptionError(f"--{flag}={name} is not valid: 1 to 64 of .a-zA-Z0-9_-")
