"""``martlet lookup``: run a lookup daemon until SIGTERM or SIGINT.

Exit codes: as those of ``martlet broker``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from martlet.cli import start
from martlet.cli.servers import service
from martlet.lookup.daemon import Lookup
from martlet.options import LookupOptions
from martlet.server.observability.log_stream import replace_standard_streams

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
        return runner.run(service.serve(lambda: Lookup(options)))
