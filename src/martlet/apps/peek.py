"""``martlet peek``: shows what a channel has yet to finish, and takes nothing."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from martlet.apps import tool
from martlet.extras import how_to_install
from martlet.options.peek import PeekOptions
from martlet.tools.peek import Message, Peek, line, table
from martlet.tools.standard_output import StandardOutput

DESCRIPTION = (
    "Show the messages that a channel has yet to finish, in flight (with whom, until when),"
    " deferred, due or waiting, without taking any. The topic and the channel may stand without"
    " their flags: martlet peek TOPIC CHANNEL."
)
PIPE_WIDTH = 240
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Show messages; the result is the exit code of the process."""
    found = tool.named(PeekOptions, argv, "topic", "channel")
    options = tool.options("peek", DESCRIPTION, PeekOptions, found, "TOPIC CHANNEL")
    if not options.json and find_spec("rich") is None:
        log.critical("needs the package rich: %s; or use --json", how_to_install("cli"))
        return 1
    peek = Peek(options)

    async def show() -> None:
        output = StandardOutput(sys.stdout.fileno())
        messages: list[Message] = []
        async for page in peek.pages():
            if options.json:
                await output.show([f"{line(message)}\n".encode() for message in page])
            else:
                messages += page
        if messages:
            await output.show([drawn(messages).encode()])
        elif not options.json:
            log.info("nothing of that is there")

    return tool.run_alone(show)


def drawn(messages: list[Message]) -> str:
    """Messages for people, as they are drawn on what standard output is."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    with console.capture() as capture:
        console.print(table(messages))
    return capture.get()
