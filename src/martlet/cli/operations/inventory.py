"""The base of commands that list topics, channels and brokers, and their health."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from martlet.cli import tool
from martlet.cli.broker_http import BrokerHttpOptions
from martlet.cli.text import json_line
from martlet.client.admin import AdminError, AdminNotFound, TopicStats
from martlet.client.copied_folder import Copies, refusal
from martlet.options.checks import require_name
from martlet.options.flag import option


@dataclass(frozen=True, kw_only=True)
class InventoryOptions(BrokerHttpOptions):
    """The options of ``martlet nodes`` and ``martlet health``."""

    json: bool = option(False, "lines of JSON", section="output")


@dataclass(frozen=True, kw_only=True)
class ListOptions(InventoryOptions):
    """The options of ``martlet topic list`` and ``martlet channel list``."""

    topic: str = option("", "only this topic (default: every topic)", section="selection")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topic:
            require_name("topic", self.topic)


log = logging.getLogger(__name__)
Fields = dict[str, Any]
OptionsT = TypeVar("OptionsT", bound=InventoryOptions)


@dataclass(frozen=True)
class Inventory:
    """Items of servers, such as topics, why servers did not answer, and brokers of one id."""

    items: list[Fields]
    failed: list[AdminError]
    copies: Sequence[Copies] = ()


async def from_topics(
    options: ListOptions, read: Callable[[TopicStats], Iterator[Fields]]
) -> Inventory:
    """Read the topics of each broker. Raises AdminError if no broker is found."""
    async with options.admin() as admin:
        answers = await tool.settled(admin.topics.list(options.topic))
    items = [
        {"broker": url} | item
        for url, topics in answers.values.items()
        for topic in topics
        for item in read(topic)
    ]
    failed = [*answers.errors.values()]
    if options.topic and not failed and not any(answers.values.values()):
        urls, why = ", ".join(answers.values), f"there is no topic {options.topic!r}"
        failed.append(AdminNotFound(urls, why))
    return Inventory(items, failed)


def list_topics(
    what: str,
    summary: str,
    read: Callable[[TopicStats], Iterator[Fields]],
    lines: Callable[[list[Fields]], list[str]],
) -> Callable[[Sequence[str]], int]:
    """Make the action ``list`` of ``martlet topic`` or ``martlet channel``."""
    return lambda argv: show_inventory(
        f"{what} list",
        f"{what}s",
        f"{summary.capitalize()}.",
        ListOptions,
        lambda options: from_topics(options, read),
        lines,
        argv,
    )


def paused_name(fields: Fields, kind: str) -> str:
    """Return the name of a topic or channel, marked if it is paused."""
    return f"{fields[kind]} (paused)" if fields["paused"] else str(fields[kind])


def show_inventory(
    command: str,
    nouns: str,
    description: str,
    kind: type[OptionsT],
    find: Callable[[OptionsT], Awaitable[Inventory]],
    lines: Callable[[list[Fields]], list[str]],
    argv: Sequence[str],
) -> int:
    """Show items, such as topics; the exit code is 1 if a server did not answer, or two brokers
    have one id.
    """
    names = ["topic"] if "topic" in kind.flags() else []
    options = tool.options(
        command, description, kind, argv, "[TOPIC]" if names else "", operands=names
    )
    has_failed = False

    async def work() -> None:
        nonlocal has_failed
        inventory = await find(options)
        has_failed = bool(inventory.failed or inventory.copies) or not all(
            item.get("is_healthy", True) for item in inventory.items
        )
        await tool.show(map(json_line, inventory.items) if options.json else lines(inventory.items))
        for error in inventory.failed:
            log.error("%s", error)
        for copy in inventory.copies:
            log.error("%s", refusal(copy, "readers refuse them both"))
        if not (inventory.items or inventory.failed or options.json):
            log.info("there are no %s", nouns)

    return tool.run_alone(work) or int(has_failed)
