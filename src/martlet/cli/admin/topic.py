"""``martlet topic``: topics, looked at and changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from martlet.cli import tool
from martlet.cli.admin import configure, manage
from martlet.cli.admin.inventory import (
    Inventory,
    ListOptions,
    TopicCreateOptions,
    TopicDropOptions,
    topic_lines,
)
from martlet.cli.admin.manage import DELETE, EMPTY, PAUSE, UNPAUSE, ManageAction, change
from martlet.cli.broker_http import BrokerHttpClients, NoHttpAnswer, TopicOptions
from martlet.plural import counted


class TopicCreation:
    """Makes a topic.

    Args:
        options: as the flags give them.
    """

    def __init__(self, options: TopicCreateOptions) -> None:
        self._options = options

    async def run(self) -> list[tuple[str, int | NoHttpAnswer]]:
        """Do it on each broker; how many queues the topic has there.

        Raises:
            NoHttpAnswer: no broker was found.
        """
        async with BrokerHttpClients(self._options) as doors:
            urls = await doors.brokers("")
            return list(
                zip(urls, await asyncio.gather(*(self._at(doors, u) for u in urls)), strict=True)
            )

    async def _at(self, doors: BrokerHttpClients, url: str) -> int | NoHttpAnswer:
        topic, queues = self._options.topic, self._options.queues
        # Without a number, a topic that has more queues is as well as one that has to be made.
        wanted = {"queues": str(queues)} if queues > 1 else {}
        try:
            await doors.post(url, "/topic/create", {"topic": topic, **wanted})
            report = await doors.get(
                url, "/stats", {"topic": topic, "format": "json", "include_clients": "false"}
            )
            found = next(each for each in report["topics"] if each["topic_name"] == topic)
            count = len(found.get("queues", [None]))
        except NoHttpAnswer as error:
            return error
        except (StopIteration, KeyError, TypeError):
            return NoHttpAnswer(url, f"it does not say what became of topic {topic!r}")
        if count < queues:
            return NoHttpAnswer(url, f"topic {topic!r} has one queue there: nsqd knows no others")
        return count


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
