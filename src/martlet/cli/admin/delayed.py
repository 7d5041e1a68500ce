"""``martlet delayed``: list and cancel delayed messages."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from martlet.cli import tool
from martlet.cli.broker_http import BrokerHttpOptions
from martlet.cli.standard_output import StandardOutput
from martlet.cli.text import json_line, local_time
from martlet.options.checks import require_action, require_ids, require_names
from martlet.options.flag import OptionError, option
from martlet.plural import counted

Fields = Mapping[str, Any]
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


async def pages(options: DelayedOptions) -> AsyncIterator[tuple[str, int, list[Fields]]]:
    """List delayed messages; yield each broker's URL, the number that wait, and the next of them.

    Raises:
        AdminError: a broker does not answer, or none has the topic.
    """
    async with options.admin() as admin:
        listed: Counter[str] = Counter()
        async for page in admin.delayed.pages(options.topic, limit=options.limit or None):
            left = options.limit - listed[page.broker] if options.limit else None
            messages = [each.fields for each in page.items[:left]]
            listed[page.broker] += len(messages)
            yield page.broker, page.count or 0, messages


async def cancel(options: DelayedOptions) -> AsyncIterator[tuple[str, list[str]]]:
    """Cancel messages; yield each broker's URL and the cancelled ids. Raises as `pages`."""
    async with options.admin() as admin:
        if options.all:
            answers = await admin.delayed.cancel_all(options.topic)
        else:
            answers = await admin.delayed.cancel(options.topic, options.ids)
    for url, done in answers.values.items():
        yield url, list(done.cancelled)
    answers.check()


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
                [json_line({"broker": url, **each}) for each in page]
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
