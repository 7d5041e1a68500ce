"""``martlet pub``: publishes what comes from a pipe or files, a message for each line."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import BinaryIO

from martlet.apps import tool
from martlet.options.tools import PublishOptions
from martlet.tools.publish import Publish

DESCRIPTION = (
    "Publish standard input, or the files named behind the flags, a message for each line; takes"
    " the flags of to_nsq."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Publish; the result is the exit code of the process."""
    found, paths = tool.split(PublishOptions, argv)
    options = tool.options("pub", DESCRIPTION, PublishOptions, found)
    if options is None:
        return 1
    publish = Publish(options)
    with ExitStack() as opened:
        files: list[BinaryIO] = []
        for path in paths:
            try:
                files.append(opened.enter_context(open(path, "rb")))
            except OSError as error:
                log.critical("%s", error)
                return 1
        return _run(publish, files or [sys.stdin.buffer])


def _run(publish: Publish, files: list[BinaryIO]) -> int:
    running: list[asyncio.Task[int]] = []

    async def work() -> None:
        task = asyncio.ensure_future(publish.run(files))
        running.append(task)
        try:
            count = await task
        except asyncio.CancelledError:
            log.warning("stopped: %d messages are stored", publish.count)
        else:
            log.info("%d messages are stored", count)

    return tool.run(work, lambda: [task.cancel() for task in running])
