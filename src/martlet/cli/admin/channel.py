"""``martlet channel``: the channels of topics, looked at and changed."""

from __future__ import annotations

from collections.abc import Sequence

from martlet.cli.admin import configure, manage
from martlet.cli.admin.inventory import ChannelDropOptions, Inventory, ListOptions, channel_lines
from martlet.cli.admin.manage import CREATE, DELETE, EMPTY, PAUSE, UNPAUSE, ManageAction, change
from martlet.cli.broker_http import ChannelOptions

LIST = "list the channels of each broker with their counts, or those of one topic"


def list_all(argv: Sequence[str]) -> int:
    """List channels; the result is the exit code of the process."""
    return manage.inventory(
        "channel list", "channels", LIST, ListOptions, Inventory.channels, channel_lines, argv
    )


ACTIONS = {
    "list": ManageAction(list_all, "[TOPIC] [--json]", LIST),
    "create": change(
        CREATE, ChannelOptions, "create a channel; it gets what is published from then on"
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
    """Do what the first word says; the result is the exit code of the process."""
    return manage.main("channel", ACTIONS, argv)
