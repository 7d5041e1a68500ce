"""The supervisor: starts groups of servers one after the other, and stops them in reverse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from martlet.supervisor.child import Child

log = logging.getLogger(__name__)

_PATIENCE_S = 10.0
"""The interval of log lines that name the servers still awaited."""


class Supervisor:
    """Run servers until stopped, or until one of them cannot be kept running.

    Args:
        groups: those of a group start together, once the groups before are ready.
        stop_timeout_s: how long a group may take to stop, before it is killed.
        on_ready: called once all are ready.
        on_stop: called when they begin to be stopped.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Child]],
        stop_timeout_s: float,
        on_ready: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        self._groups = groups
        self._stop_timeout_s = stop_timeout_s
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._stopping = asyncio.Event()
        self._tasks: dict[Child, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run them all. Raises ChildProcessError: one cannot start, or does not stay up; the others
        have been stopped.
        """
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            if await self._start(stopping):
                self._on_ready()
            await asyncio.wait(
                [stopping, *self._tasks.values()], return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stopping.cancel()
            self._on_stop()
            for group in reversed(self._groups):
                await self._stop([child for child in group if child in self._tasks])
        errors = [error for task in self._tasks.values() if (error := task.exception())]
        for error in errors[1:]:
            log.critical("%s", error)
        if errors:
            raise errors[0]

    def stop(self) -> None:
        """Stop them all in order; the second time, kill them."""
        if not self._stopping.is_set():
            log.info("stopping")
            self._stopping.set()
            return
        log.warning("second signal: servers that still run are killed; their logs stay intact")
        for child in self._tasks:
            child.kill()

    async def _start(self, stopping: asyncio.Task[bool]) -> bool:
        """Start all groups; whether all are ready, or something came between."""
        for group in self._groups:
            if stopping.done():
                return False
            for child in group:
                self._tasks[child] = asyncio.create_task(child.run(), name=child.name)
            ready = asyncio.create_task(_all_ready(group))
            try:
                if not await self._becomes_ready(ready, group, stopping):
                    return False
            finally:
                ready.cancel()
        return True

    async def _becomes_ready(
        self,
        ready: asyncio.Task[None],
        group: Sequence[Child],
        stopping: asyncio.Task[bool],
    ) -> bool:
        awaited: list[asyncio.Future[Any]] = [ready, stopping, *self._tasks.values()]
        while True:
            done, _ = await asyncio.wait(
                awaited, timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return done == {ready}
            late = [child for child in group if not child.ready.is_set()]
            names = ", ".join(f"{child.name} (process {child.process_id})" for child in late)
            log.info("waiting for %s", names)

    async def _stop(self, children: Sequence[Child]) -> None:
        tasks = [self._tasks[child] for child in children]
        if not tasks:
            return
        for child in children:
            child.stop()
        _, late = await asyncio.wait(tasks, timeout=self._stop_timeout_s)
        for child in children:
            if self._tasks[child] in late:
                log.error(
                    "%s (process %d) does not stop within %g s (--stop-timeout): it is killed",
                    child.name, child.process_id, self._stop_timeout_s,
                )  # fmt: skip
                child.kill()
        if late:
            await asyncio.wait(late)


async def _all_ready(children: Sequence[Child]) -> None:
    for child in children:
        await child.ready.wait()
