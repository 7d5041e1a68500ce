"""The registry of calls: the requests of Martlet's own clients beside NSQ's commands.

A call has a number, a method and fields, and is answered with fields and possibly bytes, or with an
error: ``{"error": {"code": "NOT_FOUND", "text": "..."}}``. Answers come when ready, in any order,
since some wait for long. ``POST /call/<method>`` serves the same methods, with the fields as the
JSON body; there an answer's bytes come alone, with the fields in a header.

The methods of each subject are in a file of their own. A method is a plain function, or a coroutine
function if it has to wait. It reads the fields as `CallArguments`; the handler of a declared
operation (see `martlet.schema`) gets the checked request instead, by `served`. An answer waits
until the flush mode's promise holds for all that the method has changed, as the answer to a PUB
does; only the methods in `AT_ONCE` are answered without that.
"""

from __future__ import annotations

import inspect
import json
from binascii import a2b_base64
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
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
from martlet.names import is_valid_name
from martlet.schema.access import CallAccess, CallerClass, access_to_call
from martlet.text import MILLISECOND_NS, shown_value

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.broker.topic.topic import Topic
    from martlet.schema.operation import AnswerT_co, Operation, RequestT
    from martlet.server.group_commit import GroupCommit

_MAX_NUMBER = (1 << 63) - 1
LATEST_MS = 1 << 43
"""The latest delivery time, in the year 2248: nanoseconds until then fit into 63 bits."""


class CallError(Exception):
    """The refusal of a call."""

    def __init__(self, code: str, text: str, **fields: object) -> None:
        super().__init__(text)
        self.code = code
        """One word in capitals, for programs."""
        self.fields = fields
        """Further fields of the answer."""


class CallArguments:
    """The fields of one call. A missing field, or one of the wrong type, is an error when read."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self.fields = fields

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def only(self, *names: str) -> None:
        """Refuse other fields: a misspelt one would silently have no effect. Raises CallError."""
        unknown = [name for name in self.fields if name not in names]
        if unknown:
            name, declared = shown_value(min(unknown), 80), ", ".join(sorted(names)) or "none"
            raise CallError("BAD_ARGUMENT", f"unknown argument {name}; there are {declared}")

    def without(self, *names: str) -> CallArguments:
        """Return the arguments without some of them."""
        return CallArguments({name: v for name, v in self.fields.items() if name not in names})

    def renamed(self, names: Mapping[str, str]) -> CallArguments:
        """Return the arguments with present names in place of former ones. Raises CallError."""
        fields = dict(self.fields)
        for former, name in names.items():
            if former in fields:
                if name in fields:
                    raise CallError("BAD_ARGUMENT", f"{former!r} is {name!r} now: give one of them")
                fields[name] = fields.pop(former)
        return CallArguments(fields)

    def _required(self, name: str) -> object:
        value = self.fields.get(name)
        if value is None:
            raise CallError("MISSING_ARGUMENT", f"the argument {name!r} is missing")
        return value

    def text(self, name: str, default: str | None = None, *, max_value: int | None = 1024) -> str:
        """Return a text, of any length if `max_value` is None. Raises CallError."""
        if default is not None and name not in self:
            return default
        value = self._required(name)
        if not isinstance(value, str) or (max_value is not None and len(value) > max_value):
            limit = "" if max_value is None else f" of at most {max_value} characters"
            raise CallError("BAD_ARGUMENT", f"{name!r} must be a text{limit}")
        if value != _characters(value):
            raise CallError(
                "BAD_ARGUMENT", f"{name!r} is no text that UTF-8 can encode: {value!a:.80}"
            )
        return value

    def decoded(self, name: str) -> bytes:
        """Return the bytes of a text in base64. Raises CallError."""
        text = self.text(name, max_value=None)
        try:
            return a2b_base64(text, strict_mode=True)
        except ValueError as error:
            raise CallError("BAD_ARGUMENT", f"{name!r} is no base64: {error}") from None

    def order_key(self) -> bytes | None:
        """Return the order key, of text or in base64; None for none. Raises CallError."""
        if "order_key_base64" not in self:
            return self.text("order_key").encode() if "order_key" in self else None
        if "order_key" in self:
            raise CallError("BAD_ARGUMENT", "give 'order_key', or 'order_key_base64': not both")
        return self.decoded("order_key_base64")

    def remark(self, name: str, *, max_value: int) -> str:
        """Return a text to show; empty for none. An invalid character, as in a file's name, becomes
        a question mark. Raises CallError.
        """
        value = self.fields.get(name)
        if isinstance(value, str):
            return CallArguments({name: _characters(value)}).text(name, max_value=max_value)
        return self.text(name, "")

    def number(
        self,
        name: str,
        default: int | None = None,
        *,
        min_value: int = 0,
        max_value: int = _MAX_NUMBER,
    ) -> int:
        """Return a whole number within limits. Raises CallError."""
        if default is not None and name not in self:
            return default
        value = self._required(name)
        if type(value) is not int or not min_value <= value <= max_value:
            raise CallError(
                "BAD_ARGUMENT",
                f"{name!r} must be a whole number from {min_value} to {max_value},"
                f" not {shown_value(value)}",
            )
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false. Raises CallError."""
        if name not in self:
            return default
        value = self._required(name)
        if not isinstance(value, bool):
            raise CallError("BAD_ARGUMENT", f"{name!r} must be true or false")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return one of some words. Raises CallError."""
        value = self.text(name, default)
        if value not in choices:
            raise CallError(
                "BAD_ARGUMENT", f"{name!r} must be one of {', '.join(choices)}, not {value[:40]!r}"
            )
        return value

    def sequence(self, name: str, *, max_value: int = 10_000) -> Sequence[object]:
        """Return a list. Raises CallError."""
        value = self._required(name)
        if not isinstance(value, list) or len(value) > max_value:
            raise CallError("BAD_ARGUMENT", f"{name!r} must be a list of at most {max_value}")
        return value

    def mapping(self, name: str, *, max_value: int = 10_000) -> Mapping[str, object]:
        """Return an object. Raises CallError."""
        value = self._required(name)
        if not isinstance(value, dict) or len(value) > max_value:
            raise CallError(
                "BAD_ARGUMENT", f"{name!r} must be an object of at most {max_value} fields"
            )
        strange = [field for field in value if field != _characters(field)]
        if strange:
            field = f"{strange[0]!a:.80}"
            raise CallError("BAD_ARGUMENT", f"{name!r} has {field}, which UTF-8 cannot encode")
        return value

    def name(self, name: str) -> str:
        """Return the valid name of a topic or a channel. Raises CallError."""
        value = self.text(name)
        if not is_valid_name(value):
            raise CallError("BAD_NAME", f"{name} {value[:80]!r} is not a valid name")
        return value

    def topic(self, broker: BrokerCore, name: str = "topic") -> Topic:
        """Return an existing topic. Raises CallError."""
        try:
            return broker.find_topic(self.name(name))
        except NotFound as error:
            raise CallError("NOT_FOUND", str(error)) from None


def deliver_at_ns(arguments: CallArguments, now_ns: int, max_delay_ns: int) -> int:
    """Return ``deliver_at_ms`` in nanoseconds: 0 for now or a past time. Raises CallError."""
    at_ms = arguments.number("deliver_at_ms", 0, max_value=LATEST_MS)
    at_ns = at_ms * MILLISECOND_NS
    if at_ns > now_ns + max_delay_ns:
        raise CallError(
            "BAD_ARGUMENT",
            f"'deliver_at_ms' is {(at_ns - now_ns) // 10**9} s from now; the longest delay is"
            f" {max_delay_ns // 10**9} s (--max-delay)",
        )
    return at_ns if at_ns > now_ns else 0


def _characters(text: str) -> str:
    """Return a text without invalid characters: JSON can hold half a pair of surrogates."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


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


def served(
    operation: Operation[Any, RequestT, AnswerT_co],
    handler: Callable[
        [Caller, RequestT],
        AnswerT_co | tuple[AnswerT_co, bytes] | Awaitable[AnswerT_co | tuple[AnswerT_co, bytes]],
    ],
) -> dict[str, Method]:
    """Return the method of an operation, by its name; its handler may return bytes beside."""
    # Imported here, as a broker listens without.
    from martlet.schema.read import Refusal, read_request, to_json

    method: Any

    def request_of(arguments: CallArguments) -> RequestT:
        try:
            return read_request(operation.request, arguments.fields)
        except Refusal as refusal:
            raise CallError(refusal.code, refusal.spelled(_spell)) from None

    def reply(result: object) -> Answer:
        if isinstance(result, tuple):
            answer, data = result
            return to_json(answer), data
        return to_json(result)

    if inspect.iscoroutinefunction(handler):

        async def method(caller: Caller, arguments: CallArguments) -> Answer:
            return reply(await handler(caller, request_of(arguments)))

    else:

        def method(caller: Caller, arguments: CallArguments) -> Answer:
            return reply(handler(caller, request_of(arguments)))

    method.access = operation.access
    return {operation.name: method}


def _spell(name: str, value: str | None) -> str:
    return repr(name) if value is None else f"{name} {value!r}"
