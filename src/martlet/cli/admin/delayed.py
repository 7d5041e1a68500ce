"""``martlet delayed``: the messages that wait for their time, listed and cancelled."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from martlet.cli import tool
from martlet.cli.broker_http import BrokerHttpClients, DoorOptions, NoHttpAnswer
from martlet.cli.standard_output import StandardOutput
from martlet.options.flag import OptionError, option
from martlet.options.options import require_names
from martlet.plural import counted

ACTIONS = ("list", "cancel")
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class DelayedOptions(DoorOptions):
    """What ``martlet delayed`` is started with.

    Raises:
        OptionError: there is no such action, no topic, or it is not said what to cancel.
    """

    action: str = option("", f"one of {', '.join(ACTIONS)}", section="what to do")
    topic: str = option("", "the topic that they are for")
    ids: tuple[str, ...] = option((), "cancel this one; may be given several times", name="id")
    all: bool = option(False, "cancel all of the topic's")
    limit: int = option(
        20, "list so many of each broker (0: all of them)", limits=(0, None), section="output"
    )
    json: bool = option(False, "a line of JSON for each message")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action not in ACTIONS:
            told = f"{self.action!r} is none of them" if self.action else "none is given"
            raise OptionError(f"what to do is one of {', '.join(ACTIONS)}: {told}")
        if not self.topic:
            raise OptionError(f"which topic is it? martlet delayed {self.action} TOPIC")
        require_names("topic", [self.topic])
        for id in self.ids:
            if not _ID.fullmatch(id):
                raise OptionError(f"--id={id}: an id has 16 hexadecimal digits")
        if self.action == "cancel" and bool(self.ids) == self.all:
            raise OptionError(
                "which ones are meant? Name their ids, as martlet delayed list tells them, or --all"
            )


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


DESCRIPTION = (
    "List or cancel messages of a topic that were sent to be delivered at a time. What to do, the"
    " topic and the ids may stand without their flags: martlet delayed list TOPIC, martlet delayed"
    " cancel TOPIC ID ... An id is told when the message is sent, and by the list. (A message that"
    " DPUB defers is its channels' as in nsqd, as long as there are few: martlet peek shows those.)"
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Do it; the result is the exit code of the process."""
    found = _named(argv)
    options = tool.options("delayed", DESCRIPTION, DelayedOptions, found, "ACTION TOPIC [ID ...]")
    work = DelayedTool(options)
    not_waiting: list[str] = []

    async def show() -> None:
        output = StandardOutput(sys.stdout.fileno())
        shown: Counter[str] = Counter()
        pending: dict[str, int] = {}
        async for url, count, page in work.pages():
            shown[url] += len(page)
            pending[url] = count
            text = [line(url, each) for each in page] if options.json else lines(page)
            if text:
                await output.show([f"{each}\n".encode() for each in text])
        for url, count in pending.items():
            told = f"{url}: {counted(count, 'message')} waiting, {shown[url]} listed"
            if options.json:
                log.info("%s", told)
            else:
                await tool.show([told])

    async def cancel() -> None:
        counts: Counter[str] = Counter()
        cancelled: set[str] = set()
        async for url, ids in work.cancel():
            counts[url] += len(ids)
            cancelled.update(ids)
        await tool.show(
            f"{url}: {counted(count, 'message')} cancelled" for url, count in counts.items()
        )
        not_waiting.extend(id for id in options.ids if id not in cancelled)
        for id in not_waiting:
            log.error("%s does not wait: it is unknown, delivered, or cancelled already", id)

    code = tool.run_alone(show if options.action == "list" else cancel)
    return 1 if not_waiting else code


def _named(argv: Sequence[str]) -> list[str]:
    """The command line with what stands without a flag as the values of flags."""
    found, others = tool.split(DelayedOptions, argv)
    names = ["action", "topic", *["id"] * len(others)]
    return found + [f"--{name}={value}" for name, value in zip(names, others, strict=False)]
