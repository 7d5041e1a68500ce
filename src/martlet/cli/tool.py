"""Run commands that are not servers: read their flags, and end on a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from martlet.cli import pipe, start
from martlet.cli.standard_output import StandardOutput
from martlet.client.admin import AdminError, Answers
from martlet.client.errors import ClientError
from martlet.options import LogOptions
from martlet.options.flag import FlagKind

T = TypeVar("T", bound=LogOptions)
A = TypeVar("A")
M = TypeVar("M")
_log = logging.getLogger(start.ROOT)


def options(
    command: str,
    description: str,
    kind: type[T],
    argv: Sequence[str],
    usage: str = "",
    operands: Sequence[str] = (),
) -> T:
    """Read the options of a command line. Raises SystemExit: after ``--help`` or ``--version``, and
    after logging an invalid option.
    """
    if operands:
        flags, others = split(kind, argv)
        named = [f"--{flag}={value}" for flag, value in zip(operands, others, strict=False)]
        argv = flags + named + others[len(operands) :]
    return start.options(start.arguments(command, description, kind, usage), kind, argv)


def split(kind: type[LogOptions], argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the flags with their values, and the other words."""
    flags: list[str] = []
    others: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        if argument == "--":
            others += arguments
        elif argument.startswith("-") and argument != "-":
            flags.append(argument)
            flag = kind.flag(argument.lstrip("-"))
            if flag is not None and flag.kind is not FlagKind.BOOL:
                flags += [value for value in [next(arguments, None)] if value is not None]
        else:
            others.append(argument)
    return flags, others


async def show(lines: Iterable[str]) -> None:
    """Write lines of a command's result to standard output."""
    await StandardOutput().print(lines)


async def settled(answers: Awaitable[Answers[A]]) -> Answers[A]:
    """Return the answers of brokers, also where each is an error. Raises AdminError: no broker was
    found.
    """
    try:
        return await answers
    except AdminError as error:
        if not error.errors:
            raise
        return Answers({}, error.errors)


def run_at_each(
    work: Callable[[], Awaitable[Answers[A]]],
    describe: Callable[[A], str],
    explain: Callable[[AdminError], str] = lambda error: error.why,
) -> int:
    """Run an action at each of several servers, and show each result or error.

    Returns:
        The exit code of the process; 1 if any server has failed.
    """
    has_failed = False

    async def run_it() -> None:
        nonlocal has_failed
        answers = await settled(work())
        for error in answers.errors.values():
            has_failed = True
            _log.error("%s", error.replace(explain(error)))
        await show(f"{url}: {describe(answer)}" for url, answer in answers.values.items())

    return run_alone(run_it) or int(has_failed)


def run_alone(work: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """Run work that holds no messages, cancelled by SIGTERM or SIGINT; return the exit code."""
    running: list[asyncio.Task[object]] = []

    async def run_it() -> None:
        running.append(asyncio.create_task(work()))
        with suppress(asyncio.CancelledError):
            await running[0]

    return run(run_it, lambda: [task.cancel() for task in running])


def made(make: Callable[[], M]) -> M:
    """Make a tool of its options. Raises SystemExit: with 1, after logging that a broker cannot be
    asked.
    """
    try:
        return make()
    except ClientError as error:
        _log.critical("%s", error)
        raise SystemExit(1) from None


def run(
    work: Callable[[], Awaitable[Any]], stop: Callable[[], object], **on: Callable[[], object]
) -> int:
    """Run a tool until it ends, or SIGTERM or SIGINT stops it; return the exit code."""

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
            code = 1
            for error in _each(group):
                if isinstance(error, BrokenPipeError) and pipe.is_closed():
                    code = pipe.EXIT_CODE
                    break
                _log.critical("%s", error)
        return code

    with asyncio.Runner(loop_factory=start.loop_factory()) as runner:
        return runner.run(serve())


def _each(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error
