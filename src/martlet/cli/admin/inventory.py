"""The base of commands that list topics, channels and brokers, and their health."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from martlet.cli import tool
from martlet.cli.broker_http import (
    NOT_FOUND,
    BrokerHttpClient,
    BrokerHttpOptions,
    Fields,
    NoHttpAnswer,
)
from martlet.cli.text import json_line
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
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)


async def look(client: BrokerHttpClient, url: str, topic: str = "") -> Fields:
    """Get a broker's ``/stats``, of all topics or of one. Raises NoHttpAnswer."""
    arguments = {"format": "json", "include_clients": "false", "include_mem": "false"}
    stats: Fields = await client.get(url, "/stats", arguments | ({"topic": topic} if topic else {}))
    return stats


def topic_of(stats: Fields, name: str) -> Fields | None:
    """Find a topic in stats."""
    return _named(stats["topics"] or (), "topic_name", name)


def channel_of(topic: Fields, name: str) -> Fields | None:
    """Find a channel of a topic in stats."""
    return _named(topic["channels"], "channel_name", name)


def _named(things: Iterable[Fields], key: str, name: str) -> Fields | None:
    return next((each for each in things if each[key] == name), None)


class Inventory:
    """Query brokers and lookup daemons.

    Attributes:
        options: with the brokers or lookup daemons.
        failed: why servers did not answer.
    """

    def __init__(self, options: InventoryOptions) -> None:
        self.options = options
        self.failed: list[NoHttpAnswer] = []

    async def from_stats(self, read: Callable[[Fields], Iterator[Fields]]) -> list[Fields]:
        """Read the stats of each broker. Raises NoHttpAnswer if none is found."""
        topic = getattr(self.options, "topic", "")
        is_there = False

        async def ask(url: str) -> list[Fields]:
            nonlocal is_there
            stats = await look(client, url, topic)
            is_there = is_there or not topic or topic_of(stats, topic) is not None
            return [{"broker": url} | each for each in read(stats)]

        async with BrokerHttpClient(self.options) as client:
            urls = await client.brokers(topic)
            answers = await self.answers(urls, ask)
        if not is_there and not self.failed:
            self.failed.append(
                NoHttpAnswer(", ".join(urls), f"there is no topic {topic!r}", NOT_FOUND)
            )
        return [each for found in answers for each in found]

    async def answers(self, urls: Sequence[str], ask: Callable[[str], Awaitable[Any]]) -> list[Any]:
        """Query servers concurrently; return their answers, and add failures to `failed`."""

        async def asked(url: str) -> Any:
            try:
                return await ask(url)
            except NoHttpAnswer as error:
                return error
            except _UNREADABLE as error:
                return NoHttpAnswer(url, f"an unintelligible answer: {error!r}")

        answers = await asyncio.gather(*map(asked, urls))
        self.failed += [each for each in answers if isinstance(each, NoHttpAnswer)]
        return [each for each in answers if not isinstance(each, NoHttpAnswer)]


def paused_name(each: Fields, kind: str) -> str:
    """Return the name of a topic or channel, marked if it is paused."""
    return f"{each[kind]} (paused)" if each["paused"] else str(each[kind])


def show_inventory(
    command: str,
    nouns: str,
    description: str,
    kind: type[InventoryOptions],
    find: Callable[[Inventory], Awaitable[list[Fields]]],
    lines: Callable[[list[Fields]], list[str]],
    argv: Sequence[str],
) -> int:
    """Show items, such as topics; the exit code is 1 if a server did not answer."""
    names = ["topic"] if "topic" in kind.flags() else []
    options = tool.options(
        command, description, kind, argv, "[TOPIC]" if names else "", operands=names
    )
    asked = Inventory(options)
    answers: list[Fields] = []

    async def work() -> None:
        answers.extend(await find(asked))
        await tool.show(map(json_line, answers) if options.json else lines(answers))
        for error in asked.failed:
            log.error("%s", error)
        if not (answers or asked.failed or options.json):
            log.info("there are no %s", nouns)

    code = tool.run_alone(work)
    is_well = all(each.get("is_healthy", True) for each in answers)
    return code or int(bool(asked.failed) or not is_well)
