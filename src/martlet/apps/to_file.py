"""``martlet to-file``: writes the messages of topics into files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from martlet.apps import tool
from martlet.options.to_file import FileOptions
from martlet.tools.to_file import Writers

DESCRIPTION = (
    "Write the messages of topics into files, a line each, and finish them once they are on disk;"
    " takes the flags of nsq_to_file. SIGHUP ends the files; others are begun."
)


def main(argv: Sequence[str]) -> int:
    """Write files; the result is the exit code of the process."""
    options = tool.options("to-file", DESCRIPTION, FileOptions, argv)
    writers = Writers(options)
    reopening: set[asyncio.Task[None]] = set()

    def reopen() -> None:
        task = asyncio.ensure_future(writers.reopen())
        reopening.add(task)
        task.add_done_callback(reopening.discard)

    return tool.run(writers.run, writers.stop, SIGHUP=reopen)
