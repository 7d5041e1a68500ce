"""Delayed messages: which wait for their time on each broker, and which are given up."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any

from martlet.options.delayed import DelayedOptions
from martlet.plural import counted
from martlet.tools.door import BrokerHttpClients, NoHttpAnswer

Fields = dict[str, Any]
_PAGE = 1000
_ALL = 1 << 62
_NOT_THERE = 404


class DelayedTool:
    """Does what the flags say.

    Args:
        options: as the flags give them.
    """

    def __init__(self, options: DelayedOptions) -> None:
        self._options = options

    async def pages(self) -> AsyncIterator[tuple[str, int, list[Fields]]]:
        """Of each broker its URL, how many wait, and those that do by their time, page by page.

        Raises NoHttpAnswer.
        """
        async with BrokerHttpClients(self._options) as doors:
            async for url in self._urls(doors):
                left = self._options.limit or _ALL
                place: str | None = ""
                while place is not None and left > 0:
                    fields = {"topic": self._options.topic, "from": place}
                    told = await doors.call(url, "delay.list", fields | {"limit": min(left, _PAGE)})
                    messages = told["messages"][:left]
                    left -= len(messages)
                    place = told["next"] or None
                    yield url, told["pending_count"], messages

    async def cancel(self) -> AsyncIterator[tuple[str, list[str]]]:
        """Of each broker its URL and the ids that it has cancelled. Raises NoHttpAnswer."""
        async with BrokerHttpClients(self._options) as doors:
            async for url in self._urls(doors):
                fields = {"topic": self._options.topic}
                if not self._options.all:
                    ids = list(self._options.ids)
                    done = await doors.call(url, "delay.cancel", fields | {"ids": ids})
                    yield url, done["cancelled"]
                    continue
                place = ""
                while True:
                    told = await doors.call(
                        url, "delay.list", fields | {"from": place, "limit": _PAGE}
                    )
                    ids = [message["id"] for message in told["messages"]]
                    if ids:
                        done = await doors.call(url, "delay.cancel", fields | {"ids": ids})
                        yield url, done["cancelled"]
                    place = told["next"]
                    if not place:
                        break

    async def _urls(self, doors: BrokerHttpClients) -> AsyncIterator[str]:
        """The brokers that have the topic."""
        missing: NoHttpAnswer | None = None
        some = False
        for url in await doors.brokers(self._options.topic):
            try:
                await doors.call(url, "delay.list", {"topic": self._options.topic, "limit": 1})
            except NoHttpAnswer as error:
                if error.status != _NOT_THERE:
                    raise
                missing = error
                continue
            some = True
            yield url
        if missing is not None and not some:
            raise missing


def lines(messages: Iterable[Fields]) -> list[str]:
    """Messages for people."""
    return [
        f"{message['id']}  due {_when(message['deliver_at_ms'])}  published"
        f" {_when(message['stored_at_ms'])}  {counted(message['size_bytes'], 'byte')}"
        + _properties(message)
        for message in messages
    ]


def line(url: str, message: Fields) -> str:
    """A message as a line of JSON."""
    return json.dumps({"broker": url} | message, ensure_ascii=False)


def _properties(message: Fields) -> str:
    told = f"  tag {message['tag']}" if message["tag"] else ""
    return told + (f"  keys {', '.join(message['keys'])}" if message["keys"] else "")


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(timespec="milliseconds")
