"""The processes of the load generator: one a connection, so that none waits for another's Python.

They are started once and then do one load after the other, together: each prepares, and all begin
at the same moment.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Sequence
from itertools import cycle
from multiprocessing.context import SpawnProcess
from typing import Any

from bench.servers.link import LoadFailed
from bench.servers.load import Load, LoadResult

PATIENCE_S = 120.0
"""The time that a process may take for anything, beyond that of its load."""


class LoadProcesses:
    """Processes that run loads, until the context ends."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._members: list[tuple[SpawnProcess, Any]] = []

    def __enter__(self) -> LoadProcesses:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def run(
        self, host: str, port: int, loads: Sequence[Load], *more: tuple[str, int]
    ) -> list[LoadResult]:
        """Run each load in a process of its own, all at the same time.

        Args:
            host, port: of the server.
            loads: one a connection.
            more: further servers: the connections take turns at all of them.

        Raises:
            LoadFailed: one of them failed; the others are ended.
        """
        while len(self._members) < len(loads):
            self._start()
        addresses = cycle([(host, port), *more])
        pipes = [pipe for _, pipe in self._members[: len(loads)]]
        try:
            for pipe, load in zip(pipes, loads, strict=True):
                pipe.send((*next(addresses), load))
            for pipe in pipes:
                self._answer(pipe)
            for pipe in pipes:
                pipe.send(None)
            return [self._answer(pipe) for pipe in pipes]
        except BaseException:
            self.close()  # The others wait at the gate, or work.
            raise

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._members.append((process, ours))

    def _answer(self, pipe: Any) -> Any:
        if not pipe.poll(PATIENCE_S):
            raise LoadFailed(f"a process of the load generator said nothing for {PATIENCE_S:g} s")
        try:
            answer = pipe.recv()
        except EOFError:
            raise LoadFailed("a process of the load generator has ended") from None
        if isinstance(answer, str):
            raise LoadFailed(answer)
        return answer

    def close(self) -> None:
        """End the processes."""
        members, self._members = self._members, []
        for process, pipe in members:
            pipe.close()
            process.terminate()
        for process, _ in members:
            process.join()


def _work(pipe: Any) -> None:
    """Run loads, one after the other, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent gets it too, and ends us.

    def gate() -> None:
        pipe.send(None)
        pipe.recv()

    while True:
        try:
            host, port, load = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(load.run(host, port, gate))
        except LoadFailed as error:
            pipe.send(str(error))
        except EOFError:
            return
        except Exception:
            pipe.send(f"the load generator has failed:\n{traceback.format_exc()}")
