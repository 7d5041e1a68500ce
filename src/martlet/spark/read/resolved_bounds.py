"""Resolve bounds: from what an option says to the offsets in the queues that exist."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from martlet.spark.brokers.brokers import QueryBrokers
from martlet.spark.brokers.endpoint import QueueRange
from martlet.spark.read.offset_bound import EARLIEST, Bound, BoundOffset, Places
from martlet.spark.read.offsets import QueueKey

_LAST_NS = (1 << 63) - 1
"""In the year 2262: the latest time that brokers accept."""
Seen = Mapping[QueueKey, QueueRange]


def resolve(brokers: QueryBrokers, bound: Bound, seen: Seen, option: str) -> dict[QueueKey, int]:
    """Find the offset that a bound means in each of the queues seen.

    Args:
        option: the option's name, for the error.

    Raises:
        ValueError: the option names a queue that does not exist, or lacks one that does.
    """
    if bound.everywhere is not None:
        places = dict.fromkeys(seen, bound.everywhere)
    else:
        assert bound.places is not None
        places = _given(bound.places, seen, option)
    now_ns = time.time_ns()
    offsets = {}
    for key, place in places.items():
        if place.time_ns is not None or place.ago_ns is not None:
            at_ns = now_ns - place.ago_ns if place.ago_ns is not None else place.time_ns
            assert at_ns is not None
            endpoint = brokers.endpoint(key.broker)
            at_ns = max(0, min(at_ns, _LAST_NS))
            offsets[key] = endpoint.offset_at(key.topic, key.queue, at_ns)
        else:
            offsets[key] = _offset(place, key, seen[key], option)
    return offsets


def _offset(place: BoundOffset, key: QueueKey, queue: QueueRange, option: str) -> int:
    if place.offset is not None:
        if place.offset > queue.end_offset:
            raise ValueError(
                f"option {option}: offset {place.offset} of {key} is after its end, "
                f"{queue.end_offset}"
            )
        return place.offset
    if place.end == EARLIEST:
        return min(queue.end_offset, queue.start_offset + place.shift)
    return max(queue.start_offset, queue.end_offset + place.shift)


def _given(places: Places, seen: Seen, option: str) -> dict[QueueKey, BoundOffset]:
    """Map the bounds of an option to queues, whether it names brokers or not.

    Raises:
        ValueError: as `resolve`.
    """
    given: dict[QueueKey, BoundOffset] = {}
    for key, place in _flat(places):
        holders = [
            there
            for there in seen
            if there.topic == key.topic
            and key.queue in (there.queue, _ALL)
            and key.broker in (there.broker, "")
        ]
        if not holders:
            raise ValueError(
                f"option {option}: there is no {_describe(key)}; there is {_some(seen)}"
            )
        brokers = sorted({there.broker for there in holders})
        if len(brokers) > 1 and place.offset is not None:
            raise ValueError(
                f"option {option}: {len(brokers)} brokers have topic {key.topic}, queue"
                f' {key.queue}; write {{"<broker id>": {{"{key.topic}": {{"{key.queue}": '
                f"{place.offset}}}}}}} for each of {', '.join(brokers)}"
            )
        given |= dict.fromkeys(holders, place)
    for there in seen:
        if there not in given:
            raise ValueError(
                f"option {option} gives no offset for {there}; -2 means earliest, -1 latest"
            )
    return given


_ALL = -1
"""In place of a queue's number: all queues of the topic."""


def _flat(places: Places) -> Iterator[tuple[QueueKey, BoundOffset]]:
    """Yield the bounds by queue; an empty broker or `_ALL` queues where none is named."""
    for outer, value in places.items():
        if isinstance(value, BoundOffset):
            yield QueueKey("", outer, _ALL), value
            continue
        for inner, place in value.items():
            if isinstance(place, dict):
                for queue, exact in place.items():
                    yield QueueKey(outer, inner, int(queue)), exact
            elif inner.isdecimal():
                yield QueueKey("", outer, int(inner)), place
            else:
                yield QueueKey(outer, inner, _ALL), place


def _describe(key: QueueKey) -> str:
    queue = "" if key.queue == _ALL else f", queue {key.queue}"
    return f"topic {key.topic}{queue}" + (f" of broker {key.broker}" if key.broker else "")


def _some(seen: Seen) -> str:
    names = [str(key) for key in sorted(seen)]
    return "; ".join(names[:10]) + ("; ..." if len(names) > 10 else "") or "no queue at all"
