"""The flags that name brokers and lookup daemons to ask over HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.client.admin import Admin
from martlet.http_requests import read_tokens
from martlet.options.addresses import AddressOptions, check_trusted, trusted_brokers_option
from martlet.options.checks import require_name
from martlet.options.flag import OptionError, option
from martlet.options.network import connect_timeout, operator_token_file, request_timeout
from martlet.text import SECOND_NS


@dataclass(frozen=True, kw_only=True)
class BrokerHttpOptions(AddressOptions):
    """The brokers to ask, and the timeouts."""

    connect_timeout_ns: int = connect_timeout()
    request_timeout_ns: int = request_timeout()
    operator_token_file: str = operator_token_file()
    trusted_brokers: tuple[str, ...] = trusted_brokers_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_trusted("--trusted-broker", self.trusted_brokers)

    def admin(self) -> Admin:
        """Return the API over these brokers. Raises OSError: the token cannot be read."""
        path = self.operator_token_file
        return Admin(
            self.nsqd_http_addresses,
            lookupd_http_addresses=self.lookupd_http_addresses,
            connect_timeout_s=self.connect_timeout_ns / SECOND_NS,
            request_timeout_s=self.request_timeout_ns / SECOND_NS,
            operator_token=read_tokens(path)[0] if path else None,
            trusted_brokers=self.trusted_brokers,
        )


@dataclass(frozen=True, kw_only=True)
class TopicOptions(BrokerHttpOptions):
    """The flag of the topic."""

    topic: str = option("", "the topic", section="topic")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topic:
            raise OptionError("the topic is missing: add its name, or --topic=NAME")
        require_name("topic", self.topic)


@dataclass(frozen=True, kw_only=True)
class ChannelOptions(BrokerHttpOptions):
    """The flags of the channel."""

    topic: str = option("", "the topic", section="channel")
    channel: str = option("", "the channel")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topic or not self.channel:
            raise OptionError(
                "the channel is missing: add the names of its topic and of the channel"
            )
        require_name("topic", self.topic)
        require_name("channel", self.channel)
