"""``martlet topic``: list topics and change them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from martlet.cli import tool
from martlet.cli.broker_http import TopicOptions
from martlet.cli.operations import configure, manage
from martlet.cli.operations.inventory import Fields, list_topics, paused_name
from martlet.cli.operations.manage import (
    DELETE,
    EMPTY,
    PAUSE,
    UNPAUSE,
    ManageAction,
    TopicDropOptions,
    change,
)
from martlet.cli.text import laid_out
from martlet.client.admin import Answers, TopicStats
from martlet.options.flag import option
from martlet.schema.topics import MAX_QUEUES
from martlet.text import counted


@dataclass(frozen=True, kw_only=True)
class TopicCreateOptions(TopicOptions):
    """The options of ``martlet topic create``."""

    queues: int | None = option(
        None,
        "the number of queues on each broker (default: 1 for a new topic); an existing topic can"
        " get more, never fewer",
        limits=(1, MAX_QUEUES),
    )


CREATE = (
    "Create a topic on each broker named, or on all that a lookup daemon knows, with --queues"
    " queues. A queue has offsets and an order of its own; NSQ's clients consume all of them as one"
    " topic. An existing topic can get more queues while it is in use, but never fewer. The topic"
    " may stand without its flag: martlet topic create TOPIC --queues=8."
)


def create(argv: Sequence[str]) -> int:
    """Create a topic; return the exit code of the process."""
    options = tool.options("topic create", CREATE, TopicCreateOptions, argv, "TOPIC", ["topic"])

    async def create_it() -> Answers[int]:
        async with options.admin() as admin:
            return await admin.topics.create(options.topic, options.queues)

    return tool.run_at_each(
        create_it,
        lambda queues: f"topic {options.topic!r} has {counted(queues, 'queue')}",
    )


LIST = "list the topics of each broker with their counts, or one of them"


def _topics(topic: TopicStats) -> Iterator[Fields]:
    yield {
        "topic": topic.topic,
        "queues": topic.queue_count,
        "channels": [channel.channel for channel in topic.channels],
        "depth": topic.depth,
        "messages": topic.message_count,
        "paused": topic.is_paused,
    }


def topic_lines(topics: Iterable[Fields]) -> list[str]:
    """Format topics as text."""
    rows: list[tuple[str, ...]] = [("TOPIC", "QUEUES", "CHANNELS", "DEPTH", "MESSAGES", "BROKER")]
    for topic in topics:
        counts = topic["queues"], len(topic["channels"]), topic["depth"], topic["messages"]
        rows.append((paused_name(topic, "topic"), *map(str, counts), topic["broker"]))
    return laid_out(rows, (1, 2, 3, 4))


ACTIONS = {
    "list": ManageAction(
        list_topics("topic", LIST, _topics, topic_lines), "[TOPIC] [--json]", LIST
    ),
    "create": ManageAction(create, "TOPIC [--queues=N]", "create a topic, or give it more queues"),
    "pause": change(
        PAUSE, TopicOptions, "keep the messages of a topic from its channels; they wait"
    ),
    "unpause": change(UNPAUSE, TopicOptions, "pass the messages of a topic to its channels again"),
    "empty": change(
        EMPTY,
        TopicDropOptions,
        "drop the messages of a topic that no channel has received; channels keep theirs",
    ),
    "delete": change(DELETE, TopicDropOptions, "delete a topic with its channels and all messages"),
    "configure": ManageAction(
        configure.topic, "TOPIC [NAME=VALUE ...]", "set or show the policy of a topic"
    ),
}


def main(argv: Sequence[str]) -> int:
    """Run the action of the first word; return the exit code of the process."""
    return manage.main("topic", ACTIONS, argv)
