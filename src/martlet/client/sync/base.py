"""The base of producers and consumers without ``await``: calls into the event loop, signatures."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import update_wrapper, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from martlet.client.consumer.base import ConsumerBase
from martlet.client.errors import Closed
from martlet.client.sync.handlers import workers_here
from martlet.client.sync.loop_thread import LoopThread, loop_thread

P = ParamSpec("P")
T = TypeVar("T")
ModelT = TypeVar("ModelT")
T_co = TypeVar("T_co", covariant=True)
ConsumerT = TypeVar("ConsumerT", bound=ConsumerBase[Any])


class Blocking(ABC, Generic[ModelT]):
    """An object with methods that wait for those of an asyncio object, in its loop's thread."""

    _model: ModelT

    @abstractmethod
    def _entered(self) -> LoopThread:
        """The loop's thread. Raises Closed where it cannot be called."""


class SyncProxy(Blocking[ModelT]):
    """An object that runs in the event loop of another thread between ``with`` and its end."""

    def __init__(self, model: ModelT) -> None:
        self._model = model
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


class SyncConsumerBase(SyncProxy[ConsumerT]):
    """A consumer in the event loop's thread, for use in any other thread.

    Callbacks, such as ``on_stall`` and ``on_assigned``, run in the event loop's thread: they must
    return soon, and cannot call the consumer.
    """

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            SubscribeRefused, ConnectRefused: a broker refuses this client. Closed: it was connected
            before; make a new one.
        """
        self._enter(self._model.__aenter__())
        return self

    def _ask(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a function in the event loop."""

        async def call() -> T:
            return function(*arguments, **named)

        return self._entered().call(call())

    def close(self) -> None:
        """Stop, wait for running handlers, unsubscribe, and close the connections.

        A handler that calls this does not wait for itself; its message is redelivered.
        """
        thread = self._thread
        if thread is not None and not thread.is_forked:
            self._before_close()
            thread.call(self._close(tuple(workers_here())))

    def _before_close(self) -> None:
        """Clean up in the closing thread."""

    async def _close(self, besides: tuple[asyncio.Task[object], ...]) -> None:
        await asyncio.sleep(0)  # Earlier posts are written by now.
        await self._model._close(besides)


def called(
    model: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[SyncConsumerBase[Any], P], T]:
    """Make a method that calls the asyncio consumer's of the same name in the event loop."""

    @wraps(model)
    def method(consumer: SyncConsumerBase[Any], /, *arguments: P.args, **named: P.kwargs) -> T:
        return consumer._ask(model, consumer._model, *arguments, **named)

    return method


def awaited(
    model: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """Make a method that waits for the asyncio object's coroutine of the same name."""

    @wraps(model)
    def method(blocking: Blocking[Any], /, *arguments: P.args, **named: P.kwargs) -> T:
        return blocking._entered().call(model(blocking._model, *arguments, **named))

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
        value: T = consumer._ask(getattr, consumer._model, self._name)
        return value


class _Items(Protocol[T_co]):
    def __aiter__(self) -> AsyncIterator[T_co]: ...

    def __anext__(self) -> Awaitable[T_co]: ...

    def aclose(self) -> Coroutine[Any, Any, None]: ...


async def next_of(items: AsyncIterator[T]) -> T | None:
    """Return the next item; None at the end."""
    return await anext(items, None)


def iterated(items: _Items[T], thread: LoopThread) -> Iterator[T]:
    """Iterate over items in the loop, and end that when this iterator is left."""
    try:
        while (item := thread.call(next_of(items))) is not None:
            yield item
    finally:
        # If the garbage collector ends this one in the loop's thread, the other ends by itself.
        if not thread.is_current:
            with suppress(Closed):
                thread.call(items.aclose())
