"""The account: what a channel has done since the broker was started, as the log keeps it.

Whoever audits a log asks how many messages a channel has handed out, had back, given up and
finished, in which hour, and after how long.  A cursor tells which messages are finished and no
more; what becomes of each one is told only where it is traced (`martlet.broker.tracing.recorder`).
So the counts that a channel keeps anyway are written beside its cursor, one record for many
channels::

     0 channels u32 | 4 reserved u32
     8 topic u32 | channel u32 | counts u32 | 0      once for each channel, and behind it
    24 counts x u64: the count's number << 56 | how much, for each that is not 0

They are counted from the start of the broker, whose number stands in each record's header, and
never told as differences: one that is missing costs nothing but the time in which it happened. From
the first count of `FIRST_BUCKET` on they say how many messages were finished within each of the
bounds of `martlet.broker.tracing.finish_ages`.  A crash takes what was not yet written, at most
what the journal's interval holds; what it took of the cursor happens again.

Nothing is restored from these records; they hold no segment back and go with the one that they are
in, and where there is no room for them they are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from martlet.broker.errors import WritesRefused
from martlet.broker.tracing.finish_ages import BOUNDS_NS
from martlet.log.record import BadRecord, RecordKind, record_length

if TYPE_CHECKING:
    from martlet.broker.tracing.finish_ages import FinishAges
    from martlet.log.commit_log import CommitLog

MAX_AT_ONCE = 1024
"""So many channels stand in one record."""
_HEAD = struct.Struct("<II")
_CHANNEL = struct.Struct("<IIII")
_SHIFT = 56
_MAX = (1 << _SHIFT) - 1
_MILLISECOND_NS = 1_000_000


class ChannelCount(IntEnum):
    """What is counted, beside the buckets."""

    DELIVERED = 0
    """Messages that went to consumers, those that went again too."""
    RETRIED = 1
    """Those of them that had been delivered before."""
    REQUEUED = 2
    TIMED_OUT = 3
    DEAD = 4
    """Messages that went to the channel's dead-letter topic."""
    DROPPED = 5
    """Messages that were given up, to make room or since an ephemeral channel keeps no more."""
    COMMITTED = 6
    """Messages below an offset that a group has committed."""
    TOOK_MS = 7
    """How long all that were finished took together, from publish to finish."""


FIRST_BUCKET = 16
COUNTS = FIRST_BUCKET + len(BOUNDS_NS) + 1
"""How many counts there are at most, buckets among them."""


class ChannelCounters(NamedTuple):
    """What a record tells of one channel."""

    topic: int
    channel: int
    counts: npt.NDArray[np.int64]


class CountedChannel(Protocol):
    """A channel at one queue, by what is counted of it."""

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
    def delivered_count(self) -> int:
        """How many messages have gone to consumers, those delivered again too."""


def counts_of(channel: CountedChannel) -> list[int]:
    """The counts of a channel as they are now, each with its number, but for those that are 0."""
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
    ]
    found = [number << _SHIFT | count for number, count in enumerate(totals) if count]
    found += [
        number << _SHIFT | count
        for number, count in enumerate(finishes.counts, FIRST_BUCKET)
        if count
    ]
    return found


def write_accounts(log: CommitLog, now_ns: int, channels: Iterable[CountedChannel]) -> None:
    """Write down what channels have done, if there is room in the segment: the next one begins
    with that anyway, and none is begun for it.
    """
    with suppress(WritesRefused):
        for entry in pack_accounts(channels):
            if record_length(len(entry), 0) > log.left_bytes:
                return
            log.append_journal(
                RecordKind.ACCOUNTS, entry, topic=0, stored_at_ns=now_ns, needed=False
            )


def pack_accounts(channels: Iterable[CountedChannel]) -> Iterator[bytes]:
    """Entries that tell the accounts of channels; those that have done nothing are left out."""
    parts: list[bytes] = []
    for channel in channels:
        counts = counts_of(channel)
        if not counts:
            continue
        head = _CHANNEL.pack(channel.topic_id, channel.id, len(counts), 0)
        parts.append(head + struct.pack(f"<{len(counts)}Q", *counts))
        if len(parts) == MAX_AT_ONCE:
            yield _HEAD.pack(len(parts), 0) + b"".join(parts)
            parts = []
    if parts:
        yield _HEAD.pack(len(parts), 0) + b"".join(parts)


def unpack_accounts(entry: bytes | memoryview) -> Iterator[ChannelCounters]:
    """What an entry tells. Raises BadRecord."""
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
            known = numbers < COUNTS
            counts[numbers[known]] = (packed & np.uint64(_MAX))[known]
            yield ChannelCounters(topic, channel, counts)
    except (struct.error, ValueError) as error:
        raise BadRecord(f"accounts that can not be read: {error}") from error
