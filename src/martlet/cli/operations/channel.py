"""``martlet channel``: list the channels of topics and change them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from martlet.cli.broker_http import ChannelOptions
from martlet.cli.operations import configure, manage
from martlet.cli.operations.inventory import Fields, list_topics, paused_name
from martlet.cli.operations.manage import (
    CREATE,
    DELETE,
    EMPTY,
    PAUSE,
    UNPAUSE,
    ChannelDropOptions,
    ManageAction,
    change,
)
from martlet.cli.text import laid_out
from martlet.client.admin import TopicStats

LIST = "list the channels of each broker with their counts, or those of one topic"


def _channels(topic: TopicStats) -> Iterator[Fields]:
    for channel in topic.channels:
        yield {
            "topic": topic.topic,
            "channel": channel.channel,
            "depth": channel.depth,
            "in_flight": channel.in_flight_count,
            "deferred": channel.deferred_count,
            "clients": channel.client_count,
            "messages": channel.message_count,
            "paused": channel.is_paused,
        }


def channel_lines(channels: Iterable[Fields]) -> list[str]:
    """Format channels as text."""
    names = ("depth", "in_flight", "deferred", "clients", "messages")
    head = (name.replace("_", " ").upper() for name in names)
    rows: list[tuple[str, ...]] = [("TOPIC", "CHANNEL", *head, "BROKER")]
    for row in channels:
        counts = (str(row[name]) for name in names)
        rows.append((row["topic"], paused_name(row, "channel"), *counts, row["broker"]))
    return laid_out(rows, (2, 3, 4, 5, 6))


ACTIONS = {
    "list": ManageAction(
        list_topics("channel", LIST, _channels, channel_lines), "[TOPIC] [--json]", LIST
    ),
    "create": change(
        CREATE,
        ChannelOptions,
        "create a channel for later messages; the first of a topic also gets those stored before",
    ),
    "pause": change(PAUSE, ChannelOptions, "stop the delivery of a channel; messages wait"),
    "unpause": change(UNPAUSE, ChannelOptions, "let a channel deliver again"),
    "empty": change(EMPTY, ChannelDropOptions, "drop all messages of a channel"),
    "delete": change(
        DELETE,
        ChannelDropOptions,
        "delete a channel with its messages, and disconnect its consumers",
    ),
    "configure": ManageAction(
        configure.channel, "TOPIC CHANNEL [NAME=VALUE ...]", "set or show the policy of a channel"
    ),
}


def main(argv: Sequence[str]) -> int:
    """Run the action of the first word; return the exit code of the process."""
    return manage.main("channel", ACTIONS, argv)
