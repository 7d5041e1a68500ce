"""Handlers of declared operations: they get a checked request, and return its answer."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from martlet.schema.read import Refusal, read_request, to_json
from martlet.server.rpc.arguments import CallArguments, CallError

if TYPE_CHECKING:
    from martlet.schema.operation import AnswerT_co, Operation, RequestT
    from martlet.server.rpc.registry import Answer, Caller, Method


def served(
    operation: Operation[Any, RequestT, AnswerT_co],
    handler: Callable[
        [Caller, RequestT],
        AnswerT_co | tuple[AnswerT_co, bytes] | Awaitable[AnswerT_co | tuple[AnswerT_co, bytes]],
    ],
) -> dict[str, Method]:
    """Return the method of an operation, by its name; its handler may return bytes beside."""
    method: Any

    def request_of(arguments: CallArguments) -> RequestT:
        try:
            return read_request(operation.request, arguments.fields)
        except Refusal as refusal:
            raise CallError(refusal.code, refusal.spelled(_spell)) from None

    if inspect.iscoroutinefunction(handler):

        async def method(caller: Caller, arguments: CallArguments) -> Answer:
            return _reply(await handler(caller, request_of(arguments)))

    else:

        def method(caller: Caller, arguments: CallArguments) -> Answer:
            return _reply(handler(caller, request_of(arguments)))

    method.access = operation.access
    return {operation.name: method}


def _reply(result: object) -> Answer:
    if isinstance(result, tuple):
        answer, data = result
        return to_json(answer), data
    return to_json(result)


def _spell(name: str, value: str | None) -> str:
    return repr(name) if value is None else f"{name} {value!r}"
