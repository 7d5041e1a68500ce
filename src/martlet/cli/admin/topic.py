"""``martlet topic``: list topics and change them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from martlet.cli import tool
from martlet.cli.admin import configure, manage
from martlet.cli.admin.inventory import Inventory, ListOptions, paused_name, show_inventory
from martlet.cli.admin.manage import (
    DELETE,
    EMPTY,
    PAUSE,
    UNPAUSE,
    ManageAction,
    TopicDropOptions,
    change,
)
from martlet.cli.broker_http import BrokerHttpClient, Fields, NoHttpAnswer, TopicOptions
from martlet.cli.text import laid_out
from martlet.options.flag import option
from martlet.plural import counted

MAX_QUEUES = 1024


@dataclass(frozen=True, kw_only=True)
class TopicCreateOptions(TopicOptions):
    """The options of ``martlet topic create``."""

    queues: int | None = option(
        None,
        "the number of queues on each broker (default: 1 for a new topic); an existing topic can"
        " get more, never fewer",
        limits=(1, MAX_QUEUES),
    )


async def create_topic(options: TopicCreateOptions) -> list[tuple[str, int | NoHttpAnswer]]:
    """Create a topic on each broker; return its number of queues there. Raises NoHttpAnswer."""
    topic, queues = options.topic, options.queues
    # Without --queues, an existing topic with more queues is fine.
    wanted = {} if queues is None else {"queues": str(queues)}

    async def create_at(url: str) -> int:
        await client.post(url, "/topic/create", {"topic": topic, **wanted})
        stats = await client.get(
            url, "/stats", {"topic": topic, "format": "json", "include_clients": "false"}
        )
        try:
            found = next(each for each in stats["topics"] if each["topic_name"] == topic)
            count = len(found.get("queues", [None]))
        except (StopIteration, KeyError, TypeError):
            raise NoHttpAnswer(url, f"it does not report the state of topic {topic!r}") from None
        if count < (queues or 1):
            raise NoHttpAnswer(url, f"topic {topic!r} has one queue there: nsqd supports no more")
        return count

    async with BrokerHttpClient(options) as client:
        return await client.each(await client.brokers(""), create_at)


CREATE = (
    "Create a topic on each broker named, or on all that a lookup daemon knows, with --queues"
    " queues. A queue has offsets and an order of its own; NSQ's clients consume all of them as one"
    " topic. An existing topic can get more queues while it is in use, but never fewer. The topic"
    " may stand without its flag: martlet topic create TOPIC --queues=8."
)


def create(argv: Sequence[str]) -> int:
    """Create a topic; return the exit code of the process."""
    options = tool.options("topic create", CREATE, TopicCreateOptions, argv, "TOPIC", ["topic"])
    return tool.run_at_each(
        lambda: create_topic(options),
        lambda queues: f"topic {options.topic!r} has {counted(queues, 'queue')}",
    )


LIST = "list the topics of each broker with their counts, or one of them"


def list_all(argv: Sequence[str]) -> int:
    """List topics; return the exit code of the process."""
    return show_inventory(
        "topic list", "topics", f"{LIST.capitalize()}.", ListOptions, _list, topic_lines, argv
    )


async def _list(inventory: Inventory) -> list[Fields]:
    return await inventory.from_stats(_topics)


def _topics(stats: Fields) -> Iterator[Fields]:
    for topic in stats["topics"] or ():
        yield {
            "topic": topic["topic_name"],
            "queues": len(topic.get("queues", [None])),
            "channels": [each["channel_name"] for each in topic["channels"]],
            "depth": topic["depth"],
            "messages": topic["message_count"],
            "paused": topic["paused"],
        }


def topic_lines(found: Iterable[Fields]) -> list[str]:
    """Format topics as text."""
    rows: list[tuple[str, ...]] = [("TOPIC", "QUEUES", "CHANNELS", "DEPTH", "MESSAGES", "BROKER")]
    for each in found:
        counts = each["queues"], len(each["channels"]), each["depth"], each["messages"]
        rows.append((paused_name(each, "topic"), *map(str, counts), each["broker"]))
    return laid_out(rows, (1, 2, 3, 4))


ACTIONS = {
    "list": ManageAction(list_all, "[TOPIC] [--json]", LIST),
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
