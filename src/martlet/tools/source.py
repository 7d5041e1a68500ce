"""The source of a tool: the consumer that its options ask for."""

from __future__ import annotations

from martlet.client import Consumer
from martlet.options.tools import SourceOptions
from martlet.tools.client_settings import consumer_settings


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
