"""What the commands of the tools share: reading flags, and ending on a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from martlet.apps import log_line, start
from martlet.client import ClientError
from martlet.options import LogOptions

T = TypeVar("T", bound=LogOptions)
_log = logging.getLogger(log_line.ROOT)


def options(command: str, description: str, kind: type[T], argv: Sequence[str]) -> T | None:
    """What a command line sets; None where it is wrong, which has been told then.

    Raises:
        SystemExit: after ``--help`` or ``--version``, and for an unknown flag.
    """
    return start.options(start.arguments(command, description, kind), kind, argv)


def run(
    work: Callable[[], Awaitable[Any]], stop: Callable[[], object], **on: Callable[[], object]
) -> int:
    """Run a tool until it ends, or is told to by SIGTERM or SIGINT; the exit code of the process.

    Args:
        work: what is to be done.
        stop: makes it end well.
        on: what to do on other signals, by name.
    """

    async def serve() -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        for name, call in on.items():
            loop.add_signal_handler(signal.Signals[name], call)
        code = 0
        try:
            await work()
        except* (ClientError, OSError) as group:
            for error in _each(group):
                _log.critical("%s", error)
            code = 1
        return code

    with asyncio.Runner(loop_factory=start.loop_factory()) as runner:
        return runner.run(serve())


def _each(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error
