"""The broker of the job: a process of its own, which is killed, and its HTTP API."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.flights.board import DemoFailed
from martlet.testing.broker_process import BrokerProcess

_ANSWER_S = 10.0
_ASK_S = 0.2
_QUIET_S = 30.0


class DemoBroker:
    """A broker process on free ports of the loopback interface.

    Attributes:
        process: the process.
    """

    def __init__(self, data_path: Path) -> None:
        self.process = BrokerProcess(data_path)
        self._work: asyncio.Future[None] | None = None

    async def __aenter__(self) -> DemoBroker:
        await self._do(self.process.start)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._work is not None:
            # A start that was interrupted has to end first.
            await asyncio.wait([self._work])
        await asyncio.to_thread(self.process.close)

    async def kill(self) -> None:
        """End the process with SIGKILL."""
        await self._do(self.process.kill)

    async def restart(self) -> None:
        """Start it again, on the same ports and folder; DemoFailed if that fails."""
        await self._do(self.process.restart)

    async def make_topic(self, topic: str) -> None:
        """Make a topic, unless it exists."""
        await self._ask("POST", f"/topic/create?topic={topic}")

    async def stored(self, topic: str) -> int:
        """Return how many messages the topic has been given."""
        topics = (await self._get("/log/topics"))["topics"]
        queues = [queue for each in topics if each["topic"] == topic for queue in each["queues"]]
        return sum(queue["end_offset"] for queue in queues)

    async def settle(self, topic: str, channel: str) -> int:
        """Wait until the channel exists and has finished all; return what is left.

        That is 0, or a number that has not fallen for a while.
        """
        left: int | None = None
        quiet_since_s = time.monotonic()
        while left != 0:
            before, left = left, await self._unfinished(topic, channel)
            if left != before:
                quiet_since_s = time.monotonic()
            elif left is not None and time.monotonic() - quiet_since_s > _QUIET_S:
                break
            await asyncio.sleep(_ASK_S)
        return left

    async def _unfinished(self, topic: str, channel: str) -> int | None:
        stats = await self._get(f"/stats?format=json&topic={topic}&channel={channel}")
        # As nsqd does, it says null where there is nothing.
        for each in stats["topics"] or ():
            for found in each["channels"] or ():
                return int(found["depth"] + found["in_flight_count"] + found["deferred_count"])
        return None

    async def _get(self, path: str) -> Any:
        return json.loads(await self._ask("GET", path))

    async def _ask(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(f"http://{self.process.http_address}{path}", method=method)

        def ask() -> bytes:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
                return bytes(answer.read())

        try:
            return await asyncio.to_thread(ask)
        except OSError as error:
            raise DemoFailed(f"the broker does not answer {path}: {error}") from error

    async def _do(self, step: Callable[[], None]) -> None:
        self._work = asyncio.ensure_future(asyncio.to_thread(step))
        try:
            await asyncio.shield(self._work)
        except RuntimeError as error:
            raise DemoFailed(str(error)) from error


async def verify(data_path: Path) -> tuple[bool, str]:
    """Run ``martlet log verify``: whether all is well, and its last line."""
    command = [sys.executable, "-m", "martlet", "log", "verify", str(data_path)]
    done = await asyncio.to_thread(
        subprocess.run, command, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    lines = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
    return done.returncode == 0, lines[-1]
