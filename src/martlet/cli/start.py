"""The start of every command with flags: its options, its log lines, and an event loop.

Log lines have nsqd's form, so that operators' greps and log shippers keep working::

    [martlet] 2026/11/21 12:00:00.000000 INFO: TCP: listening on 127.0.0.1:4150

The package logs through ``logging``, to loggers below ``martlet``; an application that embeds it
sees the same records through handlers of its own.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TextIO, TypeVar

from martlet import __version__
from martlet.options import LogLevel, LogOptions, OptionError
from martlet.options.command_line import ParsedArguments
from martlet.server.observability.log_stream import LogStream, dropped_lines, log_stream

T = TypeVar("T", bound=LogOptions)
ROOT = "martlet"
"""The parent of all loggers of the package."""

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(9), *range(10, 32), 127)}
"""Escapes of characters by which a client could fake log lines."""
WRONG = 2
"""The exit code if the command line or the config file is wrong: another try would not help."""


def version() -> str:
    """Return the text of ``--version``, in nsqd's form."""
    return f"martlet v{__version__} (on python {sys.version.split()[0]})"


def arguments(
    command: str, description: str, kind: type[LogOptions], others: str = ""
) -> ParsedArguments:
    """Make the command line of a command."""
    return ParsedArguments(f"martlet {command}", version(), description, kind, others)


def options(
    command: ParsedArguments,
    kind: type[T],
    argv: Sequence[str],
    hello: Callable[[T], Iterable[str]] = lambda _options: (),
) -> T:
    """Read the options of a command line and its config file, and configure logging.

    Raises:
        SystemExit: after ``--help`` or ``--version``, and with `WRONG` after logging invalid
        options.
    """
    try:
        values, warnings = command.read(argv)
        made = kind(**values)
    except OptionError as error:
        default = LogOptions()
        set_up_logging(default.log_level, default.log_prefix).critical("%s", error)
        raise SystemExit(WRONG) from None
    log = set_up_logging(made.log_level, made.log_prefix)
    for line in hello(made):
        log.info("%s", line)
    for warning in warnings:
        log.warning("%s", warning)
    for flag, value in made.without_effect():
        log.warning("--%s=%s has no effect: %s", flag.name, flag.format(value), flag.instead)
    return made


def loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop, if there is one for this system."""
    try:
        import uvloop
    except ModuleNotFoundError:  # not made for every system
        return None
    return uvloop.Loop


class LineFormatter(logging.Formatter):
    """Format a record as nsqd's logger does, in local time to the microsecond."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._second = -1
        self._shown_second = ""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback if the record has one."""
        second, microseconds = divmod(int(record.created * 1e6), 1_000_000)
        if second != self._second:
            moment = time.localtime(second)
            self._second, self._shown_second = second, time.strftime("%Y/%m/%d %H:%M:%S", moment)
        level = "FATAL" if record.levelno >= logging.CRITICAL else record.levelname
        text = record.getMessage()
        if not text.isprintable():
            text = text.translate(_ESCAPES)
        line = f"{self._prefix}{self._shown_second}.{microseconds:06d} {level}: {text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _line(formatter: LineFormatter, text: str) -> str:
    record = logging.LogRecord(ROOT, logging.WARNING, "", 0, text, None, None)
    return f"{formatter.format(record)}\n"


def set_up_logging(level: LogLevel, prefix: str, stream: TextIO | None = None) -> logging.Logger:
    """Send the package's log records to a stream (standard error); return its logger."""
    # Skip lookups of fields that no line shows: they take a third of the time of a line.
    logging._srcfile = None  # as the documentation of logging says
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logger = logging.getLogger(ROOT)
    output = log_stream(sys.stderr) if stream is None else stream
    formatter = LineFormatter(prefix)
    if isinstance(output, LogStream):
        output.notice = lambda count: _line(formatter, dropped_lines(count))
    handler = logging.StreamHandler(output)
    handler.setFormatter(formatter)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.for_logging)
    return logger
