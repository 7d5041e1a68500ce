"""``martlet delayed``: list and cancel the messages that wait for their time."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from martlet.cli import tool
from martlet.cli.broker_http import BrokerHttpClient, BrokerHttpOptions, Fields
from martlet.cli.standard_output import StandardOutput
from martlet.cli.text import json_line, local_time
from martlet.options.checks import require_action, require_ids, require_names
from martlet.options.flag import OptionError, option
from martlet.plural import counted

ACTIONS = ("list", "cancel")


@dataclass(frozen=True, kw_only=True)
class DelayedOptions(BrokerHttpOptions):
    """The options of ``martlet delayed``."""

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
        require_action(self.action, ACTIONS)
        if not self.topic:
            raise OptionError(f"which topic is it? martlet delayed {self.action} TOPIC")
        require_names("topic", [self.topic])
        require_ids(self.ids)
        if self.action == "cancel" and bool(self.ids) == self.all:
            raise OptionError(
                "which ones are meant? Name their ids, as martlet delayed list tells them, or --all"
            )


_PAGE = 1000
_ALL = 1 << 62


async def pages(options: DelayedOptions) -> AsyncIterator[tuple[str, int, list[Fields]]]:
    """List delayed messages; yield of each broker its URL, how many wait, and the next of them.

    Raises:
        NoHttpAnswer: a broker does not answer, or none has the topic.
    """
    async with BrokerHttpClient(options) as client:
        async for url in _urls(client, options.topic):
            left = options.limit or _ALL
            start: str | None = ""
            while start is not None and left > 0:
                page = await _page(client, url, options.topic, start, min(left, _PAGE))
                messages = page["messages"][:left]
                left -= len(messages)
                start = page["next"] or None
                yield url, page["pending_count"], messages


async def cancel(options: DelayedOptions) -> AsyncIterator[tuple[str, list[str]]]:
    """Cancel messages; yield of each broker its URL and ids it has cancelled. As `pages`."""
    async with BrokerHttpClient(options) as client:

        async def cancel_at(url: str, ids: list[str]) -> tuple[str, list[str]]:
            done = await client.call(url, "delay.cancel", {"topic": options.topic, "ids": ids})
            return url, done["cancelled"]

        async for url in _urls(client, options.topic):
            if not options.all:
                yield await cancel_at(url, list(options.ids))
                continue
            start = ""
            while True:
                page = await _page(client, url, options.topic, start, _PAGE)
                if ids := [message["id"] for message in page["messages"]]:
                    yield await cancel_at(url, ids)
                start = page["next"]
                if not start:
                    break


async def _urls(client: BrokerHttpClient, topic: str) -> AsyncIterator[str]:
    """Yield the brokers that have the topic."""
    fields = {"topic": topic, "limit": 1}
    async for url, _ in client.in_turn(topic, lambda url: client.call(url, "delay.list", fields)):
        yield url


async def _page(client: BrokerHttpClient, url: str, topic: str, start: str, limit: int) -> Fields:
    page: Fields = await client.call(
        url, "delay.list", {"topic": topic, "from": start, "limit": limit}
    )
    return page


def lines(messages: Iterable[Fields]) -> list[str]:
    """Describe messages for people, a line each."""
    return [
        f"{message['id']}  due {_time(message['deliver_at_ms'])}  published"
        f" {_time(message['stored_at_ms'])}  {counted(message['size_bytes'], 'byte')}"
        + _properties(message)
        for message in messages
    ]


def _time(time_ms: int) -> str:
    return local_time(time_ms, "milliseconds")


def _properties(message: Fields) -> str:
    tag = f"  tag {message['tag']}" if message["tag"] else ""
    return tag + (f"  keys {', '.join(message['keys'])}" if message["keys"] else "")


DESCRIPTION = (
    "List or cancel messages of a topic that were sent to be delivered at a time. What to do, the"
    " topic and the ids may stand without their flags: martlet delayed list TOPIC, martlet delayed"
    " cancel TOPIC ID ... An id is told when the message is sent, and by the list. (A message that"
    " DPUB defers is its channels' as in nsqd, as long as there are few: martlet peek shows those.)"
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """List or cancel messages; the result is the exit code of the process."""
    operands = ("action", "topic", *["id"] * len(argv))
    options = tool.options(
        "delayed", DESCRIPTION, DelayedOptions, argv, "ACTION TOPIC [ID ...]", operands
    )
    not_waiting: list[str] = []

    async def show() -> None:
        output = StandardOutput()
        shown: Counter[str] = Counter()
        pending: dict[str, int] = {}
        async for url, count, page in pages(options):
            shown[url] += len(page)
            pending[url] = count
            await output.print(
                [json_line({"broker": url} | each) for each in page]
                if options.json
                else lines(page)
            )
        for url, count in pending.items():
            text = f"{url}: {counted(count, 'message')} waiting, {shown[url]} listed"
            if options.json:
                log.info("%s", text)
            else:
                await output.print([text])

    async def give_up() -> None:
        counts: Counter[str] = Counter()
        cancelled: set[str] = set()
        async for url, ids in cancel(options):
            counts[url] += len(ids)
            cancelled.update(ids)
        await tool.show(
            f"{url}: {counted(count, 'message')} cancelled" for url, count in counts.items()
        )
        not_waiting.extend(each for each in options.ids if each not in cancelled)
        for each in not_waiting:
            log.error("%s does not wait: it is unknown, delivered, or cancelled already", each)

    code = tool.run_alone(show if options.action == "list" else give_up)
    return 1 if not_waiting else code
