"""What there is: topics and channels of brokers, brokers that lookup daemons know, and health."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from martlet.cli.broker_http import (
    BrokerHttpClients,
    ChannelOptions,
    DoorOptions,
    NoHttpAnswer,
    TopicOptions,
)
from martlet.cli.text import laid_out
from martlet.options.flag import option
from martlet.options.options import require_name

MAX_QUEUES = 1024


@dataclass(frozen=True, kw_only=True)
class TopicCreateOptions(TopicOptions):
    """What ``martlet topic create`` is started with."""

    queues: int = option(
        1,
        "how many queues it has on each broker; a topic that is there gets more, and never fewer",
        limits=(1, MAX_QUEUES),
    )


def _force() -> Any:
    return option(
        False,
        "do it: messages are lost; without it, what would be lost is shown and nothing is done",
    )


@dataclass(frozen=True, kw_only=True)
class TopicDropOptions(TopicOptions):
    """What ``martlet topic delete`` and ``empty`` are started with."""

    force: bool = _force()


@dataclass(frozen=True, kw_only=True)
class ChannelDropOptions(ChannelOptions):
    """What ``martlet channel delete`` and ``empty`` are started with."""

    force: bool = _force()


@dataclass(frozen=True, kw_only=True)
class InventoryOptions(DoorOptions):
    """What ``martlet nodes`` and ``martlet health`` are started with."""

    json: bool = option(False, "lines of JSON", section="output")


@dataclass(frozen=True, kw_only=True)
class ListOptions(InventoryOptions):
    """What ``martlet topic list`` and ``martlet channel list`` are started with.

    Raises:
        OptionError: the topic's name is not valid.
    """

    topic: str = option("", "only this topic (default: every topic)", section="what")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topic:
            require_name("topic", self.topic)


Fields = dict[str, Any]
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)


async def look(doors: BrokerHttpClients, url: str, topic: str = "") -> Fields:
    """What a broker's ``/stats`` tells of its topics, or of one. Raises NoHttpAnswer."""
    arguments = {"format": "json", "include_clients": "false", "include_mem": "false"}
    told: Fields = await doors.get(url, "/stats", arguments | ({"topic": topic} if topic else {}))
    return told


def topic_of(stats: Fields, name: str) -> Fields | None:
    """A topic in such an answer, if it is there."""
    return _named(stats["topics"] or (), "topic_name", name)


def channel_of(topic: Fields, name: str) -> Fields | None:
    """A channel of it, if it is there."""
    return _named(topic["channels"], "channel_name", name)


def _named(things: Iterable[Fields], key: str, name: str) -> Fields | None:
    return next((each for each in things if each[key] == name), None)


class Inventory:
    """Asks what there is.

    Args:
        options: whom to ask.

    Attributes:
        failed: what kept a broker or a lookup daemon from telling.
    """

    def __init__(self, options: InventoryOptions) -> None:
        self._options = options
        self.failed: list[NoHttpAnswer] = []

    async def topics(self) -> list[Fields]:
        """The topics of each broker. Raises NoHttpAnswer where none is found."""
        return await self._from_stats(_topics)

    async def channels(self) -> list[Fields]:
        """The channels of each broker's topics. Raises NoHttpAnswer where no broker is found."""
        return await self._from_stats(_channels)

    async def _from_stats(self, read: Callable[[Fields], Iterator[Fields]]) -> list[Fields]:
        topic = getattr(self._options, "topic", "")
        is_there = False

        async def ask(url: str) -> list[Fields]:
            nonlocal is_there
            stats = await look(doors, url, topic)
            is_there = is_there or not topic or topic_of(stats, topic) is not None
            return [{"broker": url} | each for each in read(stats)]

        async with BrokerHttpClients(self._options) as doors:
            urls = await doors.brokers(topic)
            answers = await self._all(urls, ask)
        if not is_there and not self.failed:
            self.failed.append(NoHttpAnswer(", ".join(urls), f"there is no topic {topic!r}", 404))
        return [each for found in answers for each in found]

    async def nodes(self) -> list[Fields]:
        """The brokers that lookup daemons know, with the daemons that know each; or what those
        that are named say of themselves.
        """
        async with BrokerHttpClients(self._options) as doors:
            if not doors.daemons():

                async def ask(url: str) -> Fields:
                    info, stats = await doors.get(url, "/info", {}), await look(doors, url)
                    names = [each["topic_name"] for each in stats["topics"] or ()]
                    return _node(info, names) | {"lookup_daemons": []}

                return await self._all(await doors.brokers(""), ask)

            async def known(url: str) -> tuple[str, list[Fields]]:
                told = (await doors.get(url, "/nodes", {}))["producers"] or ()
                return url, [_node(each, each["topics"], each["tombstones"]) for each in told]

            found: dict[tuple[str, int], Fields] = {}
            for daemon, nodes in await self._all(doors.daemons(), known):
                for node in nodes:
                    place = (node["broadcast_address"], node["tcp_port"])
                    found.setdefault(place, node | {"lookup_daemons": []})
                    found[place]["lookup_daemons"].append(daemon)
            return [found[place] for place in sorted(found)]

    async def health(self) -> list[Fields]:
        """What each broker, and each lookup daemon that is named, says of its health.

        Raises:
            NoHttpAnswer: no broker is found.
        """
        async with BrokerHttpClients(self._options) as doors:

            async def ask(url: str) -> Fields:
                try:
                    said = (await doors.text(url, "/ping")).strip()
                except NoHttpAnswer as error:
                    said = error.why
                return {"server": url, "is_healthy": said == "OK", "health": said}

            urls = doors.daemons()
            try:
                urls = urls + await doors.brokers("")
            except NoHttpAnswer as error:
                self.failed.append(error)
            return await self._all(list(dict.fromkeys(urls)), ask)

    async def _all(self, urls: Sequence[str], ask: Callable[[str], Awaitable[Any]]) -> list[Any]:
        """What all say, without those that do not, which have `failed`."""

        async def asked(url: str) -> Any:
            try:
                return await ask(url)
            except NoHttpAnswer as error:
                return error
            except _UNREADABLE as error:
                return NoHttpAnswer(url, f"an answer that cannot be understood: {error!r}")

        answers = await asyncio.gather(*map(asked, urls))
        self.failed += [each for each in answers if isinstance(each, NoHttpAnswer)]
        return [each for each in answers if not isinstance(each, NoHttpAnswer)]


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


def _channels(stats: Fields) -> Iterator[Fields]:
    for topic in stats["topics"] or ():
        for channel in topic["channels"]:
            yield {
                "topic": topic["topic_name"],
                "channel": channel["channel_name"],
                "depth": channel["depth"],
                "in_flight": channel["in_flight_count"],
                "deferred": channel["deferred_count"],
                "clients": channel["client_count"],
                "messages": channel["message_count"],
                "paused": channel["paused"],
            }


def _node(told: Fields, topics: Sequence[str], tombstones: Sequence[bool] = ()) -> Fields:
    hidden = [topic for topic, is_hidden in zip(topics, tombstones, strict=False) if is_hidden]
    return {
        "broadcast_address": told["broadcast_address"],
        "tcp_port": told["tcp_port"],
        "http_port": told["http_port"],
        "hostname": told["hostname"],
        "version": told.get("martlet_version") or told["version"],
        "topics": list(topics),
        "tombstones": hidden,
    }


def topic_lines(found: Iterable[Fields]) -> list[str]:
    """Topics for people."""
    rows: list[tuple[str, ...]] = [("TOPIC", "QUEUES", "CHANNELS", "DEPTH", "MESSAGES", "BROKER")]
    for each in found:
        counts = each["queues"], len(each["channels"]), each["depth"], each["messages"]
        rows.append((_name(each, "topic"), *map(str, counts), each["broker"]))
    return laid_out(rows, (1, 2, 3, 4))


def channel_lines(found: Iterable[Fields]) -> list[str]:
    """Channels for people."""
    names = ("depth", "in_flight", "deferred", "clients", "messages")
    head = (name.replace("_", " ").upper() for name in names)
    rows: list[tuple[str, ...]] = [("TOPIC", "CHANNEL", *head, "BROKER")]
    for each in found:
        counts = (str(each[name]) for name in names)
        rows.append((each["topic"], _name(each, "channel"), *counts, each["broker"]))
    return laid_out(rows, (2, 3, 4, 5, 6))


def node_lines(found: Iterable[Fields]) -> list[str]:
    """Brokers for people."""
    rows: list[tuple[str, ...]] = [
        ("ADDRESS", "TCP", "HTTP", "VERSION", "TOPICS", "HOST", "KNOWN TO", "HIDDEN TOPICS")
    ]
    for each in found:
        ports = str(each["tcp_port"]), str(each["http_port"])
        known = " ".join(each["lookup_daemons"]) or "-"
        hidden = " ".join(each["tombstones"]) or "-"
        version, topics = each["version"], str(len(each["topics"]))
        rows.append(
            (each["broadcast_address"], *ports, version, topics, each["hostname"], known, hidden)
        )
    return laid_out(rows, (1, 2, 4))


def health_lines(found: Iterable[Fields]) -> list[str]:
    """Health for people."""
    return [f"{each['server']}: {each['health']}" for each in found]


def line(told: Fields) -> str:
    """As a line of JSON."""
    return json.dumps(told, ensure_ascii=False)


def _name(each: Fields, kind: str) -> str:
    return f"{each[kind]} (paused)" if each["paused"] else str(each[kind])
