"""``martlet delayed``: list and cancel delayed messages."""

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
        20,
        "maximum messages to list of each broker; 0: no limit",
        limits=(0, None),
        section="output",
    )
    json: bool = option(False, "a line of JSON for each message")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_action(self.action, ACTIONS)
        if not self.topic:
            raise OptionError(f"the topic is missing: martlet delayed {self.action} TOPIC")
        require_names("topic", [self.topic])
        require_ids(self.ids)
        if self.action == "cancel" and bool(self.ids) == self.all:
            raise OptionError(
                "name the ids to cancel, as martlet delayed list shows them, or give --all"
            )


_PAGE = 1000
_ALL = 1 << 62


async def pages(options: DelayedOptions) -> AsyncIterator[tuple[str, int, list[Fields]]]:
    """List delayed messages; yield each broker's URL, the number that wait, and the next of them.

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
    """Cancel messages; yield each broker's URL and the cancelled ids. Raises as `pages`."""
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
    """Format messages as text, a line each."""
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
    "List or cancel messages of a topic that were sent with a delivery time. The action, the"
    " topic and the ids may stand without their flags: martlet delayed list TOPIC, martlet delayed"
    " cancel TOPIC ID ... The answer to a send has the id, and so has the list. (A message that"
    " DPUB defers belongs to its channels as in nsqd, unless there are many: see martlet peek.)"
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """List or cancel messages; return the exit code of the process."""
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
            log.error("%s is not waiting: it is unknown, delivered, or cancelled already", each)

    code = tool.run_alone(show if options.action == "list" else give_up)
    return 1 if not_waiting else code
