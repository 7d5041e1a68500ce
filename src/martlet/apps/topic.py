"""``martlet topic``: topics, looked at and changed."""

from __future__ import annotations

from collections.abc import Sequence

from martlet.apps import configure, manage, tool
from martlet.apps.manage import ManageAction, change
from martlet.options.door import TopicOptions
from martlet.options.topic import ListOptions, TopicCreateOptions, TopicDropOptions
from martlet.plural import counted
from martlet.tools.inventory import Inventory, topic_lines
from martlet.tools.manage import DELETE, EMPTY, PAUSE, UNPAUSE
from martlet.tools.topic import TopicCreation

CREATE = (
    "Make a topic on each broker named, or on all that a lookup daemon knows, with so many queues."
    " A queue has offsets and an order of its own; NSQ's clients consume all of them as one topic."
    " A topic that is there gets more queues while it is in use, and can not get fewer. The topic"
    " may stand without its flag: martlet topic create TOPIC --queues=8."
)


def create(argv: Sequence[str]) -> int:
    """Make a topic; the result is the exit code of the process."""
    found = tool.named(TopicCreateOptions, argv, "topic")
    options = tool.options("topic create", CREATE, TopicCreateOptions, found, "TOPIC")
    return tool.run_at_each(
        TopicCreation(options).run,
        lambda queues: f"topic {options.topic!r} has {counted(queues, 'queue')}",
    )


LIST = "list the topics of each broker with their counts, or one of them"


def list_all(argv: Sequence[str]) -> int:
    """List topics; the result is the exit code of the process."""
    return manage.inventory(
        "topic list", "topics", LIST, ListOptions, Inventory.topics, topic_lines, argv
    )


ACTIONS = {
    "list": ManageAction(list_all, "[TOPIC] [--json]", LIST),
    "create": ManageAction(create, "TOPIC [--queues=N]", "create a topic, or give it more queues"),
    "pause": change(
        PAUSE, TopicOptions, "keep the messages of a topic from its channels; they wait"
    ),
    "unpause": change(
        UNPAUSE, TopicOptions, "hand the messages of a topic on to its channels again"
    ),
    "empty": change(
        EMPTY,
        TopicDropOptions,
        "drop the messages of a topic that no channel has got; channels keep theirs",
    ),
    "delete": change(DELETE, TopicDropOptions, "delete a topic with its channels and all messages"),
    "configure": ManageAction(
        configure.topic, "TOPIC [NAME=VALUE ...]", "set or show the policy of a topic"
    ),
}


def main(argv: Sequence[str]) -> int:
    """Do what the first word says; the result is the exit code of the process."""
    return manage.main("topic", ACTIONS, argv)
