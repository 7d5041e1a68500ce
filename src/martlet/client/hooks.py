"""Hooks: functions that a producer or consumer calls, for logs, metrics and traces.

::

    hooks = Hooks(
        on_published=lambda call, error: latency.observe(call.age_s()),
        on_lost=lambda address, error: losses.labels(address).inc(),
    )
    async with Producer(hooks=hooks) as producer: ...

A hook is called once for a run of messages, and for each message only if it is a step of its own: a
call of ``publish``, a run of a handler. An unset hook costs nothing. Hooks are called in the event
loop and must return soon; their exceptions are logged, and have no other effect.

``Publishing`` and ``Handling`` are passed twice, before and after, and carry the hook's own data in
``state``. ``on_handle`` is called in the handler's context, so that the handler sees context
variables that it sets, also in a thread of the consumer.

``on_publish`` may add headers to the messages, such as the context of a trace, and ``on_handle``
read them in ``message.properties.headers``. The broker stores them with the message, and keeps them
in its dead letter and when that is redriven. Brokers of NSQ store no headers: to those ``publish``
sends the messages without them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial, wraps
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from martlet.client.producer.message import Sendable, size_of
from martlet.client.producer.result import SendResult
from martlet.client.received import ReceivedMessage

if TYPE_CHECKING:
    from martlet.client.requests.requester import Reply


logger = logging.getLogger("martlet.client")

P = ParamSpec("P")
MessageT = TypeVar("MessageT", bound=ReceivedMessage)


def guarded(name: str, function: Callable[P, object]) -> Callable[P, None]:
    """Wrap a function so that its exceptions are logged with that name.

    SystemExit and KeyboardInterrupt pass only in the main thread, where they end the program; in
    another, such as that of ``martlet.client.sync``, they would end the event loop, and threads
    that wait for it would wait for ever.
    """

    @wraps(function)
    def guard(*arguments: P.args, **named: P.kwargs) -> None:
        try:
            function(*arguments, **named)
        except BaseException as error:
            if isinstance(error, (SystemExit, KeyboardInterrupt)) and (
                threading.current_thread() is threading.main_thread()
            ):
                raise
            logger.exception("%s failed", name)

    return guard


class _Step:
    """A step that begins and ends.

    Attributes:
        state: data of the hook.
    """

    def __init__(self) -> None:
        self.state: Any = None
        self._began_s = time.perf_counter()

    def age_s(self) -> float:
        """Return the seconds since it began."""
        return time.perf_counter() - self._began_s


class Publishing(_Step):
    """A call of a producer or a transaction that publishes or sends.

    Attributes:
        topic: the topic's name.
        is_batch: whether it is a call for many messages.
        message_count: the number of messages; of a batch known only at its end.
        size_bytes: the size of their bodies, likewise.
        headers: for ``on_publish`` to fill: added to the headers of each message, if the brokers
            are Martlet's and there is room in the message's properties.
        message_id: of a single message that is stored, if the broker told it.
    """

    def __init__(self, topic: str, message: Sendable | None = None) -> None:
        """Begin a call for this message, or for many."""
        super().__init__()
        self.topic = topic
        self.is_batch = message is None
        self.message_count = self.size_bytes = 0
        self.headers: dict[str, str] = {}
        self.message_id: bytes | None = None
        if message is not None:
            self.count(message)

    def count(self, *messages: Sendable) -> None:
        """Add messages to a batch."""
        self.message_count += len(messages)
        self.size_bytes += sum(map(size_of, messages))


class Requesting(_Step):
    """A request, up to its reply.

    Attributes:
        topic: the topic's name.
        size_bytes: the size of its body.
        reply: at its end; None if there is none.
    """

    def __init__(self, topic: str, message: Sendable) -> None:
        super().__init__()
        self.topic = topic
        self.size_bytes = size_of(message)
        self.reply: Reply | None = None


class Handling(_Step):
    """The run of a handler on a message.

    Attributes:
        topic, channel: of the message; a pull consumer's group is the channel, empty for none.
        message: a `Message` or a `PulledMessage`, to read; the handler answers it.
    """

    def __init__(self, topic: str, channel: str, message: ReceivedMessage) -> None:
        super().__init__()
        self.topic = topic
        self.channel = channel
        self.message = message


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    """Functions to be called; None for none.

    Attributes:
        on_publish: before messages are published.
        on_published: after they are stored, or failed with this error.
        on_request: before a request is published, in the context of the caller; the publish calls
            its own hooks, also that of the reply at its consumer.
        on_replied: after its reply came, or it failed with this error.
        on_retried: with a number of messages sent to the broker at this address that have no answer
            and will be sent again.
        on_received: with the number of messages received from there, and their bytes.
        on_handle: before a handler is called.
        on_handled: after it returned, or raised this error.
        on_finished: with a number of messages finished at the broker of this address.
        on_requeued: with a number of messages requeued; by a pull consumer, delayed for another
            try.
        on_connected: after a connection is established.
        on_lost: after a connection was lost, with the reason.
    """

    on_publish: Callable[[Publishing], object] | None = None
    on_published: Callable[[Publishing, BaseException | None], object] | None = None
    on_request: Callable[[Requesting], object] | None = None
    on_replied: Callable[[Requesting, BaseException | None], object] | None = None
    on_retried: Callable[[str, int], object] | None = None
    on_received: Callable[[str, int, int], object] | None = None
    on_handle: Callable[[Handling], object] | None = None
    on_handled: Callable[[Handling, BaseException | None], object] | None = None
    on_finished: Callable[[str, int], object] | None = None
    on_requeued: Callable[[str, int], object] | None = None
    on_connected: Callable[[str], object] | None = None
    on_lost: Callable[[str, Exception], object] | None = None

    def guarded(self) -> Hooks:
        """Copy the hooks, with their exceptions logged."""
        guards = {
            field.name: guarded(f"the hook {field.name}", hook)
            for field in fields(self)
            if (hook := getattr(self, field.name)) is not None
        }
        return replace(self, **guards)

    @property
    def has_publishing(self) -> bool:
        """Whether a hook is set for publishing or requests."""
        hooks = self.on_publish, self.on_published, self.on_request, self.on_replied
        return any(hook is not None for hook in hooks)

    @property
    def has_handling(self) -> bool:
        """Whether a hook is set for handlers."""
        return self.on_handle is not None or self.on_handled is not None

    @property
    def has_settling(self) -> bool:
        """Whether a hook is set for finished or requeued messages."""
        return self.on_finished is not None or self.on_requeued is not None

    def begin(self, call: Publishing) -> Publishing:
        """Call ``on_publish`` before messages are published."""
        if self.on_publish is not None:
            self.on_publish(call)
        return call

    def end(self, call: Publishing, error: BaseException | None) -> None:
        """Call ``on_published`` after they are stored, or with an error."""
        if self.on_published is not None:
            self.on_published(call, error)

    def ended(self, call: Publishing, future: asyncio.Future[SendResult | None]) -> None:
        """Call ``on_published`` with the outcome of a done future."""
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None and (result := future.result()) is not None:
            call.message_id = result.id
        self.end(call, error)

    @contextmanager
    def observed(self, call: Publishing) -> Iterator[Publishing]:
        """Call both hooks, before and after the block."""
        self.begin(call)
        try:
            yield call
        except BaseException as error:
            self.end(call, error)
            raise
        self.end(call, None)

    @contextmanager
    def requested(self, call: Requesting) -> Iterator[Requesting]:
        """Call the hooks of a request, before and after the block."""
        if self.on_request is not None:
            self.on_request(call)
        error: BaseException | None = None
        try:
            yield call
        except BaseException as raised:
            error = raised
            raise
        finally:
            if self.on_replied is not None:
                self.on_replied(call, error)

    def handler(
        self, topic: str, channel: str, handler: Callable[[MessageT], Awaitable[object] | object]
    ) -> Callable[[MessageT], Awaitable[object]]:
        """Wrap a handler so that the hooks are called before and after."""

        async def handle(message: MessageT) -> None:
            handling = Handling(topic, channel, message)
            if self.on_handle is not None:
                self.on_handle(handling)
            error: BaseException | None = None
            try:
                result = handler(message)
                if isawaitable(result):
                    await result
            except BaseException as raised:
                error = raised
                raise
            finally:
                if self.on_handled is not None:
                    self.on_handled(handling, error)

        return handle


NO_HOOKS: Hooks = Hooks()


def replying(
    hooks: Hooks, topic: str, body: bytes, /
) -> tuple[Mapping[str, str], Callable[[BaseException | None], object]]:
    """Call ``on_publish`` for a reply. Returns its headers, and the function to end it."""
    call = hooks.begin(Publishing(topic, body))
    return call.headers, partial(hooks.end, call)


def settling(
    hooks: Hooks, address: str, counts: Callable[[], tuple[int, int]]
) -> Callable[[], None]:
    """Return a function that calls the hooks with the finished and requeued since its last call."""
    finished = requeued = 0

    def report() -> None:
        nonlocal finished, requeued
        now_finished, now_requeued = counts()
        if hooks.on_finished is not None and now_finished > finished:
            hooks.on_finished(address, now_finished - finished)
        if hooks.on_requeued is not None and now_requeued > requeued:
            hooks.on_requeued(address, now_requeued - requeued)
        finished, requeued = now_finished, now_requeued

    return report
