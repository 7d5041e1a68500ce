"""Run blocking handlers in threads or processes, so that heartbeats are answered meanwhile.

The handler gets a view of the message, and answers it by its outcome: a return finishes the
message, ``Requeue`` delays it, and any other exception is a failure. Bytes that the handler of a
request returns are its reply. An exception in a process comes here as text, so that it need not be
importable.

The pool gets no more messages than it has threads or processes. The death of a process breaks the
pool and ends the processes beside it, and nothing shows which message caused it. So a new pool
handles each message that was being handled once more, one at a time: only a message whose handler
ends a process again has failed.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from martlet.client.consumer.handling.failure_policy import Reject, Requeue
from martlet.client.consumer.message import ExecutorKind, Message
from martlet.client.errors import HandlerFailed
from martlet.client.received import ReceivedMessage
from martlet.text import counted

logger = logging.getLogger("martlet.client")

_ENDED = "a process that handled messages has ended"

_AnyHandler = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failure of a handler in a process."""

    text: str
    requeue: tuple[int | None, bool] | None = None
    is_rejected: bool = False


class HandlerPool:
    """Call a handler in a thread or process; await it with each message.

    Args:
        handler: a plain function; for processes one that can be imported.

    Raises:
        ValueError: it is a coroutine function, or cannot be sent to a process.
    """

    def __init__(self, handler: _AnyHandler, kind: ExecutorKind, size: int) -> None:
        if inspect.iscoroutinefunction(handler):
            raise ValueError(f"{handler!r} is a coroutine function: those run on the event loop")
        if kind == "processes":
            try:
                pickle.dumps(handler)
            except Exception as error:
                raise ValueError(
                    f"{handler!r} cannot be sent to a process: it must be a function at the top of"
                    f" a module ({error})"
                ) from error
        self._handler = handler
        self._kind = kind
        self._size = size
        self._left_at_work = 0
        self._at_work = 0
        self._suspects = 0
        """Messages that were being handled when a process ended, and have not been handled since.
        """
        self._no_suspects = asyncio.Event()
        self._no_suspects.set()
        self._alone = asyncio.Lock()
        self._executor = self._executor_made()

    def _executor_made(self) -> Executor:
        if self._kind == "threads":
            return ThreadPoolExecutor(self._size, thread_name_prefix="martlet handler")
        # A forked process would inherit sockets and locks.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._size, mp_context=context, initializer=_begin_process)

    async def __call__(self, message: ReceivedMessage) -> None:
        """Handle a message.

        Raises:
            Requeue: the handler wants it again later. Reject: the handler wants it dead-lettered.
            HandlerFailed: the handler failed in a process, or ended the thread or process.
            Exception: raised by the handler in a thread.
        """
        view = message.view()
        loop = asyncio.get_running_loop()
        try:
            result: object
            if self._kind == "threads":
                run = contextvars.copy_context().run
                result = await loop.run_in_executor(
                    self._executor, run, _in_thread, self._handler, view
                )
            else:
                result = await self._in_process(view)
        except asyncio.CancelledError:
            self._left_at_work += 1  # Neither a thread nor a process can be cancelled.
            raise
        if isinstance(result, bytes) and isinstance(message, Message) and message.is_request:
            message.reply(result)

    async def _in_process(self, view: object) -> bytes | None:
        """Handle a message in a process. Returns the reply, if it is a request with one."""
        while self._suspects:
            await self._no_suspects.wait()
        self._at_work += 1
        executor = self._executor
        try:
            future = self._submit(view, is_alone=self._at_work == 1)
            executor = self._executor
            outcome = await asyncio.wrap_future(future)
        except BrokenProcessPool as error:
            was_alone = self._executor is executor and self._at_work == 1
            self._replace(executor)
            if was_alone:
                raise HandlerFailed(_ENDED) from error
            outcome = await self._handle_alone(view)
        finally:
            self._at_work -= 1
        if not isinstance(outcome, _Failure):
            return outcome
        if outcome.requeue is not None:
            delay_ms, backoff = outcome.requeue
            raise Requeue(delay_ms, backoff=backoff)
        if outcome.is_rejected:
            raise Reject(outcome.text)
        raise HandlerFailed(f"in a process:\n{outcome.text}")

    def _submit(self, view: object, *, is_alone: bool) -> Future[_Failure | bytes | None]:
        """Submit the message to a process; a pool that broke while idle is replaced."""
        try:
            return self._executor.submit(_handle_there, self._handler, view)
        except BrokenProcessPool:
            if not is_alone:
                raise
            self._replace(self._executor)
            return self._executor.submit(_handle_there, self._handler, view)

    async def _handle_alone(self, view: object) -> _Failure | bytes | None:
        """Handle alone a message that was being handled when a process ended."""
        self._suspects += 1
        self._no_suspects.clear()
        try:
            async with self._alone:
                future = self._submit(view, is_alone=True)
                executor = self._executor
                try:
                    return await asyncio.wrap_future(future)
                except BrokenProcessPool as error:
                    self._replace(executor)
                    raise HandlerFailed(_ENDED) from error
        finally:
            self._suspects -= 1
            if not self._suspects:
                self._no_suspects.set()

    def _replace(self, executor: Executor) -> None:
        """Replace a pool after one of its processes has ended."""
        if self._executor is executor:
            executor.shutdown(wait=False)
            self._executor = self._executor_made()

    def close(self) -> None:
        """Let threads end; terminate processes that are still busy."""
        if self._left_at_work and isinstance(self._executor, ThreadPoolExecutor):
            logger.warning(
                "%s still at work in threads; the program ends only after that",
                counted(self._left_at_work, "handler is", "handlers are"),
            )
        processes = list((getattr(self._executor, "_processes", None) or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._left_at_work:
            for process in processes:
                process.terminate()


def _in_thread(handler: _AnyHandler, view: object) -> object:
    try:
        return handler(view)
    except (SystemExit, KeyboardInterrupt) as error:
        # Out of the future they would end the event loop.
        raise HandlerFailed(f"the handler raised {error!r}") from error


def _begin_process() -> None:
    """Ignore Ctrl-C in the process: the consumer handles it, and lets handlers end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="martlet parent", daemon=True).start()


def _end_with_parent() -> None:
    """End with the consumer's process: if that is killed, nothing else would end this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _handle_there(handler: _AnyHandler, view: object) -> _Failure | bytes | None:
    """Run the handler in the process; return an outcome that can be pickled."""
    try:
        result = handler(view)
    except Requeue as request:
        return _Failure("", (request.delay_ms, request.backoff))
    except Reject as rejection:
        return _Failure(str(rejection), is_rejected=True)
    except BaseException:
        return _Failure(traceback.format_exc())
    return result if isinstance(result, bytes) else None
