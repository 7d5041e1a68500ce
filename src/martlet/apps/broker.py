"""``martlet broker``: runs a broker until it is told to stop.

Exit codes: 0 after a clean stop (SIGTERM or SIGINT), 2 when the command line is wrong, 1 for
everything else, with the reason as the last log line.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from martlet import __version__
from martlet.apps import log_line
from martlet.apps.arguments import Arguments
from martlet.options import BrokerOptions, LogLevel, OptionError, default_value, flags

if TYPE_CHECKING:
    import logging

_COLLECT_AFTER = 50_000
"""New objects before the garbage collector looks at them: a broker makes few cycles, and most of
what it makes is gone within the turn."""

DESCRIPTION = (
    "Run a broker that NSQ's clients use unchanged. Takes the flags and the config file of nsqd."
)


def version() -> str:
    """What ``martlet broker --version`` prints, in the shape of nsqd's."""
    return f"martlet v{__version__} (on python {sys.version.split()[0]})"


def arguments() -> Arguments:
    """The command line of a broker."""
    defaults = {flag.field: default_value(flag) for flag in flags().values()}
    return Arguments("martlet broker", version(), DESCRIPTION, flags(), defaults)


def main(argv: Sequence[str]) -> int:
    """Run a broker with the flags given; the result is the exit code of the process."""
    command = arguments()
    try:
        values, warnings = command.read(argv)
        options = BrokerOptions(**values)
    except OptionError as error:
        log = log_line.set_up(LogLevel.INFO, "[martlet] ")
        log.critical("%s", error)
        return 1
    log = log_line.set_up(options.log_level, options.log_prefix)
    log.info("%s", version())
    log.info("ID: %d", options.node_id)
    for warning in warnings:
        log.warning("%s", warning)
    for flag, value in options.without_effect():
        log.warning("--%s=%s has no effect: %s", flag.name, flag.format(value), flag.instead)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(options, log))


def loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop's, where there is one for this system."""
    try:
        import uvloop
    except ModuleNotFoundError:  # not made for every system
        return None
    return uvloop.Loop


async def _serve(options: BrokerOptions, log: logging.Logger) -> int:
    from martlet.server.server import Server

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        if stopping.is_set():
            log.warning("%s again: stopping at once; the log is whole all the same", number.name)
            os._exit(1)
        log.info("%s: stopping", number.name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    server = Server(options)
    try:
        await server.start()
    except OSError as error:
        log.critical("%s", error)
        return 1
    # What a start leaves behind lives as long as the process: no collection need look at it.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    await stopping.wait()
    await server.stop()
    log.info("NSQ: bye")
    return 0
