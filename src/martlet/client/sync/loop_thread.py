"""The process's one thread that runs an event loop for code without asyncio.

There are two entry points. ``call`` runs a coroutine and waits for its result. ``post`` schedules a
function and does not wait; all posts of many threads while the loop is busy cost one wake-up.

A fork copies no threads: the child has a copy of the loop that does not run, on sockets of the
parent. So copied producers and consumers refuse calls and never touch the sockets, and those made
in the child get a new thread.

SystemExit and KeyboardInterrupt, which end other event loops, do not end this one: it is shared,
and threads that wait for it would wait for ever. The call that caused one of them raises it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from martlet.client.errors import Closed

logger = logging.getLogger("martlet.client")

T = TypeVar("T")


class LoopThread:
    """A daemon thread that runs an event loop.

    Attributes:
        is_forked: whether this process is a child of the one in which the thread runs.
        has_ended: whether the loop was stopped, so that nothing may wait for it.
    """

    def __init__(self) -> None:
        self.loop = _new_loop()
        self.is_forked = False
        self.has_ended = False
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False
        self._thread = threading.Thread(target=self._run, name="martlet client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not (self.has_ended or self.loop.is_closed()):
                self._run_until_something_ends_it()
        finally:
            self.has_ended = True

    def _run_until_something_ends_it(self) -> None:
        try:
            self.loop.run_forever()
        except BaseException as error:
            logger.exception("%r in the client's event loop, which goes on", error)
        else:
            self.has_ended = True

    @property
    def is_current(self) -> bool:
        """Whether the caller is in this thread."""
        return threading.current_thread() is self._thread

    def check(self) -> None:
        """Raise if calls cannot be made from here.

        Raises:
            Closed: this is the child of a fork, or the loop was stopped.
            RuntimeError: this is the loop's own thread, which would wait for itself.
        """
        if self.is_forked:
            raise Closed(
                "this was made before os.fork(), and connections cannot be shared by processes:"
                " make a new one in the child"
            )
        if self.has_ended:
            raise Closed("the event loop of martlet.client.sync was stopped: make a new one")
        if self.is_current:
            raise RuntimeError(
                "called from a coroutine of martlet.client.sync's own event loop, which would wait"
                " for itself: use martlet.client there"
            )

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop, and return its result or raise its exception.

        On Ctrl-C cancel it, and raise KeyboardInterrupt after its end.
        """
        return self.result(self.start(coroutine))

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run the coroutine in the loop, and return the future of its result."""
        try:
            self.check()
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def result(self, future: Future[T]) -> T:
        """Wait for the result; an interrupt cancels the coroutine."""
        try:
            return future.result()
        except CancelledError:
            raise Closed("it was cancelled: the producer or consumer was closed") from None
        except BaseException:
            if not future.done():
                future.cancel()
            raise

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule the function in the loop, after earlier posts."""
        self._posted.append((function, arguments))
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon_threadsafe(self._call_posted)

    def _call_posted(self) -> None:
        # Before the loop below, since it may miss later posts.
        self._is_woken = False
        posted = self._posted
        for _ in range(len(posted)):
            function, arguments = posted.popleft()
            try:
                function(*arguments)
            except BaseException:  # later functions must not wait for the next post
                logger.exception("%r failed", function)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_lock = threading.Lock()
_threads: list[LoopThread] = []
"""The process's thread is the last; earlier ones are its parents', kept so that none of their
sockets is closed here.
"""


def loop_thread() -> LoopThread:
    """Return the process's thread, started at first use."""
    with _lock:
        if not _threads or _threads[-1].is_forked or _threads[-1].has_ended:
            _threads.append(LoopThread())
        return _threads[-1]


def _forked() -> None:
    global _lock  # noqa: PLW0603, another thread may have held it
    _lock = threading.Lock()
    for thread in _threads:
        thread.is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
