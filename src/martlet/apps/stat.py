"""``martlet stat``: what brokers count, as it changes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import aclosing
from importlib.util import find_spec
from io import StringIO

from martlet.apps import start, tool
from martlet.options.stat import StatOptions
from martlet.tools.door import NoHttpAnswer
from martlet.tools.standard_output import StandardOutput
from martlet.tools.stat import HEAD, HEAD_EVERY, Look, Stat, line, table

DESCRIPTION = (
    "Show what brokers count, added up, and how it changes: at a terminal a table of all channels;"
    " with --count, or into a pipe, a line each --interval of one channel, as nsq_stat prints it."
    " Takes the flags of nsq_stat."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Show counts; the result is the exit code of the process."""
    options = tool.options("stat", DESCRIPTION, StatOptions, argv)
    if options.count or not sys.stdout.isatty() or find_spec("rich") is None:
        if not options.channel:
            log.critical("--topic and --channel are needed for lines: which channel is it?")
            return start.WRONG
        return tool.run_alone(lambda: print_lines(options))
    return tool.run_alone(lambda: show_table(options))


async def print_lines(options: StatOptions) -> None:
    """Print a line for each interval. Raises NoHttpAnswer where a broker does not answer."""
    name = (options.topic, options.channel)
    before: Look | None = None
    number = 0
    output = StandardOutput(sys.stdout.fileno())
    async with aclosing(Stat(options).looks()) as looks:
        async for look in looks:
            if look.failed:
                raise NoHttpAnswer("not every broker answers", "; ".join(look.failed))
            if name not in look.channels:
                raise NoHttpAnswer(
                    f"topic {options.topic}", f"no broker has its channel {options.channel}"
                )
            if number % HEAD_EVERY == 0:
                await output.show([f"{HEAD}\n".encode()])
            if before is not None:
                seconds = look.at_s - before.at_s
                text = line(before.channels[name], look.channels[name], seconds)
                await output.show([f"{text}\n".encode()])
            if number and number == options.count:
                return
            before = look
            number += 1


async def show_table(options: StatOptions) -> None:
    """Keep a table on the screen. Raises NoHttpAnswer where no broker answers at first."""
    from rich.console import Console
    from rich.live import Live

    screen = StringIO()
    output = StandardOutput(sys.stdout.fileno())

    async def draw() -> None:
        text = screen.getvalue()
        screen.seek(0)
        screen.truncate()
        await output.show([text.encode()])

    before: Look | None = None
    console = Console(file=screen, force_terminal=True)
    try:
        with Live(console=console, auto_refresh=False) as live:
            async with aclosing(Stat(options).looks()) as looks:
                async for look in looks:
                    live.update(table(before, look), refresh=True)
                    await draw()
                    before = look
    finally:
        output.stop()
        await draw()  # the end of it, with the cursor
