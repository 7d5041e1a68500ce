"""CALL: run a client's calls (see `martlet.server.rpc.registry`), and answer each when done."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from martlet.protocol.nsq import v2
from martlet.server.http.access import OLD_TLS
from martlet.server.listening_socket import is_local
from martlet.server.nsq.client_io import WAIT, Outcome
from martlet.server.rpc.registry import Answer, CallError, Reply, encoded, reply_of

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.server.http.access import Operators
    from martlet.server.nsq.connection import ClientConnection
    from martlet.server.rpc.registry import CallRegistry

MAX_CALLS = 1000
"""The maximum number of unanswered calls of one connection: of those that wait for something, and
of those whose change is not confirmed yet. More of the first are refused; more of the second wait.
"""


class ConnectedCaller:
    """A client as the caller of methods: its rights, and its unanswered calls.

    Args:
        operators: who may make operators' calls, where there are no auth servers.
        is_vouched_for: whether the replica that accepted the client says that it is an operator.
    """

    is_gone = False
    """Always False: calls are cancelled when the client is gone."""

    def __init__(
        self, client: ClientConnection, operators: Operators, *, is_vouched_for: bool
    ) -> None:
        self._client = client
        self._operators = operators
        self._is_vouched_for = is_vouched_for
        self.waiting: set[asyncio.Task[None]] = set()
        """The calls that wait for something."""
        self.begun: set[asyncio.Task[None]] = set()
        """The calls whose changes are not confirmed yet."""
        self.when_gone: dict[object, Callable[[], None]] = {}
        """Functions to call when the client is gone, by key."""

    def leave(self) -> None:
        """Cancel the calls, and call what waits for the client's end."""
        for call in (*self.waiting, *self.begun):
            call.cancel()
        leaving, self.when_gone = list(self.when_gone.values()), {}
        with ExitStack() as stack:  # Calls all, though one of them raises.
            for leave in reversed(leaving):
                stack.callback(leave)

    def answer(self, frame: bytes) -> None:
        """Answer a call, ahead of other due answers."""
        if not self._client.closing:
            self._client.output.send(frame)
            self._client.output.check()

    # its connection

    @property
    def remote_address(self) -> str:
        """As ``address:port``."""
        return self._client.remote_address

    @property
    def connection(self) -> ConnectedCaller:
        """Itself."""
        return self

    @property
    def channel(self) -> Channel | PartitionedChannel | None:
        """The channel that the client consumes."""
        subscription = self._client.subscription
        return None if subscription is None else subscription.channel

    def subscription(self) -> tuple[Channel | PartitionedChannel, Any]:
        """The channel and its consumer, which is a subscriber if there are several queues."""
        return self._client.subscribed()

    async def drained(self) -> None:
        """Wait until the client has read most of the output."""
        await self._client.output.drained()

    # its rights

    @property
    def is_operator(self) -> bool:
        """Whether the client is an operator: never one that an auth server decides about."""
        if self._client.guard is not None:
            return False
        tls = self._client.tls
        tls_version = "" if tls is None else tls.version
        if self._is_vouched_for:
            return tls_version not in OLD_TLS  # The client speaks TLS with this replica.
        return self._operators.include(
            is_local=not self._client.is_spliced and is_local(self._client.output.transport),
            has_certificate=tls is not None and tls.has_certificate,
            tls_version=tls_version,
        )

    def may_publish(self, topic: str) -> None:
        """Check that the client may publish to a topic. Raises CallError."""
        if self._client.guard is not None:
            _require(partial(self._client.guard.may_publish, "PUB", topic))

    def may_read(self, topic: str) -> None:
        """Check that the client may read a topic. Raises CallError."""
        if self._client.guard is not None:
            _require(partial(self._client.guard.may_read, topic))

    def may_consume(self, topic: str, channel: str) -> None:
        """Check that the client may subscribe to a channel. Raises CallError."""
        if self._client.guard is not None:
            _require(partial(self._client.guard.may_consume, topic, channel))


class CallCommand:
    """CALL.

    Args:
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
        if connection.input.is_held_up and connection.subscription is None:
            return WAIT
        if connection.guard is not None and connection.guard.authorizations is None:
            _refuse(connection, command, "FORBIDDEN", "AUTH is required before CALL")
        elif not self._registry.waits(command.method):
            if len(connection.caller.begun) >= MAX_CALLS:
                return WAIT
            with self._answering(connection, command) as answer:
                begun = self._registry.begin(connection.caller, command.method, command.fields)
                if not inspect.isawaitable(begun):
                    answer(reply_of(begun))
                else:
                    answering = self._answer_begun(connection, command, begun)
                    task = self._start(answering, connection, connection.caller.begun)
                    # A task that is cancelled before its first step has not awaited it.
                    task.add_done_callback(lambda _: begun.close())
        elif len(connection.caller.waiting) >= MAX_CALLS:
            text = f"{MAX_CALLS} calls wait for their answers already; wait for some of them"
            _refuse(connection, command, "LIMIT_REACHED", text)
        else:
            self._start(self._answer(connection, command), connection, connection.caller.waiting)
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
        await connection.output.drained()
        with self._answering(connection, command) as answer:
            answer(await self._registry.run(connection.caller, command.method, command.fields))

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
            connection.caller.answer(v2.answer(command.number, encoded(fields), data))

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
    elif tasks is connection.caller.begun:
        connection.go_on()


def _refuse(connection: ClientConnection, command: v2.Call, code: str, text: str) -> None:
    fields = {"error": {"code": code, "text": text}}
    connection.caller.answer(v2.answer(command.number, encoded(fields)))


def _require(permission: Callable[[], bool]) -> None:
    """Check a permission of an auth server. Raises CallError."""
    try:
        is_known = permission()
    except v2.ProtocolError as error:
        raise CallError("FORBIDDEN", str(error)) from None
    if not is_known:
        raise CallError("TRY_AGAIN", "the auth server is being asked again")
