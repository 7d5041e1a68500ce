"""The counters of a channel since the broker was started, kept in the log.

An audit needs how many messages a channel has delivered, requeued, dropped and finished, in which
hour, and after what time. A cursor only says which messages are finished; the history of each one
is kept only if it is traced (`martlet.broker.tracing.recorder`). So the counts that a channel keeps
anyway are written beside its cursor, one record for many channels, little-endian::

     0 channels u32 | 4 reserved u32
     8 topic u32 | channel u32 | counts u32 | 0      once for each channel, and behind it
    24 counts x u64: the count's number << 56 | its value, for each that is not 0

They count from the start of the broker, whose number is in each record's header, and are totals,
not differences: a missing record costs only the resolution in time. The counts from `FIRST_BUCKET`
on are the messages finished within each of the bounds of `martlet.broker.tracing.finish_ages`. A
crash loses the counts since the last write, at most the journal's interval; what it lost of the
cursor is redelivered.

Recovery ignores these records; they keep no segment, and are left out if there is no space for
them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from martlet.broker.errors import WritesRefused
from martlet.broker.tracing.finish_ages import BOUNDS_NS, FinishAges
from martlet.log.commit_log import CommitLog
from martlet.log.record import BadRecord, RecordKind, record_length

MAX_AT_ONCE = 1024
"""The maximum number of channels in one record."""
_HEAD = struct.Struct("<II")
_CHANNEL = struct.Struct("<IIII")
_SHIFT = 56
_MAX = (1 << _SHIFT) - 1
_MILLISECOND_NS = 1_000_000


class ChannelCount(IntEnum):
    """The counts, beside the buckets."""

    DELIVERED = 0
    """Deliveries, redeliveries included."""
    RETRIED = 1
    """Redeliveries."""
    REQUEUED = 2
    TIMED_OUT = 3
    DEAD = 4
    """Messages that went to the channel's dead-letter topic."""
    DROPPED = 5
    """Messages dropped to free space, or because an ephemeral channel keeps no more."""
    COMMITTED = 6
    """Messages below an offset that a group has committed."""
    TOOK_MS = 7
    """The sum of the ages, from publish to finish, of all finished messages."""
    FILTERED = 8
    """Messages finished without delivery, since the channel's tags or filter reject them."""


FIRST_BUCKET = 16
COUNTS = FIRST_BUCKET + len(BOUNDS_NS) + 1
"""The maximum number of counts, buckets included."""


class ChannelCounters(NamedTuple):
    """The counters of one channel in a record."""

    topic: int
    channel: int
    counts: npt.NDArray[np.int64]


class CountedChannel(Protocol):
    """A channel at one queue, by its counts."""

    id: int
    topic_id: int
    retry_count: int
    requeue_count: int
    timeout_count: int
    dead_letter_count: int
    dropped_count: int
    committed_count: int
    finishes: FinishAges

    @property
    def filtered_count(self) -> int:
        """The number of messages finished without delivery, as a filter rejects them."""

    @property
    def delivered_count(self) -> int:
        """The number of deliveries, redeliveries included."""


def counts_of(channel: CountedChannel) -> list[int]:
    """Return the current counts of a channel, each with its number, without those that are 0."""
    finishes = channel.finishes
    totals = [
        channel.delivered_count,
        channel.retry_count,
        channel.requeue_count,
        channel.timeout_count,
        channel.dead_letter_count,
        channel.dropped_count,
        channel.committed_count,
        min(finishes.sum_ns // _MILLISECOND_NS, _MAX),
        channel.filtered_count,
    ]
    numbered = [number << _SHIFT | count for number, count in enumerate(totals) if count]
    numbered += [
        number << _SHIFT | count
        for number, count in enumerate(finishes.counts, FIRST_BUCKET)
        if count
    ]
    return numbered


def write_accounts(log: CommitLog, now_ns: int, channels: Iterable[CountedChannel]) -> None:
    """Write the counters of channels, if the segment has space: the next one begins with them."""
    with suppress(WritesRefused):
        for entry in pack_accounts(channels):
            if record_length(len(entry), 0) > log.left_bytes:
                return
            log.append_journal(
                RecordKind.ACCOUNTS, entry, topic=0, stored_at_ns=now_ns, needed=False
            )


def pack_accounts(channels: Iterable[CountedChannel]) -> Iterator[bytes]:
    """Pack the counters of channels into entries, without channels that have none."""
    pieces: list[bytes] = []
    for channel in channels:
        counts = counts_of(channel)
        if not counts:
            continue
        head = _CHANNEL.pack(channel.topic_id, channel.id, len(counts), 0)
        pieces.append(head + struct.pack(f"<{len(counts)}Q", *counts))
        if len(pieces) == MAX_AT_ONCE:
            yield _HEAD.pack(len(pieces), 0) + b"".join(pieces)
            pieces = []
    if pieces:
        yield _HEAD.pack(len(pieces), 0) + b"".join(pieces)


def unpack_accounts(entry: bytes | memoryview) -> Iterator[ChannelCounters]:
    """Unpack an entry. Raises BadRecord."""
    try:
        channels, _ = _HEAD.unpack_from(entry)
        at = _HEAD.size
        for _ in range(channels):
            topic, channel, length, _ = _CHANNEL.unpack_from(entry, at)
            at += _CHANNEL.size
            packed = np.frombuffer(entry, "<u8", length, at)
            at += packed.nbytes
            counts = np.zeros(COUNTS, np.int64)
            numbers = packed >> np.uint64(_SHIFT)
            is_known = numbers < COUNTS
            counts[numbers[is_known]] = (packed & np.uint64(_MAX))[is_known]
            yield ChannelCounters(topic, channel, counts)
    except (struct.error, ValueError) as error:
        raise BadRecord(f"accounts that cannot be read: {error}") from error
