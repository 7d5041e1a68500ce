"""The base of producers and consumers without ``await``: their use of the loop's thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

from martlet.client.errors import Closed
from martlet.client.sync.loop_thread import LoopThread, loop_thread


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
