"""Checkpoints, and the retirement of segments after one.

The broker begins a checkpoint, a job that may block makes it durable, and the broker ends it::

    loop      begin_checkpoint                                end_checkpoint: retire, clean
    thread                     flush the log | save the file
    on disk   old checkpoint                 | new checkpoint | unneeded segments retired

A segment is retired only after a checkpoint that no longer needs it is durable, so that a crash at
any moment finds either the old state with its segments or the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from martlet.broker.errors import WritesRefused
from martlet.broker.journal.entries import IndexRecord
from martlet.broker.retention.history import RetentionContext, history_of
from martlet.broker.topic.retained import Retained
from martlet.log import checkpoint_file
from martlet.log.commit_log import CommitLog
from martlet.log.index import Index
from martlet.log.record import BadRecord
from martlet.log.retention import (
    CLEAN_BELOW,
    Need,
    SegmentLocator,
    clean,
    needed_bytes,
    worth_cleaning,
)
from martlet.log.segmented import FlushJob, spans
from martlet.log.storage import DiskUsage, Segment, Storage

_DROP_ROWS = 1 << 14
"""An index file is rewritten when this many of its rows, and half of all, are not needed."""
_WRITTEN_AT_ONCE = 8
_ROWS_AT_ONCE = 1 << 16
MAX_MORE_SPARES = 16
"""The maximum number of extra segments that a busy broker keeps for reuse."""
MAX_SYNCED = 64
"""The number of index files that one checkpoint makes durable: flushes, and a stop, wait for that.
A start detects which others a power cut has lost, and rebuilds them from the log.
"""
_UNKNOWN = DiskUsage(0, 0)


@dataclass
class CheckpointJob:
    """A checkpoint in progress. Run `flush`, then `save`; both may block and raise OSError."""

    storage: Storage
    flush: FlushJob
    names: list[str]
    pack: Callable[[], bytes]
    """Lays out the checkpoint file."""
    free: list[Segment]
    to_clean: Segment | None
    forced: list[Segment] = field(default_factory=list)
    """Those of `free` that hold history within its limits."""
    history: set[int] = field(default_factory=set)
    """The bases of the segments that stay and hold only history."""
    fill: DiskUsage = _UNKNOWN
    """The disk usage, if history is kept."""
    dropped: list[str] = field(default_factory=list)
    passed: dict[Retained, int] = field(default_factory=dict)
    """For each topic, its channels have passed the voids below this offset."""
    floors: dict[Retained, int] = field(default_factory=dict)
    """The needs of each topic that the checkpoint is based on."""

    def save(self) -> None:
        """Make the indexes and then the checkpoint durable; the log is durable already."""
        for name in self.names:
            self.storage.sync(name)
        self.storage.replace(checkpoint_file.NAME, self.pack())


def count_needs(broker: RetentionContext) -> Iterator[None]:
    """Count the needed bytes from each topic's floor on, some rows at a time: `begin_checkpoint`
    counts those that are left, and there may be millions.
    """
    locator = SegmentLocator(broker.log.segments)
    now_ns = broker.stored_at_ns()
    for topic in list(broker.by_id.values()):
        queue, floor = topic.queue, topic.floor
        index = queue.index
        row = index.end_row if floor >= queue.end_offset else index.find(floor)
        yield from queue.counter.count(locator, row)
        history = history_of(topic, broker.settings.retention, now_ns)
        if history is not None:
            yield from history.count(locator, now_ns)


def needs(broker: RetentionContext) -> list[Need]:
    """Return the messages that channels, and future ones, need of the log."""
    for _ in count_needs(broker):
        pass
    return [
        Need(
            topic.queue.index,
            topic.queue.counter,
            topic.pending_below(topic.floor),
            None if topic.queue.history is None else topic.queue.history.counter,
        )
        for topic in broker.by_id.values()
    ]


def with_history(needed_by: list[Need]) -> list[Need]:
    """Return the needs with the history kept beside them; the same list if there is none."""
    if all(need.other is None for need in needed_by):
        return needed_by
    return [
        need
        if need.other is None or need.other.first_row >= need.counter.first_row
        else Need(need.index, need.other, need.below, need.counter)
        for need in needed_by
    ]


def write_some_indexes(broker: RetentionContext) -> Iterator[None]:
    """Write the new rows of all indexes, few files at a time: with thousands of new topics,
    `begin_checkpoint` would stop the broker for seconds. Raises OSError.
    """
    written = 0
    for topic in list(broker.by_id.values()):
        index = topic.queue.index
        if index.has_unwritten and not topic.ephemeral and broker.by_id.get(topic.id) is topic:
            index.write_new()
            written += 1
            if written % _WRITTEN_AT_ONCE == 0:
                yield


def begin_checkpoint(broker: RetentionContext) -> CheckpointJob:
    """Capture the current state. Raises OSError where an index cannot be written."""
    log = broker.log
    choice = _choose(broker)
    free = choice.free
    if free or log.retired_count != broker.shortened_at:
        broker.dropped_names += _shorten_indexes(broker, free)
    names = _write_indexes(broker)
    going = {segment.base for segment in free}
    pack = partial(
        checkpoint_file.pack,
        broker.snapshot(
            tuple(spans(s for s in log.segments if s.base not in going)),
            position=log.position,
            epoch=log.epoch,
            indexes={
                topic.id: IndexRecord(
                    topic.queue.index.first_row, topic.queue.index.stored, topic.queue.index.crc
                )
                for topic in broker.by_id.values()
                if not topic.ephemeral
            },
        ),
        epoch=log.epoch,
        stored_at_ns=broker.stored_at_ns(),
    )
    return CheckpointJob(
        log.storage,
        log.flush_job(),
        names,
        pack,
        free,
        choice.to_clean,
        choice.forced,
        choice.history,
        choice.fill,
        broker.dropped_names.copy(),
        {topic: topic.passed for topic in broker.by_id.values() if topic.voids},
        {topic: topic.floor for topic in broker.by_id.values()},
    )


class _Choice(NamedTuple):
    """The segments to retire and the one to clean; as in `CheckpointJob`."""

    free: list[Segment]
    to_clean: Segment | None
    forced: list[Segment]
    history: set[int]
    fill: DiskUsage


def _choose(broker: RetentionContext) -> _Choice:
    """Choose segments by needs, history and disk usage."""
    log = broker.log
    needed_by = needs(broker)
    needed = needed_bytes(log.segments, needed_by)
    kept_by = with_history(needed_by)
    if kept_by is needed_by:
        free = [s for s, n in zip(log.segments, needed, strict=True) if not n and _is_full(log, s)]
        return _Choice(free, worth_cleaning(log, needed, broker.not_cleanable), [], set(), _UNKNOWN)
    kept = needed_bytes(log.segments, kept_by)
    free = [s for s, n in zip(log.segments, kept, strict=True) if not n and _is_full(log, s)]
    history_only = [
        segment
        for segment, bytes_needed, bytes_kept in zip(log.segments, needed, kept, strict=True)
        if bytes_kept and not bytes_needed and _is_full(log, segment)
    ]
    fill = log.storage.fill()
    excess = broker.settings.watermarks.excess_bytes(fill) - sum(
        segment.capacity for segment in free
    )
    forced = []
    if excess > 0:
        while history_only and excess > 0:
            forced.append(history_only.pop(0))
            excess -= forced[-1].capacity
        to_clean = worth_cleaning(log, needed, broker.not_cleanable)
    elif broker.settings.watermarks.cleans(fill):
        to_clean = worth_cleaning(log, kept, broker.not_cleanable)
    else:
        history = [k - n for k, n in zip(kept, needed, strict=True)]
        to_clean = worth_cleaning(log, kept, broker.not_cleanable, history)
    return _Choice(free + forced, to_clean, forced, {s.base for s in history_only}, fill)


def keeps_history(broker: RetentionContext) -> bool:
    """Whether history of some topic was kept when it was last counted."""
    return any(topic.queue.history is not None for topic in broker.by_id.values())


def history_makes_room(broker: RetentionContext) -> bool:
    """Whether a checkpoint would retire a segment, by the counted needs; only if history is kept.
    Raises OSError.
    """
    return keeps_history(broker) and makes_room(broker)


def makes_room(broker: RetentionContext) -> bool:
    """Whether a checkpoint would retire a segment, by the counted needs, or let a full log retire
    one that holds only history. Raises OSError.
    """
    choice = _choose(broker)
    is_full = broker.log.full is not None
    return bool(choice.free) or (is_full and not choice.history <= broker.history_bases)


def leave_spent_segment(broker: RetentionContext) -> bool:
    """Begin another segment if messages are refused and little of the current one is needed: on a
    small disk all messages may be in it, and once it is closed it can be retired or cleaned.
    Returns whether it did, by the needs that `count_needs` has counted.
    """
    log = broker.log
    if log.full is None or not log.is_spent:
        return False
    current = log.segments[-1]
    needed = needed_bytes(log.segments, needs(broker))[-1]
    return needed < CLEAN_BELOW * current.capacity and log.leave_segment()


def _is_full(log: CommitLog, segment: Segment) -> bool:
    """Whether the segment is closed."""
    return segment.base + segment.capacity < log.position


def _write_indexes(broker: RetentionContext) -> list[str]:
    """Write all rows of the indexes to their files. Returns some files to be made durable."""
    names: list[str] = []
    for topic in broker.by_id.values():
        index = topic.queue.index
        if not topic.ephemeral:
            index.write()
            if not index.synced and len(names) < MAX_SYNCED:
                names.append(index.name)
                index.synced = True
    return names


def _shorten_indexes(broker: RetentionContext, free: list[Segment]) -> list[str]:
    """Rewrite index files that mostly cover retired segments. Returns the old files."""
    going = {segment.base for segment in free}
    log = broker.log
    broker.shortened_at = log.retired_count + len(free)
    oldest = next((s.base for s in log.segments if s.base not in going), log.position)
    dropped = []
    for topic in broker.by_id.values():
        index = topic.queue.index
        row = index.find(topic.lowest_needed)
        if topic.queue.history is not None:
            row = min(row, topic.queue.history.counter.first_row)
        if not may_shorten(index, row):
            continue
        row = _first_from(index, row, oldest)
        if row > index.first_row:
            dropped.append(index.name)
            index.drop_before(row)
    return dropped


def may_shorten(index: Index, row: int) -> bool:
    """Whether the rows before a row are enough to rewrite the file without them."""
    return row - index.first_row >= max(_DROP_ROWS, (index.end_row - index.first_row) // 2)


def _first_from(index: Index, row: int, position: int) -> int:
    """Return the first of the rows before `row` from which on all are at a position or behind."""
    while row > index.first_row:
        start = max(index.first_row, row - _ROWS_AT_ONCE)
        below = np.flatnonzero(index.array(start, row)["position"] < position)
        if len(below):
            return start + int(below[-1]) + 1
        row = start
    return row


def allow_spares(broker: RetentionContext) -> None:
    """Keep as many spares as were used lately, which is halved each time: to rewrite a file costs a
    fraction of writing a new one.
    """
    log = broker.log
    log.storage.allow_spares(min(log.begun_count, MAX_MORE_SPARES))
    log.begun_count //= 2


def end_checkpoint(broker: RetentionContext, job: CheckpointJob) -> None:
    """End a checkpoint whose job has run: retire unneeded segments, and clean one if worthwhile.
    Raises WritesRefused if cleaning has no space, or a flush has failed: then none is retired.
    """
    for _ in end_some(broker, job):
        pass


def end_some(broker: RetentionContext, job: CheckpointJob) -> Iterator[None]:
    """Run `end_checkpoint` in turns, since it may examine very much. The next checkpoint is not
    begun before this one has ended.
    """
    log = broker.log
    if log.failed is not None:
        raise WritesRefused(log.failed)
    assert log.checkpointed_position <= job.flush.position
    log.flushed(job.flush)
    log.checkpointed_position = job.flush.position
    broker.history_bases = job.history
    allow_spares(broker)
    # A channel created meanwhile may start below the captured floor: then only the next checkpoint
    # retires segments.
    if all(
        topic.floor >= floor or broker.by_id.get(topic.id) is not topic
        for topic, floor in job.floors.items()
    ):
        _retire_unneeded(broker, job)
    log.refresh_full()
    if job.to_clean is not None and job.to_clean in log.segments:
        try:
            yield from count_needs(broker)
            needed_by = needs(broker)
            spared = needed_by if job.forced else with_history(needed_by)
            for _ in clean(log, job.to_clean, spared):
                yield
                if job.to_clean not in log.segments:  # evicted meanwhile
                    return
        except BadRecord as error:
            # Delivery reports the loss to each channel; the segment stays until nothing needs it.
            broker.not_cleanable.add(job.to_clean.base)
            broker.lost("", "", 0, 0, f"a segment cannot be cleaned: {error}")


def forget(broker: RetentionContext, segment: Segment) -> None:
    """Forget a retired segment of which some batches are counted."""
    for topic in broker.by_id.values():
        queue = topic.queue
        queue.counter.forget(segment.base)
        if queue.history is not None:
            queue.history.counter.forget(segment.base)


def _retire_unneeded(broker: RetentionContext, job: CheckpointJob) -> None:
    log = broker.log
    for segment in job.free:
        if segment in log.segments:  # else evicted meanwhile
            assert segment.base + segment.capacity <= log.checkpointed_position
            log.retire(segment)
            if job.forced:
                forget(broker, segment)
        broker.not_cleanable.discard(segment.base)
    for name in job.dropped:
        log.storage.remove(name)
        broker.dropped_names.remove(name)
    for topic, passed in job.passed.items():
        # Only once a durable checkpoint has all cursors behind the void: of later entries a power
        # cut may lose the cursor's that had passed it, and keep a topic's without it.
        topic.voids = [void for void in topic.voids if void[1] > passed]
