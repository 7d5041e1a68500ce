"""The oldest message that waits in a channel: since when the channel is behind.

It is found when it is asked for, from the index rows at the channel's read position and the lowest
message that waits to be redelivered: so it costs nothing for each message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from martlet.broker.queue.channel_state import ChannelState
    from martlet.log.index import Index, IndexEntry

_ROWS_AT_ONCE = 4096
_MAX_ROWS = 1 << 18
"""How many rows of deferred messages are searched for one behind them that is not deferred."""


def oldest_age_ns(channel: ChannelState) -> int:
    """Return how long the oldest waiting message has been waiting since it was stored or, if it was
    deferred, since it was due, in nanoseconds; 0 where none waits.
    """
    now_ns = channel.context.wall()
    rows = (_lowest_pending(channel), _first_fresh(channel))
    ages_ns = (now_ns - max(row.stored_at_ns, row.deliver_at_ns) for row in rows if row)
    return max((0, *ages_ns))


def _lowest_pending(channel: ChannelState) -> IndexEntry | None:
    """Return the row of the lowest message that waits to be redelivered, or was deferred and is
    due; None where none is.
    """
    offset = channel.cursor.pending.lowest_ready()
    index = channel.cursor.queue.index
    number = index.end_row if offset is None else index.find(offset)
    return index.row(number) if number < index.end_row else None


def _first_fresh(channel: ChannelState) -> IndexEntry | None:
    """Return the first row at or behind the cursor whose messages the channel gets and that are not
    deferred; None where none is.
    """
    index, own_mark = channel.cursor.queue.index, channel.own_mark
    for first, end in channel.source.stretches(channel.cursor.next):
        number = index.find(first)
        last = min(index.end_row, number + _MAX_ROWS)
        if number < last:
            row = index.row(number)
            if row.deliver_at_ns not in (0, own_mark):
                row = _first_plain(index, number, last, own_mark) or row
            if row.first_offset < end and row.deliver_at_ns in (0, own_mark):
                return row
    return None


def _first_plain(index: Index, number: int, last: int, own_mark: int) -> IndexEntry | None:
    """Return the first row of some whose messages are not deferred, or for this channel alone."""
    while number < last:
        marks = index.array(number, min(last, number + _ROWS_AT_ONCE))["deliver_at_ns"]
        shown = np.flatnonzero((marks == 0) | (marks == own_mark))
        if len(shown):
            return index.row(number + int(shown[0]))
        number += len(marks)
    return None
