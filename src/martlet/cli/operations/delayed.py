"""``martlet delayed``: list and cancel delayed messages (see `martlet.schema.delayed`)."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from martlet.cli import tool
from martlet.cli.operation_flags import OperationOptions, with_flags_of
from martlet.cli.standard_output import StandardOutput
from martlet.cli.text import json_line, local_time
from martlet.client.admin import DelayedAdmin, DelayedMessage
from martlet.options.flag import option
from martlet.schema import delayed as schema
from martlet.schema.read import Refusal
from martlet.text import counted


class _CancelSome(schema.CancelDelayed, kw_only=True):
    """Which of them to cancel.

    all: cancel all of the topic's
    """

    all: bool = False

    def __post_init__(self) -> None:
        if self.all == (self.ids is not None):
            raise Refusal(
                "BAD_ARGUMENT",
                "give {ids} of those to cancel, as martlet delayed list shows them, or {all}",
            )


@with_flags_of(list=schema.LIST, cancel=dataclasses.replace(schema.CANCEL, make=_CancelSome))
@dataclass(frozen=True, kw_only=True)
class DelayedOptions(OperationOptions):
    """The options of ``martlet delayed``."""

    limit: int = option(
        20,
        "maximum messages to list of each broker; 0: no limit",
        limits=(0, None),
        section="output",
    )
    json: bool = option(False, "a line of JSON for each message")


def line(message: DelayedMessage) -> str:
    """Format a message as text."""
    tag = f"  tag {message.tag}" if message.tag else ""
    keys = f"  keys {', '.join(message.keys)}" if message.keys else ""
    return (
        f"{message.id}  due {_time(message.deliver_at_ms)}  published"
        f" {_time(message.stored_at_ms)}  {counted(message.body_bytes, 'byte')}{tag}{keys}"
    )


def _time(time_ms: int) -> str:
    return local_time(time_ms, "milliseconds")


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
        request = replace(options.request(schema.ListDelayed), limit=options.limit or None)
        shown: Counter[str] = Counter()
        waiting: dict[str, int] = {}
        async with options.admin() as admin:
            async for page in DelayedAdmin.pages.run(admin.http, request):
                left = options.limit - shown[page.broker] if options.limit else None
                messages = page.items[:left]
                shown[page.broker] += len(messages)
                waiting[page.broker] = page.count or 0
                await output.print(
                    json_line({"broker": page.broker, **message.fields})
                    if options.json
                    else line(message)
                    for message in messages
                )
        for url, count in waiting.items():
            text = f"{url}: {counted(count, 'message')} waiting, {shown[url]} listed"
            if options.json:
                log.info("%s", text)
            else:
                await output.print([text])

    async def cancel() -> None:
        request = options.request(_CancelSome)
        method = DelayedAdmin.cancel_all if request.all else DelayedAdmin.cancel
        async with options.admin() as admin:
            answers = await method.run(admin.http, request)
        await tool.show(
            f"{url}: {counted(len(done.cancelled), 'message')} cancelled"
            for url, done in answers.values.items()
        )
        answers.check()
        cancelled = {one for done in answers.values.values() for one in done.cancelled}
        not_waiting.extend(one for one in map(str, request.ids or ()) if one not in cancelled)
        for one in not_waiting:
            log.error("%s is not waiting: it is unknown, delivered, or cancelled already", one)

    code = tool.run_alone(show if options.action == "list" else cancel)
    return 1 if not_waiting else code
