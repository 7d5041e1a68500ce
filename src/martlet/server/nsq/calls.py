"""CALL: run a client's calls (see `martlet.server.rpc.registry`), and answer each when done."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from martlet.protocol.nsq import v2
from martlet.server.nsq.outcome import WAIT, Outcome
from martlet.server.rpc.arguments import CallError
from martlet.server.rpc.registry import Answer, Reply, encoded, reply_of

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection
    from martlet.server.rpc.registry import CallRegistry

MAX_CALLS = 1000
"""The maximum number of unanswered calls of one connection: of those that wait for something, and
of those whose change is not confirmed yet. More of the first are refused; more of the second wait.
"""


class CallCommand:
    """CALL.

    Args:
        registry: has the methods.
        log: takes unexpected errors.
        on_task: called with each call that takes several rounds of the loop.
    """

    def __init__(
        self, registry: CallRegistry, log: logging.Logger, on_task: Callable[[], object]
    ) -> None:
        self._on_task = on_task
        self._registry = registry
        self._log = log

    def call(self, connection: ClientConnection, command: v2.Call) -> Outcome:
        """Call a method; one that never waits runs at once, in the order of the commands, even if
        its answer has to wait.

        The command waits while the client does not read its answers, which may be large, and while
        many changes are not confirmed.
        """
        if connection.held_up and connection.consumer is None:
            return WAIT
        if connection.guard is not None and connection.guard.given is None:
            _refuse(connection, command, "FORBIDDEN", "AUTH is required before CALL")
        elif not self._registry.waits(command.method):
            if len(connection.begun_calls) >= MAX_CALLS:
                return WAIT
            with self._answering(connection, command) as answer:
                begun = self._registry.begin(connection, command.method, command.fields)
                if not inspect.isawaitable(begun):
                    answer(reply_of(begun))
                else:
                    answering = self._answer_begun(connection, command, begun)
                    task = self._start(answering, connection, connection.begun_calls)
                    # A task that is cancelled before its first step has not awaited it.
                    task.add_done_callback(lambda _: begun.close())
        elif len(connection.calls) >= MAX_CALLS:
            text = f"{MAX_CALLS} calls wait for their answers already; wait for some of them"
            _refuse(connection, command, "LIMIT_REACHED", text)
        else:
            self._start(self._answer(connection, command), connection, connection.calls)
        return None

    def _start(
        self,
        answering: Coroutine[object, object, None],
        connection: ClientConnection,
        tasks: set[asyncio.Task[None]],
    ) -> asyncio.Task[None]:
        self._on_task()
        task = asyncio.get_running_loop().create_task(answering)
        tasks.add(task)
        task.add_done_callback(partial(_has_answered, connection, tasks))
        return task

    async def _answer(self, connection: ClientConnection, command: v2.Call) -> None:
        await connection.drained()
        with self._answering(connection, command) as answer:
            answer(await self._registry.run(connection, command.method, command.fields))

    async def _answer_begun(
        self, connection: ClientConnection, command: v2.Call, begun: Coroutine[Any, Any, Answer]
    ) -> None:
        with self._answering(connection, command) as answer:
            answer(await self._registry.end(begun))

    @contextmanager
    def _answering(
        self, connection: ClientConnection, command: v2.Call
    ) -> Iterator[Callable[[Reply], None]]:
        """Return a function that answers a call; an exception becomes an error."""

        def answer(reply: Reply) -> None:
            fields, data = reply
            connection.send_answer(v2.answer(command.number, encoded(fields), data))

        try:
            yield answer
        except CallError as error:
            answer(({"error": {"code": error.code, "text": str(error), **error.fields}}, b""))
        except Exception:
            self._log.exception("call %s of %s", command.method, connection.remote_address)
            answer(({"error": {"code": "INTERNAL_ERROR", "text": "see the broker's log"}}, b""))


def _has_answered(
    connection: ClientConnection, tasks: set[asyncio.Task[None]], task: asyncio.Task[None]
) -> None:
    """Go on with a connection whose next call may have waited for this one's answer."""
    tasks.discard(task)
    if not task.cancelled() and isinstance(error := task.exception(), Exception):
        connection.break_off(error)  # The answer could not be sent.
    elif tasks is connection.begun_calls:
        connection.go_on()


def _refuse(connection: ClientConnection, command: v2.Call, code: str, text: str) -> None:
    fields = {"error": {"code": code, "text": text}}
    connection.send_answer(v2.answer(command.number, encoded(fields)))
