"""The checkpoint of a replay: its plan and its progress, on any file system.

``plan.json`` is written once, when the replay starts: its application id at the broker, its
options, and the start and end of each queue.  ``step.json`` is written before each step, with its
number and its two positions, and after it, with the number of messages sent so far.  An interrupted
step is repeated between the same positions and under the same number, and the broker publishes each
number once.
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
from martlet.reader.offsets import flatten, nested

_PLAN, _STEP = "plan.json", "step.json"


@dataclass(frozen=True)
class ReplayPlan:
    """The plan of a replay."""

    name: str
    """The application id of its transactions."""
    start: Position
    end: Position


@dataclass(frozen=True)
class ReplayStep:
    """One step: a transaction with the messages between two positions."""

    number: int
    start: Position
    end: Position
    is_done: bool = False
    sent_count: int = 0
    """The number of messages that all completed steps have sent."""


class Ledger:
    """The checkpoint files of one replay."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._store = Store.at(location)

    def plan(
        self, terms: Mapping[str, object], bounds: Callable[[], tuple[Position, Position]]
    ) -> ReplayPlan:
        """Read the plan, or create it. Raises JobFailed: the folder has another replay.

        Args:
            terms: the options that must not change during a replay.
            bounds: returns the start and the end of a new plan.
        """
        kept = self._store.read(_PLAN)
        if kept is None:
            start, end = bounds()
            fields: dict[str, Any] = {
                "name": f"replay-{secrets.token_hex(8)}",
                "terms": dict(terms),
                "start": nested(start),
                "end": nested(end),
            }
            if not self._store.create(_PLAN, json.dumps(fields, indent=1).encode()):
                raise JobFailed(f"another replay has just begun in {self._location}")
        else:
            fields = self._read_json(_PLAN, kept, "name", "terms", "start", "end")
            changed = [name for name, value in terms.items() if fields["terms"].get(name) != value]
            if changed:
                raise JobFailed(
                    f"{self._location} keeps a replay with another --"
                    + ", --".join(changed)
                    + "; give it a folder of its own"
                )
        return ReplayPlan(fields["name"], flatten(fields["start"]), flatten(fields["end"]))

    def progress(self) -> ReplayStep | None:
        """Read the last step that was started; None before the first. Raises JobFailed."""
        kept = self._store.read(_STEP)
        if kept is None:
            return None
        fields = self._read_json(_STEP, kept, "number", "start", "end")
        start, end = flatten(fields["start"]), flatten(fields["end"])
        # Older versions wrote only the number and the positions.
        is_done, sent_count = fields.get("is_done", False), fields.get("sent_count", 0)
        return ReplayStep(fields["number"], start, end, is_done, sent_count)

    def _read_json(self, name: str, content: bytes, *keys: str) -> dict[str, Any]:
        try:
            fields = json.loads(content)
        except ValueError as error:
            raise JobFailed(
                f"{self._store.path(name)} cannot be read: {error}. It has the position of the"
                " replay: without it, messages would be sent again. Restore it from a copy, or give"
                " the replay another --checkpoint"
            ) from None
        if not isinstance(fields, dict) or not fields.keys() >= set(keys):
            raise JobFailed(f"{self._store.path(name)} is not a file of a replay")
        return fields

    def note(self, step: ReplayStep) -> None:
        """Write the last step that was started."""
        fields = vars(step) | {"start": nested(step.start), "end": nested(step.end)}
        self._store.replace(_STEP, json.dumps(fields).encode())
