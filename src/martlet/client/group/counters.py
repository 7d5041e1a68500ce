"""What became of messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
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

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.received + other.received,
            self.finished + other.finished,
            self.requeued + other.requeued,
            self.dead + other.dead,
        )
