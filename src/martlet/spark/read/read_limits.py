"""Limits of a micro-batch: its maximum bytes, and the minimum messages that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from martlet.spark.read.offsets import QueueKey, Span, in_turn, spans

Reach = Callable[[QueueKey, int, int, int], tuple[int, int]]
"""From a queue, two offsets and a size to the offset reached and its bytes; `Endpoint.reach`."""


def within_bytes(
    start: Mapping[QueueKey, int], end: Mapping[QueueKey, int], max_bytes: int, reach: Reach
) -> dict[QueueKey, int]:
    """Return the position about `max_bytes` of the log after `start`, and not after `end`.

    Queues share the limit in proportion, by entire batches, each at least 1.  If there is no room
    for 1 batch of each queue, they take turns.
    """
    todo = in_turn(list(spans(start, end)))
    furthest_of = {span.key: reach(*span, max_bytes) for span in todo}
    total = sum(size for _, size in furthest_of.values())
    reached = dict(end) | {key: offset for key, (offset, _) in furthest_of.items()}
    if total <= max_bytes:
        return reached
    left = max_bytes
    for key, first, _ in todo:
        furthest, size = furthest_of[key]
        if left <= 0:
            reached[key] = first
            continue
        share = max(1, left * size // total)
        total -= size
        if share < size:
            reached[key], size = reach(key, first, furthest, share)
        left -= size
    return reached


def unread(todo: list[Span]) -> int:
    """Count the messages to read."""
    return sum(span.end - span.start for span in todo)


class Gathering:
    """Delays a micro-batch until it has `min_rows` messages or `max_delay_s` have passed."""

    def __init__(self, min_rows: int, max_delay_s: float) -> None:
        self._min_rows = min_rows
        self._max_delay_s = max_delay_s
        self._since_s: float | None = None

    def waits(self, count: int, now_s: float) -> bool:
        """Whether a batch of `count` messages shall wait for more."""
        if not count:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        if count < self._min_rows and now_s - self._since_s < self._max_delay_s:
            return True
        self._since_s = None
        return False
