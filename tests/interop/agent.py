"""An agent as the test sees it: a process and its events so far."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

Event = dict[str, Any]


class Agent:
    """A running agent; `events` grows as it reports them."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self.events: list[Event] = []
        self._more = threading.Condition()
        self._ended = False
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by __exit__
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._errors, text=True, **options
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self.events.append(json.loads(line))
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def wait(self, name: str, seconds: float, holds: Callable[[], object]) -> None:
        """Wait until a condition holds for the events of the agent."""
        deadline_s = time.monotonic() + seconds
        with self._more:
            while not holds():
                left_s = deadline_s - time.monotonic()
                if self._ended or left_s <= 0:
                    self._errors.seek(0)
                    state = "the agent ended" if self._ended else f"not in {seconds:g} s"
                    raise AssertionError(
                        f"{name}: {state}; its last events: {self.events[-8:]};"
                        f" it wrote: {self._errors.read()[-2000:]}"
                    )
                self._more.wait(left_s)

    def events_named(self, event: str) -> list[Event]:
        """All events of that name."""
        return [each for each in list(self.events) if each["event"] == event]

    def bodies(self, event: str) -> list[str]:
        """Their bodies."""
        return [each["body"] for each in self.events_named(event)]
