"""Hooks: functions that a producer or consumer calls, for logs, metrics and traces.

::

    hooks = Hooks(
        on_published=lambda call, error: latency.observe(call.age_s()),
        on_lost=lambda address, error: losses.labels(address).inc(),
    )
    async with Producer(hooks=hooks) as producer: ...

A hook is called once for a run of messages where they come as a run, and for each message only
where each is a step of its own: a call of ``publish``, a handler at work.  One that is not set
costs nothing.  Hooks are called in the event loop and must return soon; what one raises is logged,
and changes nothing.

``Publishing`` and ``Handling`` are passed twice, before and after, and carry in ``state`` whatever
a hook wants to find again.  Before a handler runs, ``on_handle`` is called in its context, so that
context variables that it sets are seen by the handler, in a thread of the consumer's too.

A trace ends at the broker: NSQ's messages have a body and nothing to carry a trace's context in,
and a body is the application's alone.  Should a broker offer headers one day, ``on_publish`` is
where they would be filled, and ``on_handle`` where they would be read: both are called before a
message is sent or handled, with an object that stands for it.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from inspect import isawaitable
from typing import Any, TypeVar

from martlet.client.consumer.message import Message
from martlet.client.group.message import PulledMessage
from martlet.client.safe_callback import guarded

MessageT = TypeVar("MessageT", Message, PulledMessage)


class _Step:
    """A step that begins and ends.

    Attributes:
        state: the hook's own.
    """

    def __init__(self) -> None:
        self.state: Any = None
        self._began_s = time.perf_counter()

    def age_s(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self._began_s


class Publishing(_Step):
    """A call of ``publish``, ``submit``, ``publish_many`` or ``send``, or a piece of ``send_many``.

    Attributes:
        topic: where to.
        message_count: how many messages, as far as is known: ``publish_many`` counts what it is
            given, which it knows when it has ended.
        size_bytes: of their bodies, likewise.
    """

    def __init__(self, topic: str, message_count: int, size_bytes: int) -> None:
        super().__init__()
        self.topic = topic
        self.message_count = message_count
        self.size_bytes = size_bytes


class Handling(_Step):
    """A handler at work on a message.

    Attributes:
        topic, channel: where the message is from; a pull consumer's group is the channel, which is
            empty where it has none.
        message: the message, to read; the handler answers it.
    """

    def __init__(self, topic: str, channel: str, message: Message | PulledMessage) -> None:
        super().__init__()
        self.topic = topic
        self.channel = channel
        self.message = message


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    """Functions to be called; None for none.

    Attributes:
        on_publish: before messages are published.
        on_published: once they are stored, or have not been for this error.
        on_retried: so many messages were sent to the broker at this address, have no answer, and
            will be sent again.
        on_received: so many messages came from there, with so many bytes.
        on_handle: before a handler is called.
        on_handled: once it has returned, or raised this error.
        on_finished: so many messages were finished, at the broker of this address.
        on_requeued: so many were requeued; by a pull consumer, put off to be tried again here.
        on_connected: a connection stands.
        on_lost: a connection was lost, for this reason.
    """

    on_publish: Callable[[Publishing], object] | None = None
    on_published: Callable[[Publishing, BaseException | None], object] | None = None
    on_retried: Callable[[str, int], object] | None = None
    on_received: Callable[[str, int, int], object] | None = None
    on_handle: Callable[[Handling], object] | None = None
    on_handled: Callable[[Handling, BaseException | None], object] | None = None
    on_finished: Callable[[str, int], object] | None = None
    on_requeued: Callable[[str, int], object] | None = None
    on_connected: Callable[[str], object] | None = None
    on_lost: Callable[[str, Exception], object] | None = None

    def guarded(self) -> Hooks:
        """Copy the hooks, with what they raise logged."""
        guards = {
            each.name: guarded(f"the hook {each.name}", hook)
            for each in fields(self)
            if (hook := getattr(self, each.name)) is not None
        }
        return replace(self, **guards)

    @property
    def has_publishing(self) -> bool:
        """Whether a hook wants calls that publish."""
        return self.on_publish is not None or self.on_published is not None

    @property
    def has_handling(self) -> bool:
        """Whether a hook wants handlers at work."""
        return self.on_handle is not None or self.on_handled is not None

    @property
    def has_settling(self) -> bool:
        """Whether a hook wants what is finished or requeued."""
        return self.on_finished is not None or self.on_requeued is not None

    def begin(self, call: Publishing) -> Publishing:
        """Call ``on_publish``: messages are about to be published."""
        if self.on_publish is not None:
            self.on_publish(call)
        return call

    def end(self, call: Publishing, error: BaseException | None) -> None:
        """Call ``on_published``: they are stored, or this happened."""
        if self.on_published is not None:
            self.on_published(call, error)

    def ended(self, call: Publishing, future: asyncio.Future[None]) -> None:
        """Call ``on_published`` with the outcome of a future that is done."""
        self.end(call, CancelledError() if future.cancelled() else future.exception())

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


NO_HOOKS = Hooks()
