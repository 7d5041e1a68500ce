"""``martlet lookup``: run a lookup daemon until SIGTERM or SIGINT.

Exit codes: as those of ``martlet broker``.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence

from martlet.cli import start
from martlet.cli.servers import service
from martlet.lookup.daemon import Lookup
from martlet.options import LookupOptions
from martlet.server.observability.log_stream import replace_standard_streams

log = logging.getLogger(start.ROOT)

DESCRIPTION = (
    "Run a lookup daemon: brokers register there, consumers ask it. Takes the flags and"
    " the config file of nsqlookupd, and serves NSQ's brokers and clients."
)


def main(argv: Sequence[str]) -> int:
    """Run a lookup daemon with the given flags; return the exit code of the process."""
    command = start.arguments("lookup", DESCRIPTION, LookupOptions)
    options = start.options(command, LookupOptions, argv, lambda _options: [start.version()])
    replace_standard_streams()
    with asyncio.Runner(loop_factory=start.loop_factory()) as runner:
        return runner.run(_serve(options))


async def _serve(options: LookupOptions) -> int:
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
    service.notify(service.READY)
    await stopping.wait()
    service.notify(service.STOPPING)
    await lookup.stop()
    log.info("bye")
    return 0
