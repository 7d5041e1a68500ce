"""``martlet admin``: serve the admin page until SIGTERM or SIGINT.

Exit codes: as those of ``martlet broker``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from martlet.cli import start
from martlet.cli.servers import service
from martlet.options.admin import AdminOptions
from martlet.server.observability.log_stream import replace_standard_streams
from martlet.text import how_to_install

log = logging.getLogger(start.ROOT)

DESCRIPTION = (
    "Show brokers in a browser, at http://127.0.0.1:4171, and act on them. Takes the flags of"
    " nsqadmin, and serves its API."
)


def main(argv: Sequence[str]) -> int:
    """Serve the page with the given flags; return the exit code of the process."""
    command = start.arguments("admin", DESCRIPTION, AdminOptions)
    options = start.options(command, AdminOptions, argv, lambda _options: [start.version()])
    replace_standard_streams()
    try:
        from martlet.console.server import AdminServer
    except ImportError as error:
        log.critical("the admin page wants %s: %s", error.name, how_to_install("admin"))
        return 1
    with asyncio.Runner(loop_factory=start.loop_factory()) as runner:
        return runner.run(service.serve(lambda: AdminServer(options, log)))
