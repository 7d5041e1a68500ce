"""Peek: read the unfinished messages of a channel without consuming them.

::

    state       where it is                                   due
    in_flight   with a consumer: in the window, or a           when it times out
                pending message with an owner; or without a
                consumer, moving to another topic
    deferred    a pending message that waits for a time        when it may be delivered
    due         a pending message: requeued, timed out, or     at once
                its time has come
    waiting     in the log, from the cursor on                 when it is its turn

A peek changes nothing: it counts no attempts, moves no cursor, and does not report unreadable
messages as lost; delivery does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from heapq import merge
from itertools import islice

from martlet.broker.queue.channel_state import ChannelState
from martlet.broker.queue.consumer import ChannelConsumer
from martlet.broker.queue.cursor import Cursor
from martlet.log.index import IndexEntry
from martlet.log.record import BadRecord

_HELD_AT_ONCE = 1 << 12
_ROWS_AT_ONCE = 1 << 12


class PeekState(StrEnum):
    """The state of a message."""

    IN_FLIGHT = "in_flight"
    DEFERRED = "deferred"
    DUE = "due"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Peeked:
    """An unfinished message of a channel."""

    offset: int
    state: PeekState
    attempts: int = 0
    due_ns: int = 0
    """When it times out, or may be delivered; 0 where it waits for no time."""
    delivered_at_ns: int = 0
    """When it was last delivered, where it is in flight."""
    owner: ChannelConsumer | None = None
    """The consumer that holds it."""
    failures: int = 0


def peek(
    channel: ChannelState, start: int, max_count: int, states: Collection[PeekState]
) -> list[Peeked]:
    """Return the first messages in some states from an offset on, by offset."""
    iterators: list[Iterator[Peeked]] = []
    if PeekState.IN_FLIGHT in states:
        iterators.append(_in_window(channel, start))
    if not set(states) <= {PeekState.WAITING}:
        iterators.append(_pending(channel, start, states))
    if PeekState.WAITING in states:
        iterators.append(_waiting(channel, start))
    return list(islice(merge(*iterators, key=lambda peeked: peeked.offset), max_count))


def _in_window(channel: ChannelState, start: int) -> Iterator[Peeked]:
    window, ahead_ns = channel.cursor.window, channel.cursor.pending.wall_ahead_ns
    consumers = {consumer.number: consumer for consumer in channel.consumers}
    first = max(start, window.floor)
    while first < window.next:
        end = min(first + _HELD_AT_ONCE, window.next)
        for offset, number in window.held(first, end):
            owner = consumers[number]
            deadline_ns = owner.lease_of(offset).deadline_ns + ahead_ns
            delivered_at_ns = deadline_ns - owner.timeout_ns
            yield Peeked(offset, PeekState.IN_FLIGHT, 1, deadline_ns, delivered_at_ns, owner)
        first = end


def _pending(channel: ChannelState, start: int, states: Collection[PeekState]) -> Iterator[Peeked]:
    pending = channel.cursor.pending
    for offset in pending.rising(start):
        message = pending.by_offset[offset]
        owner = message.owner
        if owner is not None:
            state = PeekState.IN_FLIGHT
        else:
            state = PeekState.DUE if pending.is_ready(offset) else PeekState.DEFERRED
        if state not in states:
            continue
        if owner is not None and not owner.number:
            yield Peeked(offset, state, message.attempts, failures=message.failures)
            continue
        yield Peeked(
            offset,
            state,
            message.attempts,
            message.due_ns + pending.wall_ahead_ns,
            message.delivered_at_ns and message.delivered_at_ns + pending.wall_ahead_ns,
            owner,
            message.failures,
        )


def _waiting(channel: ChannelState, start: int) -> Iterator[Peeked]:
    index = channel.cursor.queue.index
    for first, end in channel.source.stretches(max(start, channel.cursor.next)):
        number = index.find(first)
        while number < index.end_row:
            rows = index.rows(number, number + _ROWS_AT_ONCE)
            for row in rows:
                if row.first_offset >= end:
                    break
                if row.deliver_at_ns in (0, channel.own_mark):
                    for offset in range(max(first, row.first_offset), min(end, row.end_offset)):
                        yield Peeked(offset, PeekState.WAITING)
            number += len(rows)
            if rows[-1].end_offset >= end:
                break


class PeekedFrames:
    """Reads the frames of peeked messages, by rising offsets."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._entry: IndexEntry | None = None
        self._payload_end = 0
        self._record = memoryview(b"")

    def read(self, offset: int) -> tuple[IndexEntry, memoryview] | None:
        """Return the batch and the frame of a message; None where it cannot be read."""
        entry = self._entry
        if entry is None or not entry.first_offset <= offset < entry.end_offset:
            index = self._cursor.queue.index
            row = index.find(offset)
            entry = index.row(row) if row < index.end_row else None
            if entry is None or not entry.first_offset <= offset < entry.end_offset:
                return None
            try:
                self._payload_end, self._record = self._cursor.read(entry)
            except BadRecord:
                return None
            self._entry = entry
        return entry, self._cursor.frame_of(entry, self._payload_end, self._record, offset)
