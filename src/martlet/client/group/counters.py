"""Counts of the outcomes of messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PullCounts:
    """Counts of messages.

    Attributes:
        received: fetched.
        finished: handled, or kept elsewhere.
        requeued: the number of delays for another try here.
        dead: dead-lettered, or kept elsewhere.
    """

    received: int = 0
    finished: int = 0
    requeued: int = 0
    dead: int = 0

    def __add__(self, other: PullCounts) -> PullCounts:
        return PullCounts(
            self.received + other.received,
            self.finished + other.finished,
            self.requeued + other.requeued,
            self.dead + other.dead,
        )
