"""What the commands of the tools share: reading flags, log lines, and ending on a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from martlet.apps import log_line
from martlet.apps.arguments import Arguments
from martlet.apps.broker import loop_factory, version
from martlet.client import ClientError
from martlet.options import LogLevel, OptionError, default_value, flags
from martlet.options.tools import ToolOptions

T = TypeVar("T", bound=ToolOptions)
_log = logging.getLogger(log_line.ROOT)


def options(command: str, description: str, kind: type[T], argv: Sequence[str]) -> T | None:
    """What a command line sets; None where it is wrong, which has been told then.

    Raises:
        SystemExit: after ``--help`` or ``--version``, and for an unknown flag.
    """
    anything: Any = kind
    known = flags(anything)
    defaults = {flag.field: default_value(flag, anything) for flag in known.values()}
    arguments = Arguments(f"martlet {command}", version(), description, known, defaults)
    try:
        values, warnings = arguments.read(argv)
        found = kind(**values)
    except OptionError as error:
        log_line.set_up(LogLevel.INFO, "[martlet] ").critical("%s", error)
        return None
    log = log_line.set_up(found.log_level, found.log_prefix)
    for warning in warnings:
        log.warning("%s", warning)
    return found


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

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve())


def _each(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error
