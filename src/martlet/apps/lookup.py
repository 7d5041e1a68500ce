"""``martlet lookup``: runs a lookup daemon until it is told to stop.

Exit codes: as those of ``martlet broker``.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence

from martlet.apps import log_line
from martlet.apps.arguments import Arguments
from martlet.apps.broker import loop_factory, version
from martlet.lookup.daemon import Lookup
from martlet.options import LogLevel, LookupOptions, OptionError, default_value, flags

DESCRIPTION = (
    "Run a lookup daemon: brokers tell it what they have, consumers ask it. Takes the flags and"
    " the config file of nsqlookupd, and serves NSQ's brokers and clients."
)


def main(argv: Sequence[str]) -> int:
    """Run a lookup daemon with the flags given; the result is the exit code of the process."""
    known = flags(LookupOptions)
    defaults = {flag.field: default_value(flag, LookupOptions) for flag in known.values()}
    command = Arguments("martlet lookup", version(), DESCRIPTION, known, defaults)
    try:
        values, warnings = command.read(argv)
        options = LookupOptions(**values)
    except OptionError as error:
        log_line.set_up(LogLevel.INFO, "[martlet] ").critical("%s", error)
        return 1
    log = log_line.set_up(options.log_level, options.log_prefix)
    log.info("%s", version())
    for warning in warnings:
        log.warning("%s", warning)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(options, log))


async def _serve(options: LookupOptions, log: logging.Logger) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    lookup = Lookup(options)
    try:
        await lookup.start()
    except OSError as error:
        log.critical("%s", error)
        return 1
    await stopping.wait()
    await lookup.stop()
    log.info("bye")
    return 0
