"""What every command with flags begins with: reading them, log lines, and an event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from martlet import __version__
from martlet.cli import log_line
from martlet.options import LogOptions, OptionError
from martlet.options.command_line import ParsedArguments

T = TypeVar("T", bound=LogOptions)
WRONG = 2
"""The exit code where the command line or the config file is wrong: another try would not help."""


def version() -> str:
    """What ``--version`` prints, in the shape of nsqd's."""
    return f"martlet v{__version__} (on python {sys.version.split()[0]})"


def arguments(
    command: str, description: str, kind: type[LogOptions], others: str = ""
) -> ParsedArguments:
    """The command line of a command."""
    return ParsedArguments(f"martlet {command}", version(), description, kind, others)


def options(
    command: ParsedArguments,
    kind: type[T],
    argv: Sequence[str],
    hello: Callable[[T], Iterable[str]] = lambda _options: (),
) -> T:
    """What a command line and its config file set.  From then on the package logs as they say.

    Args:
        command: the command line.
        kind: which options.
        argv: what was typed behind the command's name.
        hello: the lines to log before any warning.

    Raises:
        SystemExit: after ``--help`` or ``--version``, and with `WRONG` where they are wrong, which
            has been told then.
    """
    try:
        values, warnings = command.read(argv)
        found = kind(**values)
    except OptionError as error:
        default = LogOptions()
        log_line.set_up(default.log_level, default.log_prefix).critical("%s", error)
        raise SystemExit(WRONG) from None
    log = log_line.set_up(found.log_level, found.log_prefix)
    for line in hello(found):
        log.info("%s", line)
    for warning in warnings:
        log.warning("%s", warning)
    for flag, value in found.without_effect():
        log.warning("--%s=%s has no effect: %s", flag.name, flag.format(value), flag.instead)
    return found


def loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop's, where there is one for this system."""
    try:
        import uvloop
    except ModuleNotFoundError:  # not made for every system
        return None
    return uvloop.Loop
