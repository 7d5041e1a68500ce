"""Resolve bounds: from what an option says to the offsets in the queues that exist."""

from __future__ import annotations

import time
from collections.abc import Iterator

from martlet.reader.brokers.brokers import QueryBrokers, Seen
from martlet.reader.brokers.endpoint import QueueRange
from martlet.reader.offset_bound import EARLIEST, Bound, BoundOffset, QueueBounds, is_queue
from martlet.reader.offsets import QueueKey

_LAST_NS = (1 << 63) - 1
"""In the year 2262: the latest time that brokers accept."""


def resolve(brokers: QueryBrokers, bound: Bound, seen: Seen, option: str) -> dict[QueueKey, int]:
    """Find the offset that a bound means in each of the queues seen. Raises ValueError, which names
    the queue that does not exist, or for which the option gives no offset.
    """
    if bound.everywhere is not None:
        bounds = dict.fromkeys(seen, bound.everywhere)
    else:
        assert bound.by_queue is not None
        bounds = _by_queue(bound.by_queue, seen, option)
    now_ns = time.time_ns()
    offsets = {}
    for key, point in bounds.items():
        time_ns = point.time_ns if point.ago_ns is None else now_ns - point.ago_ns
        if time_ns is None:
            offsets[key] = _offset(point, key, seen[key], option)
        else:
            time_ns = max(0, min(time_ns, _LAST_NS))
            offsets[key] = brokers.endpoint(key.broker).offset_at(key.topic, key.queue, time_ns)
    return offsets


def _offset(bound: BoundOffset, key: QueueKey, queue: QueueRange, option: str) -> int:
    if bound.offset is not None:
        if bound.offset > queue.end_offset:
            raise ValueError(
                f"option {option}: offset {bound.offset} of {key} is after its end, "
                f"{queue.end_offset}"
            )
        return bound.offset
    if bound.end == EARLIEST:
        return min(queue.end_offset, queue.start_offset + bound.shift)
    return max(queue.start_offset, queue.end_offset + bound.shift)


def _by_queue(bounds: QueueBounds, seen: Seen, option: str) -> dict[QueueKey, BoundOffset]:
    """Map the bounds of an option to queues, whether it names brokers or not. Raises ValueError."""
    by_queue: dict[QueueKey, BoundOffset] = {}
    for key, bound in _flat(bounds):
        holders = [
            there
            for there in seen
            if there.topic == key.topic
            and key.queue in (there.queue, _ALL)
            and key.broker in (there.broker, "")
        ]
        if not holders:
            queue = "" if key.queue == _ALL else f", queue {key.queue}"
            of = f" of broker {key.broker}" if key.broker else ""
            names = [str(there) for there in sorted(seen)]
            some = "; ".join([*names[:10], *(["..."] if len(names) > 10 else [])])
            raise ValueError(
                f"option {option}: there is no topic {key.topic}{queue}{of}; there is"
                f" {some or 'no queue at all'}"
            )
        brokers = sorted({there.broker for there in holders})
        if len(brokers) > 1 and bound.offset is not None:
            raise ValueError(
                f"option {option}: {len(brokers)} brokers have topic {key.topic}, queue"
                f' {key.queue}; write {{"<broker id>": {{"{key.topic}": {{"{key.queue}": '
                f"{bound.offset}}}}}}} for each of {', '.join(brokers)}"
            )
        by_queue |= dict.fromkeys(holders, bound)
    for there in seen:
        if there not in by_queue:
            raise ValueError(
                f"option {option} gives no offset for {there}; -2 means earliest, -1 latest"
            )
    return by_queue


_ALL = -1
"""In place of a queue's number: all queues of the topic."""


def _flat(bounds: QueueBounds) -> Iterator[tuple[QueueKey, BoundOffset]]:
    """Yield the bounds by queue; an empty broker or `_ALL` queues where none is named."""
    for outer, value in bounds.items():
        if isinstance(value, BoundOffset):
            yield QueueKey("", outer, _ALL), value
            continue
        for inner, bound in value.items():
            if isinstance(bound, dict):
                for queue, exact in bound.items():
                    yield QueueKey(outer, inner, int(queue)), exact
            elif is_queue(inner):
                yield QueueKey("", outer, int(inner)), bound
            else:
                yield QueueKey(outer, inner, _ALL), bound
