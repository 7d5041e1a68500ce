"""The log line: as nsqd writes it, so that what people grep and ship goes on working.

::

    [martlet] 2026/11/21 12:00:00.000000 INFO: TCP: listening on 127.0.0.1:4150

The broker logs through ``logging``, to loggers below ``martlet``; an application that embeds it
sees the same records through handlers of its own.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

from martlet.options import LogLevel

ROOT = "martlet"
"""The logger above all others of the package."""

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(9), *range(10, 32), 127)}
"""For what a client may have sent to make one line look like two, or like another one."""


class LineFormatter(logging.Formatter):
    """Formats a record as nsqd's logger would, local time to the microsecond."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._second = -1
        self._shown_second = ""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and below it the traceback if the record has one."""
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


def set_up(level: LogLevel, prefix: str, stream: TextIO | None = None) -> logging.Logger:
    """Send what the package logs to a stream (standard error) from now on; gives its logger."""
    # What no line shows is not looked for: it makes a third of what a line costs.
    logging._srcfile = None  # as the documentation of logging says
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logger = logging.getLogger(ROOT)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(prefix))
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.for_logging)
    return logger
