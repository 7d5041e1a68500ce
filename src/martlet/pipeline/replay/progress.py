"""The ledger: what a replay is to do, and how far it is, on any file system.

``plan.json`` is written once, when the replay begins: its name at the broker, what it reads, and
the ends of each queue.  ``step.json`` is written before each step, with its number and the two
positions that it lies between, and after it, with how many messages were sent so far.  A step that
was cut off is done again, between the same positions and under the same number, and the broker
publishes a number once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from martlet.pipeline.archive.store import Store
from martlet.pipeline.job import JobFailed
from martlet.pipeline.replay.source import Position
from martlet.spark.read.offsets import flatten, nested

_PLAN, _STEP = "plan.json", "step.json"


@dataclass(frozen=True)
class ReplayPlan:
    """What a replay is to do.

    Attributes:
        name: the application id of what it sends.
        start, end: the position that it begins at, and that it goes up to.
    """

    name: str
    start: Position
    end: Position


@dataclass(frozen=True)
class ReplayStep:
    """One step: the messages between two positions, sent under a number."""

    number: int
    start: Position
    end: Position


@dataclass(frozen=True)
class ReplayProgress:
    """How far a replay is.

    Attributes:
        step: the last step that was begun.
        is_done: whether it was also done.
        sent_count: how many messages were sent by all steps that are done.
    """

    step: ReplayStep
    is_done: bool
    sent_count: int


class Ledger:
    """The files of one replay.

    Args:
        location: the folder or URL.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._store = Store.at(location)

    def plan(
        self, terms: Mapping[str, object], bounds: Callable[[], tuple[Position, Position]]
    ) -> ReplayPlan:
        """The plan that is kept there; a new one, if there is none.

        Args:
            terms: what decides which messages are sent, and where to.
            bounds: the start and the end of a new plan.

        Raises:
            JobFailed: another replay is kept there.
        """
        kept = self._store.read(_PLAN)
        if kept is None:
            start, end = bounds()
            told: dict[str, Any] = {
                "name": f"replay-{secrets.token_hex(8)}",
                "terms": dict(terms),
                "start": nested(start),
                "end": nested(end),
            }
            if not self._store.create(_PLAN, json.dumps(told, indent=1).encode()):
                raise JobFailed(f"another replay has just begun in {self._location}")
        else:
            told = self._read_json(_PLAN, kept)
            changed = [name for name, value in terms.items() if told["terms"].get(name) != value]
            if changed:
                raise JobFailed(
                    f"{self._location} keeps a replay with another --"
                    + ", --".join(changed)
                    + "; give it a folder of its own"
                )
        return ReplayPlan(told["name"], flatten(told["start"]), flatten(told["end"]))

    def progress(self) -> ReplayProgress | None:
        """How far the replay is; None before its first step. Raises JobFailed."""
        kept = self._store.read(_STEP)
        if kept is None:
            return None
        told = self._read_json(_STEP, kept)
        step = ReplayStep(told["number"], flatten(told["start"]), flatten(told["end"]))
        # Older versions noted the number and the positions alone.
        return ReplayProgress(step, told.get("is_done", False), told.get("sent_count", 0))

    def _read_json(self, name: str, content: bytes) -> dict[str, Any]:
        try:
            told = json.loads(content)
        except ValueError as error:
            raise JobFailed(
                f"{self._store.path(name)} cannot be read: {error}. It says how far the replay is:"
                " without it, messages would be sent again. Bring it back from a copy, or give the"
                " replay another --checkpoint"
            ) from None
        if not isinstance(told, dict):
            raise JobFailed(f"{self._store.path(name)} is none of a replay")
        return told

    def note(self, progress: ReplayProgress) -> None:
        """Write down how far the replay is."""
        step = progress.step
        told = {
            "number": step.number,
            "start": nested(step.start),
            "end": nested(step.end),
            "is_done": progress.is_done,
            "sent_count": progress.sent_count,
        }
        self._store.replace(_STEP, json.dumps(told).encode())
