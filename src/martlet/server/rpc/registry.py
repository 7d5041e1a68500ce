"""Calls: what Martlet's own clients ask beside NSQ's commands, by the name of a method.

A call has a number, a method and fields, and is answered with fields and perhaps bytes, or with an
error: ``{"error": {"code": "NOT_FOUND", "text": "..."}}``.  Answers come when they are ready, in
any order, since some wait for long.  The same methods are behind ``POST /call/<method>``, with the
fields as the JSON body; there an answer's bytes come alone, with the fields in a header.

Each room has its methods in a file of its own, as the HTTP endpoints are; here they are found, and
called.  A method is a plain function, or a coroutine function where it has to wait.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from martlet.broker.errors import (
    BrokerError,
    Conflict,
    LimitReached,
    NameRefused,
    NotAMember,
    NotFound,
    OutOfReach,
    QueuesRefused,
    TooMany,
    WritesRefused,
)
from martlet.protocol.nsq import v2
from martlet.server.nsq.authorizer import Waits
from martlet.server.rpc.arguments import CallArguments, CallError

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection
    from martlet.server.server import Server

MAX_CALLS = 1000
"""Of one connection that wait for their answer."""
Told = tuple[Mapping[str, object], bytes]
"""The fields of an answer, and its bytes."""
Answer = Mapping[str, object] | Told | None


class Caller(Protocol):
    """Who calls."""

    @property
    def remote_address(self) -> str:
        """As ``address:port``."""

    @property
    def connection(self) -> ClientConnection | None:
        """Where the caller is connected to the V2 door."""

    @property
    def is_gone(self) -> bool:
        """Whether nobody would hear the answer."""

    def may(self, topic: str, channel: str = "") -> None:
        """Whether the caller may publish to a topic, or consume a channel. Raises CallError."""


Method = Callable[[Caller, CallArguments], Answer | Awaitable[Answer]]
Methods = Mapping[str, Method]

_CODES: dict[type[Exception], str] = {
    NameRefused: "BAD_NAME",
    NotFound: "NOT_FOUND",
    NotAMember: "NOT_A_MEMBER",
    Conflict: "CONFLICT",
    OutOfReach: "OUT_OF_REACH",
    LimitReached: "LIMIT_REACHED",
    TooMany: "LIMIT_REACHED",
    QueuesRefused: "CONFLICT",
    WritesRefused: "REFUSED",
}


class CallRegistry:
    """The methods of a broker."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @cached_property
    def methods(self) -> Methods:
        """The method of each name; imported when one is first asked for, or HTTP is."""
        from martlet.server.rpc.methods import broker_methods

        return broker_methods(self._server)

    def waits(self, method: str) -> bool:
        """Whether a method may have to wait for something."""
        return inspect.iscoroutinefunction(self.methods.get(method))

    def begin(
        self, caller: Caller, method: str, fields: Mapping[str, object]
    ) -> Answer | Awaitable[Answer]:
        """Do it, or what it does before it waits for something. Raises CallError."""
        found = self.methods.get(method)
        if found is None:
            raise CallError("UNKNOWN_METHOD", f"there is no method {method[:80]!r}")
        with _refusals():
            return found(caller, CallArguments(fields))

    async def run(self, caller: Caller, method: str, fields: Mapping[str, object]) -> Told:
        """Do it. Raises CallError."""
        answer = self.begin(caller, method, fields)
        if inspect.isawaitable(answer):
            with _refusals():
                answer = await answer
        return _whole(answer)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (BrokerError, WritesRefused) as error:
        code = next((c for kind, c in _CODES.items() if isinstance(error, kind)), "REFUSED")
        raise CallError(code, str(error)) from error


def _whole(answer: Answer) -> Told:
    if isinstance(answer, tuple):
        return answer
    return answer or {}, b""


def call(connection: ClientConnection, command: v2.Call) -> None:
    """CALL: answered when it has been done; what has to wait for nothing is done at once, in the
    order of the connection's commands.

    Raises Waits while the client does not read its answers, which may be large.
    """
    if connection.held_up and connection.consumer is None:
        raise Waits
    if connection.guard is not None and connection.guard.given is None:
        _refuse(connection, command, "FORBIDDEN", "AUTH is required before CALL")
        return
    known = connection.server.calls
    if not known.waits(command.method):
        with _answered(connection, command) as answer:
            begun = known.begin(connection, command.method, command.fields)
            assert not inspect.isawaitable(begun)
            answer(_whole(begun))
        return
    calls = connection.calls
    if len(calls) >= MAX_CALLS:
        text = f"{MAX_CALLS} calls wait for their answers already; wait for some of them"
        _refuse(connection, command, "LIMIT_REACHED", text)
        return
    task = connection.server.loop.create_task(_answer(connection, command))
    calls.add(task)
    task.add_done_callback(calls.discard)


def _refuse(connection: ClientConnection, command: v2.Call, code: str, text: str) -> None:
    told: dict[str, Any] = {"error": {"code": code, "text": text}}
    connection.send_answer(v2.answer(command.number, encoded(told)))


async def _answer(connection: ClientConnection, command: v2.Call) -> None:
    await connection.drained()
    with _answered(connection, command) as answer:
        answer(await connection.server.calls.run(connection, command.method, command.fields))


@contextmanager
def _answered(connection: ClientConnection, command: v2.Call) -> Iterator[Callable[[Told], None]]:
    """Answer a call with what is told, or with what was raised."""

    def answer(told: Told) -> None:
        fields, data = told
        connection.send_answer(v2.answer(command.number, encoded(fields), data))

    try:
        yield answer
    except CallError as error:
        answer(({"error": {"code": error.code, "text": str(error), **error.fields}}, b""))
    except Exception:
        connection.server.log.exception("call %s of %s", command.method, connection.remote_address)
        answer(({"error": {"code": "INTERNAL_ERROR", "text": "see the broker's log"}}, b""))


def encoded(told: Mapping[str, object]) -> bytes:
    """An answer's fields as JSON."""
    return json.dumps(told, separators=(",", ":")).encode()
