"""The limit of a channel's rate, where its queues have priorities.

While the rate is used up, messages of each priority wait, and those of the highest go first, up to
`ROUND` times; then those of one of the lower ones do, in turns. So none of them starves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.rate_limit import RateLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from martlet.rate_limit import Limited, TokenBucket

ROUND = 100
"""Of so many times that the limit lets messages go, one is a lower priority's: 1 %, as without a
limit (see `martlet.broker.channel.priority_turns`).
"""


class ChannelRate(RateLimit):
    """The limit of a channel's rate, at all of its queues; its parts are their deliveries."""

    __slots__ = ("_rings",)

    def __init__(
        self, bucket: TokenBucket, clock: Callable[[], int], call_at: Callable[[int], object]
    ) -> None:
        super().__init__(bucket, clock, call_at)
        self._rings = 0
        """How often messages of several priorities waited."""

    def _in_turn(self, waiting: list[Limited]) -> list[Limited]:
        """Return the parts in the order in which they may go."""
        priorities = {_priority(part) for part in waiting}
        if len(priorities) < 2:
            return super()._in_turn(waiting)
        self._rings += 1
        ordered = sorted(super()._in_turn(waiting), key=_priority, reverse=True)
        if self._rings % ROUND == 0:
            lower = sorted(priorities)[:-1]
            chosen = lower[self._rings // ROUND % len(lower)]
            ordered.sort(key=lambda part: _priority(part) != chosen)
        return ordered


def _priority(part: Limited) -> int:
    priority: int = part.state.queue.priority  # type: ignore[attr-defined]
    return priority
