"""What became of messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PullCounts:
    """Counts of messages.

    Attributes:
        received: fetched.
        finished: handled, or kept elsewhere.
        requeued: how often one was put off, to be tried again here.
        dead: given up, and kept elsewhere.
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
