"""``martlet peek``: show the unfinished messages of a channel, without consuming any.

The command reads each broker page by page, while the channel continues.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from martlet.cli import tool
from martlet.cli.broker_http import ChannelOptions
from martlet.cli.operations.manage import how_to_list, names_of
from martlet.cli.standard_output import StandardOutput
from martlet.cli.text import body_text, json_line, printable
from martlet.client.admin import AdminNotFound
from martlet.options.flag import OptionError, Size, option
from martlet.text import how_to_install

if TYPE_CHECKING:
    from rich.table import Table

Fields = dict[str, Any]
STATES = ("in_flight", "deferred", "due", "waiting")


@dataclass(frozen=True, kw_only=True)
class PeekOptions(ChannelOptions):
    """The options of ``martlet peek``."""

    states: tuple[str, ...] = option(
        (),
        f"only messages in this state, one of {', '.join(STATES)}; may be given several times",
        name="state",
        section="messages",
    )
    offset: int = option(
        0, "begin with the message at this offset, of each queue", limits=(0, None)
    )
    limit: int = option(
        20, "maximum messages to show of each broker; 0: no limit", limits=(0, None)
    )
    max_body_bytes: Size = option(
        1024, "maximum bytes of a body to show", limits=(0, 8 << 20), section="output"
    )
    json: bool = option(False, "a line of JSON for each message")

    def __post_init__(self) -> None:
        super().__post_init__()
        for state in self.states:
            if state not in STATES:
                raise OptionError(f"--state={state} is none of {', '.join(STATES)}")


async def pages(options: PeekOptions) -> AsyncIterator[list[Fields]]:
    """Yield a channel's messages at each broker, by queue and offset, a few hundred at a time.

    Each has ``broker``, the broker's URL. Raises AdminError.
    """
    async with options.admin() as admin:
        try:
            async for page in admin.channels.peek_pages(
                options.topic,
                options.channel,
                states=options.states,
                offset=options.offset,
                limit=options.limit or None,
                max_body_bytes=options.max_body_bytes,
            ):
                yield [{"broker": page.broker, **message.fields} for message in page.items]
        except AdminNotFound as error:
            raise error.replace(how_to_list(error, names_of(options))) from None


def table(messages: list[Fields]) -> Table:
    """Format messages as text."""
    from rich.table import Table
    from rich.text import Text

    several = len({message["broker"] for message in messages}) > 1
    has_queues = any("queue" in message for message in messages)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    if several:
        shown.add_column("broker")
    if has_queues:
        shown.add_column("queue", justify="right")
    for name in ("offset", "state", "attempts", "age", "due in", "with"):
        numbers = name in ("offset", "attempts", "age", "due in")
        shown.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    shown.add_column("bytes", justify="right", no_wrap=True)
    has_properties = any(_carried(message) for message in messages)
    if has_properties:
        shown.add_column("tag, keys", overflow="ellipsis", max_width=40, no_wrap=True)
    shown.add_column("body", no_wrap=True, overflow="ellipsis", ratio=1)
    for message in messages:
        cells = [message["broker"].partition("://")[2]] if several else []
        cells += [str(message.get("queue", 0))] if has_queues else []
        client = message["client"]
        cells += [
            str(message["offset"]),
            message["state"],
            str(message["attempts"]),
            _seconds(message["now_ns"], message["timestamp_ns"]),
            _seconds(message["due_ns"], message["now_ns"]),
            "" if client is None else f"{client['client_id']} {client['remote_address']}".strip(),
            "" if message["body_bytes"] is None else str(message["body_bytes"]),
        ]
        carried = [Text(_carried(message))] if has_properties else []
        shown.add_row(*cells, *carried, Text(_body(message)))
    return shown


def _seconds(later_ns: int | None, earlier_ns: int | None) -> str:
    if later_ns is None or earlier_ns is None:
        return ""
    return f"{max(0, later_ns - earlier_ns) / 1e9:.1f} s"


def _carried(message: Fields) -> str:
    properties = message.get("properties", {})
    texts = [properties.get("tag", ""), *properties.get("keys", ())]
    return ", ".join(printable(text) for text in texts if text)


def _body(message: Fields) -> str:
    return "(cannot be read)" if message["body_bytes"] is None else body_text(message)


DESCRIPTION = (
    "Show the unfinished messages of a channel, in flight (with consumer and deadline),"
    " deferred, due or waiting, without consuming any. The topic and the channel may stand without"
    " their flags: martlet peek TOPIC CHANNEL."
)
PIPE_WIDTH = 240
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Show messages; return the exit code of the process."""
    operands = ("topic", "channel")
    options = tool.options("peek", DESCRIPTION, PeekOptions, argv, "TOPIC CHANNEL", operands)
    if not options.json and find_spec("rich") is None:
        log.critical("needs the package rich: %s; or use --json", how_to_install("cli"))
        return 1

    async def show() -> None:
        output = StandardOutput()
        messages: list[Fields] = []
        async for page in pages(options):
            if options.json:
                await output.print(_line(message) for message in page)
            else:
                messages += page
        if messages:
            await output.show([drawn(messages).encode()])
        elif not options.json:
            of = f"channel {options.channel} of topic {options.topic}"
            such = " such" if options.states or options.offset else ""
            log.info("%s has no%s unfinished messages", of, such)

    return tool.run_alone(show)


def _line(message: Fields) -> str:
    return json_line({key: value for key, value in message.items() if key != "now_ns"})


def drawn(messages: list[Fields]) -> str:
    """Draw messages as a table as wide as the terminal."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    with console.capture() as capture:
        console.print(table(messages))
    return capture.get()
