"""Checkpoints, and what can be let go after one.

A checkpoint is begun by the broker, made durable by a job that may block, and ended by the broker
again.  A segment is let go only after a checkpoint that no longer needs it is durable, so that a
crash at any moment finds either the old state with its segments or the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from martlet.broker.broker import Broker
from martlet.broker.errors import WritesRefused
from martlet.broker.topic import Topic
from martlet.log import checkpoint
from martlet.log.commitlog import FlushJob
from martlet.log.index import Index
from martlet.log.record import BadRecord
from martlet.log.retention import Need, Places, clean, needed_bytes, worth_cleaning
from martlet.log.storage import Segment, Storage

_DROP_ROWS = 1 << 14
"""An index file is begun anew when so many of its rows, and half of all, are not needed."""
_WRITTEN_AT_ONCE = 8
_ROWS_AT_ONCE = 1 << 16
MOST_MORE_SPARES = 16
"""How many segments a busy broker keeps to be written again, beside the usual ones."""
MOST_SYNCED = 64
"""How many index files one checkpoint makes durable: flushes, and a stop, wait for that.

Those of which that was not done may be lost in a power cut; a start finds that out, and makes them
from the log.
"""


@dataclass
class CheckpointJob:
    """A checkpoint on its way. Run `flush`, then `save`; both may block and raise OSError."""

    storage: Storage
    flush: FlushJob
    names: list[str]
    pack: Callable[[], bytes]
    """Lays the file out, of what it is to say."""
    free: list[Segment]
    to_clean: Segment | None
    dropped: list[str] = field(default_factory=list)
    passed: dict[Topic, int] = field(default_factory=dict)
    """Up to where each topic's channels are through what was emptied."""
    floors: dict[Topic, int] = field(default_factory=dict)
    """What of each topic was taken to be needed."""

    def save(self) -> None:
        """Make the indexes and then the checkpoint durable, the log being so already."""
        for name in self.names:
            self.storage.sync(name)
        self.storage.replace(checkpoint.NAME, self.pack())


def count_needs(broker: Broker) -> Iterator[None]:
    """Count what is needed of the log from each topic's floor on, some rows at a time, so that
    `begin_checkpoint` has few left: there may be millions.
    """
    places = Places(broker.log.segments)
    for topic in list(broker.by_id.values()):
        queue, floor = topic.queue, topic.floor
        index = queue.index
        row = index.end_row if floor >= queue.end_offset else index.find(floor)
        yield from queue.tally.count(places, row)


def needs(broker: Broker) -> list[Need]:
    """What the broker's queues need of the log."""
    for _ in count_needs(broker):
        pass
    return [
        Need(topic.queue.index, topic.queue.tally, topic.stragglers_below(topic.floor))
        for topic in broker.by_id.values()
    ]


def write_some_indexes(broker: Broker) -> Iterator[None]:
    """Write the new rows of all indexes, few files at a time, so that `begin_checkpoint` has few
    left: with thousands of new topics it would stop the broker for seconds.

    Raises OSError.
    """
    written = 0
    for topic in list(broker.by_id.values()):
        index = topic.queue.index
        if index.has_unwritten and not topic.ephemeral and broker.by_id.get(topic.id) is topic:
            index.write_new()
            written += 1
            if written % _WRITTEN_AT_ONCE == 0:
                yield


def begin_checkpoint(broker: Broker) -> CheckpointJob:
    """Take the state down as it is now. Raises OSError where an index can't be written."""
    log = broker.log
    needed_by = needs(broker)
    needed = needed_bytes(log.segments, needed_by)
    free = [
        segment
        for segment, bytes_needed in zip(log.segments, needed, strict=True)
        if not bytes_needed and segment.base + segment.capacity < log.position
    ]
    to_clean = worth_cleaning(log, needed, broker.left_alone)
    if free or log.retired_count != broker.shortened_at:
        broker.dropped_names += _shorten_indexes(broker, free)
    names = _write_indexes(broker)
    pack = partial(
        checkpoint.pack,
        broker.snapshot(
            position=log.position,
            epoch=log.epoch,
            indexes={
                topic.id: (
                    topic.queue.index.first_row,
                    topic.queue.index.stored,
                    topic.queue.index.crc,
                )
                for topic in broker.by_id.values()
                if not topic.ephemeral
            },
        ),
        epoch=log.epoch,
        stored_at_ns=broker.clock(),
    )
    return CheckpointJob(
        log.storage,
        log.flush_job(),
        names,
        pack,
        free,
        to_clean,
        broker.dropped_names.copy(),
        {topic: topic.passed for topic in broker.by_id.values() if topic.voids},
        {topic: topic.floor for topic in broker.by_id.values()},
    )


def _write_indexes(broker: Broker) -> list[str]:
    """Write all rows of the indexes to their files. Returns some files to be made durable."""
    names: list[str] = []
    for topic in broker.by_id.values():
        index = topic.queue.index
        if not topic.ephemeral:
            index.write()
            if not index.synced and len(names) < MOST_SYNCED:
                names.append(index.name)
                index.synced = True
    return names


def _shorten_indexes(broker: Broker, free: list[Segment]) -> list[str]:
    """Begin index files anew that tell mostly of segments that go. Returns the old files."""
    going = {segment.base for segment in free}
    log = broker.log
    broker.shortened_at = log.retired_count + len(free)
    oldest = next((s.base for s in log.segments if s.base not in going), log.position)
    dropped = []
    for topic in broker.by_id.values():
        index = topic.queue.index
        row = index.find(topic.lowest_needed)
        rows_gone = row - index.first_row
        if rows_gone < max(_DROP_ROWS, (index.end_row - index.first_row) // 2):
            continue
        row = _first_from(index, row, oldest)
        if row > index.first_row:
            dropped.append(index.name)
            index.drop_before(row)
    return dropped


def _first_from(index: Index, row: int, position: int) -> int:
    """The first of the rows before a row that are all at a position or behind it."""
    while row > index.first_row:
        start = max(index.first_row, row - _ROWS_AT_ONCE)
        below = np.flatnonzero(index.array(start, row)["position"] < position)
        if len(below):
            return start + int(below[-1]) + 1
        row = start
    return row


def allow_spares(broker: Broker) -> None:
    """Keep as many spares as were used lately, which is halved each time.

    To write a file again costs a fraction of writing a fresh one: its blocks are there, and most
    of its pages are in memory.
    """
    log = broker.log
    log.storage.allow_spares(min(log.begun_count, MOST_MORE_SPARES))
    log.begun_count //= 2


def end_checkpoint(broker: Broker, job: CheckpointJob) -> None:
    """The job has run: let go what is not needed, and clean where that pays.

    Raises WritesRefused where cleaning found no room, or a flush has failed meanwhile: then the
    log is kept whole.  Nothing is lost by that.
    """
    for _ in end_some(broker, job):
        pass


def end_some(broker: Broker, job: CheckpointJob) -> Iterator[None]:
    """The same, in turns, since there may be very much to look at. The next checkpoint is not
    begun before this one has ended.
    """
    log = broker.log
    if log.failed is not None:
        raise WritesRefused(log.failed)
    log.flushed(job.flush)
    log.told_position = job.flush.position
    allow_spares(broker)
    # A channel made meanwhile may begin before what was needed then: the next one lets go.
    if all(
        topic.floor >= floor or broker.by_id.get(topic.id) is not topic
        for topic, floor in job.floors.items()
    ):
        _let_go(broker, job)
    log.look_for_room()
    if job.to_clean is not None and job.to_clean in log.segments:
        try:
            yield from count_needs(broker)
            for _ in clean(log, job.to_clean, needs(broker)):
                yield
                if job.to_clean not in log.segments:  # evicted meanwhile
                    return
        except BadRecord as error:
            # Who is to get it is told again. The segment goes when nobody needs it.
            broker.left_alone.add(job.to_clean.base)
            broker.lost("", "", 0, 0, f"a segment can not be cleaned: {error}")


def _let_go(broker: Broker, job: CheckpointJob) -> None:
    log = broker.log
    for segment in job.free:
        if segment in log.segments:  # and not evicted meanwhile
            log.retire(segment)
        broker.left_alone.discard(segment.base)
    for name in job.dropped:
        log.storage.remove(name)
        broker.dropped_names.remove(name)
    for topic, passed in job.passed.items():
        topic.drop_voids(passed)
