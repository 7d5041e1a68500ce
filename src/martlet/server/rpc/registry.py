"""The registry of calls: the requests of Martlet's own clients beside NSQ's commands.

A call has a number, a method and fields, and is answered with fields and possibly bytes, or with an
error: ``{"error": {"code": "NOT_FOUND", "text": "..."}}``. Answers come when ready, in any order,
since some wait for long. ``POST /call/<method>`` serves the same methods, with the fields as the
JSON body; there an answer's bytes come alone, with the fields in a header.

The methods of each subject are in a file of their own. A method is a plain function, or a coroutine
function if it has to wait. Its answer waits until the flush mode's promise holds for all that it
has changed, as the answer to a PUB does; only the methods in `AT_ONCE` are answered without that.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
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
from martlet.broker.policy import BadPolicy
from martlet.http_requests import TOKEN_FLAG
from martlet.schema.access import CallAccess, CallerClass, access_to_call
from martlet.server.rpc.arguments import CallArguments, CallError

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.server.group_commit import GroupCommit

Reply = tuple[Mapping[str, object], bytes]
"""The fields of an answer, and its bytes."""
Answer = Mapping[str, object] | Reply | None
"""The result of a method: fields, fields and bytes, or None."""


class CallerConnection(Protocol):
    """The TCP connection of a caller."""

    @property
    def channel(self) -> Channel | PartitionedChannel | None:
        """The channel that it consumes."""

    @property
    def when_gone(self) -> dict[object, Callable[[], None]]:
        """Functions to call when the client is gone, by key."""

    def subscription(self) -> tuple[Channel | PartitionedChannel, Any]:
        """The channel and its consumer, if there is one."""

    async def drained(self) -> None:
        """Wait until the client has read most of the output."""


class Caller(Protocol):
    """The caller of a method."""

    @property
    def remote_address(self) -> str:
        """As ``address:port``."""

    @property
    def connection(self) -> CallerConnection | None:
        """None over HTTP."""

    @property
    def is_gone(self) -> bool:
        """Return whether the caller would not get the answer."""

    @property
    def is_operator(self) -> bool:
        """Whether it is an operator."""

    def may_publish(self, topic: str) -> None:
        """Check that it may publish to a topic. Raises CallError, as do the others."""

    def may_read(self, topic: str) -> None:
        """Check that it may subscribe to some channel of a topic, and so read the topic."""

    def may_consume(self, topic: str, channel: str) -> None:
        """Check that it may subscribe to a channel."""


Method = Callable[[Caller, CallArguments], Answer | Coroutine[Any, Any, Answer]]
Methods = Mapping[str, Method]

AT_ONCE = frozenset(
    {
        "dead_letters.list",
        "dead_letters.show",
        "delay.list",
        "group.assignment",
        "group.describe",
        "group.fetch",
        "group.leave",
        "group.list",
        "group.plan",
        "group.start",
        "group.volunteer",
        "message.started",
        "topic.describe",
        "topic.fetch",
        "topic.find",
        "topic.offset",
        "trace.find",
        "transaction.checks",
        "transaction.list",
        "transaction.show",
    }
)
"""The methods that read, or change only what goes with the caller's connection."""

_encode_json = json.JSONEncoder(separators=(",", ":")).encode
CODES: dict[type[Exception], str] = {
    NameRefused: "BAD_NAME",
    BadPolicy: "BAD_ARGUMENT",
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
    """The methods of a broker.

    Args:
        load: makes them at the first call, or when HTTP opens: a broker listens before it imports
            them.
    """

    def __init__(self, load: Callable[[], Methods], commits: GroupCommit) -> None:
        self._load = load
        self._commits = commits

    @cached_property
    def methods(self) -> Methods:
        """The method of each name."""
        return self._load()

    def waits(self, method: str) -> bool:
        """Return whether a method may have to wait."""
        return inspect.iscoroutinefunction(self.methods.get(method))

    def access(self, method: str) -> CallAccess:
        """Return who may make a call; one that is not declared is for operators."""
        declared = getattr(self.methods.get(method), "access", None)
        return declared if isinstance(declared, CallAccess) else access_to_call(method)

    def begin(
        self, caller: Caller, method: str, fields: Mapping[str, object]
    ) -> Answer | Coroutine[Any, Any, Answer]:
        """Run a method up to its first wait, or until its answer has to wait. Raises CallError."""
        function = self.methods.get(method)
        if function is None:
            raise CallError("UNKNOWN_METHOD", f"there is no method {method[:80]!r}")
        arguments = CallArguments(fields)
        _require(caller, method, self.access(method), arguments)
        with _refusals():
            answer = function(caller, arguments)
        if method in AT_ONCE or (not inspect.isawaitable(answer) and self._commits.has_settled):
            return answer
        return self._settled(answer)

    async def _settled(self, answer: Answer | Coroutine[Any, Any, Answer]) -> Answer:
        """Return a method's answer once it may be given."""
        if inspect.isawaitable(answer):
            answer = await answer
        await self._commits.all_settled()
        return answer

    async def run(self, caller: Caller, method: str, fields: Mapping[str, object]) -> Reply:
        """Call a method. Raises CallError."""
        return await self.end(self.begin(caller, method, fields))

    @staticmethod
    async def end(begun: Answer | Coroutine[Any, Any, Answer]) -> Reply:
        """Return the answer of a call that was begun. Raises CallError."""
        if inspect.isawaitable(begun):
            with _refusals():
                begun = await begun
        return reply_of(begun)


def _require(caller: Caller, method: str, access: CallAccess, arguments: CallArguments) -> None:
    """Check that a caller may make a call. Raises CallError."""
    if access.callers is CallerClass.OPERATORS and not caller.is_operator:
        raise CallError(
            "FORBIDDEN",
            f"{method} is for operators, which this client of TCP is not: make it over HTTP, as"
            f" POST /call/{method}, with a token of --{TOKEN_FLAG} or on the broker's machine",
        )
    try:
        if access.callers is CallerClass.READERS:
            caller.may_read(_name(arguments, "topic"))
        elif access.callers is CallerClass.CONSUMERS:
            caller.may_consume(_name(arguments, "topic"), _name(arguments, access.channel))
    except CallError:
        # Where a name is missing or wrong, that is the reason to give.
        for field in ("topic", access.channel) if access.channel else ("topic",):
            arguments.name(field)
        raise


def _name(arguments: CallArguments, field: str) -> str:
    """Return a name; empty where it is missing or wrong, which the method refuses."""
    try:
        return arguments.name(field)
    except CallError:
        return ""


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (BrokerError, BadPolicy, WritesRefused) as error:
        code = next((c for kind, c in CODES.items() if isinstance(error, kind)), "REFUSED")
        raise CallError(code, str(error)) from error


def reply_of(answer: Answer) -> Reply:
    """Return an answer as fields and bytes."""
    if isinstance(answer, tuple):
        return answer
    return answer or {}, b""


def encoded(fields: Mapping[str, object]) -> bytes:
    """Return an answer's fields as JSON."""
    return _encode_json(fields).encode()
