"""The base of producers and consumers without ``await``: calls into the event loop, signatures."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import update_wrapper, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from martlet.client.consumer.base import ConsumerBase
from martlet.client.errors import Closed
from martlet.client.sync.handlers import workers_here
from martlet.client.sync.loop_thread import LoopThread, loop_thread

P = ParamSpec("P")
T = TypeVar("T")
ConsumerT = TypeVar("ConsumerT", bound=ConsumerBase[Any])


class SyncProxy(ABC):
    """An object that runs in the event loop of another thread between ``with`` and its end."""

    def __init__(self) -> None:
        self._thread: LoopThread | None = None

    @abstractmethod
    def close(self) -> None:
        """Close it in the loop."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _enter(self, entering: Coroutine[Any, Any, object]) -> None:
        """Enter it in the loop, and wait for that."""
        thread = loop_thread()
        thread.call(entering)
        self._thread = thread

    def _entered(self) -> LoopThread:
        """The loop's thread. Raises Closed before ``with``, and in a child of ``os.fork``."""
        thread = self._thread
        if thread is None:
            raise Closed(f"use 'with {type(self).__name__}(...)'")
        thread.check()
        return thread


def like(
    model: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Give a method with generic arguments the signature and docstring of another."""

    def wear(method: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        update_wrapper(method, model, assigned=("__doc__",), updated=())
        return method

    return wear


class SyncConsumerBase(SyncProxy, Generic[ConsumerT]):
    """A consumer in the event loop's thread, for use in any other thread.

    Callbacks, such as ``on_stall`` and ``on_assigned``, run in the event loop's thread: they must
    return soon, and cannot call the consumer.
    """

    def __init__(self, consumer: ConsumerT) -> None:
        super().__init__()
        self._consumer = consumer

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            SubscribeRefused, ConnectRefused: a broker refuses this client. Closed: it was connected
            before; make a new one.
        """
        self._enter(self._consumer.__aenter__())
        return self

    def _ask(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a function in the event loop."""

        async def call() -> T:
            return function(*arguments, **named)

        return self._entered().call(call())

    def close(self) -> None:
        """Stop, wait for running handlers, unsubscribe, and close the connections.

        A handler that calls this does not wait for itself; its message comes again.
        """
        thread = self._thread
        if thread is not None and not thread.is_forked:
            self._before_close()
            thread.call(self._close(tuple(workers_here())))

    def _before_close(self) -> None:
        """Clean up in the closing thread."""

    async def _close(self, besides: tuple[asyncio.Task[object], ...]) -> None:
        await asyncio.sleep(0)  # Earlier posts are written by now.
        await self._consumer._close(besides)


def called(
    model: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[SyncConsumerBase[Any], P], T]:
    """Make a method that calls the asyncio consumer's of the same name in the event loop."""

    @wraps(model)
    def method(consumer: SyncConsumerBase[Any], /, *arguments: P.args, **named: P.kwargs) -> T:
        return consumer._ask(model, consumer._consumer, *arguments, **named)

    return method


def awaited(
    model: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncConsumerBase[Any], P], T]:
    """Make a method that waits for the asyncio consumer's coroutine of the same name."""

    @wraps(model)
    def method(consumer: SyncConsumerBase[Any], /, *arguments: P.args, **named: P.kwargs) -> T:
        return consumer._entered().call(model(consumer._consumer, *arguments, **named))

    return method


class LoopProperty(Generic[T]):
    """Make a property that reads the asyncio consumer's of the same name in the event loop.

    Args:
        model: that property, for its documentation.
    """

    def __init__(self, model: object) -> None:
        self.__doc__ = model.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, consumer: None, owner: type) -> Self: ...

    @overload
    def __get__(self, consumer: SyncConsumerBase[Any], owner: type) -> T: ...

    def __get__(self, consumer: SyncConsumerBase[Any] | None, owner: type) -> Self | T:
        if consumer is None:
            return self
        value: T = consumer._ask(getattr, consumer._consumer, self._name)
        return value


async def next_of(items: AsyncIterator[T]) -> T | None:
    """Return the next item; None at the end."""
    return await anext(items, None)
