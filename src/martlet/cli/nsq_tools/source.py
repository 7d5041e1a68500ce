"""The source of a tool's messages: its flags, and its consumer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from martlet.cli.nsq_tools.client_options import (
    ClientOptions,
    client_options,
    consumer_settings,
    without_effect,
)
from martlet.cli.nsq_tools.listeners import tcp_addresses
from martlet.client import Consumer, SharedRate
from martlet.client.consumer.rate import check_rate
from martlet.options.addresses import (
    HOW_TO_NAME,
    address_option,
    fill_in_addresses,
    lookup_option,
)
from martlet.options.checks import require_addresses, require_names
from martlet.options.flag import Flag, OptionError, option
from martlet.options.options import LogOptions

_KEEPS = {"max_attempts": "a message comes again until it is finished"}


@dataclass(frozen=True, kw_only=True)
class SourceOptions(LogOptions):
    """The source of a tool's messages.

    Attributes:
        gives_up: whether the tool supports ``max_attempts`` of ``--consumer-opt``.

    Raises:
        OptionError: no broker is named, or no topic.
    """

    gives_up: ClassVar[bool] = False
    topics: tuple[str, ...] = option(
        (), "a topic; may be given several times", name="topic", section="messages"
    )
    nsqd_http_addresses: tuple[str, ...] = address_option()
    lookupd_http_addresses: tuple[str, ...] = lookup_option()
    nsqd_tcp_addresses: tuple[str, ...] = option(
        (),
        "<addr>:<port> of a broker's NSQ protocol, in place of --address; may be given several"
        " times",
        name="nsqd-tcp-address",
    )
    max_in_flight: int = option(200, "maximum messages in flight", limits=(1, 2**31 - 1))
    consumer_opts: tuple[str, ...] = option(
        (),
        "KEY,VALUE: TLS, compression, AUTH and more, named as in NSQ's Go client; may be given"
        " several times, and an unknown key lists all",
        name="consumer-opt",
    )

    @property
    def client(self) -> ClientOptions:
        """The options that ``--consumer-opt`` sets."""
        return client_options("consumer-opt", self.consumer_opts)

    def without_effect(self) -> list[tuple[Flag, object]]:
        """List options without effect, as `Options` does."""
        also = {} if self.gives_up else _KEEPS
        return super().without_effect() + without_effect("consumer-opt", self.client, also)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.client
        if not (self.nsqd_tcp_addresses or self.lookupd_http_addresses):
            fill_in_addresses(self)
        brokers = self.nsqd_tcp_addresses or self.nsqd_http_addresses
        if bool(brokers) == bool(self.lookupd_http_addresses):
            raise OptionError(f"name the source of the messages, {HOW_TO_NAME}")
        require_names("topic", self.topics)
        require_names("channel", filter(None, [getattr(self, "channel", "")]))
        require_addresses("--nsqd-tcp-address", self.nsqd_tcp_addresses)

    @cached_property
    def broker_addresses(self) -> tuple[str, ...]:
        """The TCP addresses of the brokers, none with lookup daemons.

        Raises ClientError: a broker that is named by its HTTP address cannot be asked.
        """
        return self.nsqd_tcp_addresses + tcp_addresses(self.nsqd_http_addresses)


@dataclass(frozen=True, kw_only=True)
class LimitedSourceOptions(SourceOptions):
    """The source of a tool that can be slowed down.

    Raises:
        OptionError: the rate is none.
    """

    channel: str = option("", "the channel")
    rate: float = option(
        0.0,
        "maximum messages a second, of all topics together, with bursts of a tenth of that; 0: no"
        " limit",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate:
            try:
                check_rate(self.rate, 0)
            except ValueError as error:
                raise OptionError(str(error).replace("rate_per_s", "--rate")) from None


def consumers(options: LimitedSourceOptions) -> dict[str, Consumer]:
    """Make the consumers of a tool's topics, which share its rate; they are not connected yet."""
    rate = SharedRate(options.rate) if options.rate else 0
    return {
        topic: consumer(options, topic, options.channel, rate_per_s=rate)
        for topic in dict.fromkeys(options.topics)
    }


def consumer(
    options: SourceOptions,
    topic: str,
    channel: str,
    max_in_flight: int | None = None,
    rate_per_s: SharedRate | float = 0,
) -> Consumer:
    """Make a consumer of one of a tool's topics; it is not connected yet. Raises ClientError.

    Args:
        options: the brokers and the client's settings.
        topic, channel: to consume.
        max_in_flight: the prefetch, if not that of the options.
        rate_per_s: the maximum number of messages a second; 0 for no limit.
    """
    return Consumer(
        topic,
        channel,
        options.broker_addresses or None,
        lookup=options.lookupd_http_addresses or None,
        max_in_flight=max_in_flight or options.max_in_flight,
        rate_per_s=rate_per_s,
        **consumer_settings(options.client),
    )
