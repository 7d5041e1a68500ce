"""``martlet pub``: publishes what comes from a pipe or files, a message for each line."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from io import FileIO

from martlet.apps import progress, tool
from martlet.options.tools import PublishOptions
from martlet.plural import counted
from martlet.tools.publish import PublishTool

DESCRIPTION = (
    "Publish standard input, or the files named behind the flags, a message for each line, and show"
    " how far files have come; takes the flags of to_nsq."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Publish; the result is the exit code of the process."""
    found, paths = tool.split(PublishOptions, argv)
    options = tool.options("pub", DESCRIPTION, PublishOptions, found, "[FILE ...]")
    with ExitStack() as opened:
        files: list[FileIO] = []
        for path in paths:
            try:
                files.append(opened.enter_context(open(path, "rb", buffering=0)))
            except OSError as error:
                log.critical("%s", error)
                return 1
        publish = PublishTool(options)
        total_bytes = sum(os.fstat(file.fileno()).st_size for file in files)
        if total_bytes and not options.dead_letters:
            shown = opened.enter_context(progress.shown("publishing", total_bytes))
            publish = PublishTool(options, shown)
        if not files:
            files.append(opened.enter_context(FileIO(sys.stdin.fileno(), closefd=False)))
        return _run(publish, files)


def _run(publish: PublishTool, files: list[FileIO]) -> int:
    """1 as well where it was stopped: not all of the input is published."""
    stopped = False

    async def work() -> None:
        nonlocal stopped
        try:
            count = await publish.run(files)
        except asyncio.CancelledError:
            stopped = True
            log.warning("stopped: stored %s", counted(publish.count, "message"))
            raise
        except BaseExceptionGroup:
            log.warning("broken off: stored at least %s", counted(publish.count, "message"))
            raise
        await tool.show([f"stored {counted(count, 'message')}"])

    return tool.run_alone(work) or int(stopped)
