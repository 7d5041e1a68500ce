"""The base of producers and consumers without ``await``: the thread that they use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

from martlet.client.errors import Closed
from martlet.client.sync.loop_thread import LoopThread, loop_thread


class SyncProxy(ABC):
    """Something that lives in the event loop of another thread between ``with`` and its end."""

    def __init__(self) -> None:
        self._thread: LoopThread | None = None

    @abstractmethod
    def close(self) -> None:
        """End what it does there, and hang up."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _enter(self, entering: Coroutine[Any, Any, object]) -> None:
        """Wait until that is done in the loop; from then on it lives there."""
        thread = loop_thread()
        thread.call(entering)
        self._thread = thread

    def _entered(self) -> LoopThread:
        """Where it lives. Raises Closed before ``with``, and in a child of ``os.fork``."""
        thread = self._thread
        if thread is None:
            raise Closed(f"use 'with {type(self).__name__}(...)'")
        thread.check()
        return thread
