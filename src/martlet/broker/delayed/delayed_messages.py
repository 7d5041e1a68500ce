"""Delayed messages: all messages of a broker that are not due yet.

Each waits in a bucket (`martlet.broker.delayed.bucket`) of its topic and is published to the topic
when it is due, so a channel created meanwhile gets it too. A message deferred by NSQ's DPUB belongs
to the channels that existed then: it is a pending message of each of them
(`martlet.broker.queue.pending`). Those take memory, so only `MAX_IN_CHANNELS` are kept there, and
further ones wait in buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from martlet.broker.delayed.bucket import Bucket, Delayed
from martlet.broker.delayed.done_bitmap import DoneBitmap
from martlet.broker.errors import LimitReached, WritesRefused
from martlet.broker.journal.entries import TopicDeletedEntry, TopicEntry
from martlet.broker.queue.queue_log import QueueLog, Receipt
from martlet.broker.topic.topic import Topic, TopicRegistry
from martlet.log.index import Index
from martlet.native.raw_bodies import Bodies

MINUTE_NS = 60 * 10**9
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS
WIDTHS_NS = ((HOUR_NS, 10 * MINUTE_NS), (DAY_NS, HOUR_NS))
"""Delays up to the first value use buckets as wide as the second; longer ones use a day's."""
MAX_IN_CHANNELS = 100_000
"""The maximum number of deferred messages that are pending, counted in each channel."""
_COUNTED_AGAIN = 1000
_PIECE_ROWS = 1 << 15


class ListingPosition(NamedTuple):
    """The position in a listing: behind this message."""

    deliver_at_ns: int
    """When it is due."""
    bucket: int
    """The bucket's number."""
    first_offset: int


class DelayedMessages:
    """The delayed messages of a broker, up to a maximum number; 0 for no limit."""

    def __init__(self, registry: TopicRegistry, max_count: int) -> None:
        self._registry = registry
        self.max_count = max_count
        self.pending_count = 0
        """The number of messages that are not due yet."""
        self._buckets: dict[int, dict[tuple[int, int], Bucket]] = {}
        """The buckets of each topic, by their time span."""
        self._room = 0
        """How many more messages fit into channels, until they are counted again."""
        self._passed_by = 0
        """How many messages go to buckets before the free capacity is counted again."""
        self._unseen: dict[Topic, int] = {}
        """By topic, the messages deferred since it was last counted that no channel has seen."""

    def buckets_of(self, topic: Topic) -> Iterable[Bucket]:
        """Return the buckets of a topic, of all its queues, in no order."""
        by_span = (self._buckets.get(queue_topic.id, {}) for queue_topic in topic.at_queues)
        return [bucket for buckets in by_span for bucket in buckets.values()]

    def pending_of(self, topic_number: int) -> int:
        """Return the number of a topic's messages in buckets, at one of its queues."""
        buckets = self._buckets.get(topic_number)
        return sum(bucket.pending_count for bucket in buckets.values()) if buckets else 0

    # publishing

    def defer(
        self,
        topic: Topic,
        bodies: Bodies,
        deliver_at_ns: int,
        properties: Sequence[tuple[int, bytes]] = (),
    ) -> Receipt:
        """Publish messages deferred as by NSQ: each existing channel gets them when they are due.
        Raises WritesRefused.
        """
        if self._room < len(bodies) and self._passed_by == 0:
            self._room = self._count_room()
            self._passed_by = 0 if self._room >= len(bodies) else _COUNTED_AGAIN
        if self._room >= len(bodies):
            self._room -= len(bodies)
            self._unseen[topic] = self._unseen.get(topic, 0) + len(bodies)
            return topic.stage(bodies, deliver_at_ns, properties)
        self._passed_by -= 1
        return self.publish(topic, bodies, deliver_at_ns, properties)[2]

    def _count_room(self) -> int:
        """Count the room for deferred messages in channels; little, since channels may be added."""
        taken = 0
        for topic in list(self._unseen):
            if (topic.channels and not topic.paused) or topic.id not in self._registry.queues:
                del self._unseen[topic]
        for topic in self._registry.queues.values():
            taken += self._unseen.get(topic, 0)
            channels = topic.channels.values()
            taken += sum(channel.cursor.pending.waiting_count for channel in channels)
        return min(_COUNTED_AGAIN, MAX_IN_CHANNELS - taken)

    def publish(
        self,
        topic: Topic,
        bodies: Bodies,
        deliver_at_ns: int,
        properties: Sequence[tuple[int, bytes]] = (),
    ) -> tuple[Bucket, int, Receipt]:
        """Publish messages that the topic gets at a time. Returns their bucket, and the offset of
        the first one there. Raises LimitReached and WritesRefused.
        """
        bucket = self.bucket(topic, deliver_at_ns, len(bodies))
        first = bucket.queue.end_offset
        return bucket, first, bucket.stage(bodies, deliver_at_ns, properties)

    def bucket(self, topic: Topic, deliver_at_ns: int, count: int) -> Bucket:
        """Return the bucket for `count` messages of a topic that are due at a time; the caller
        stages them there, for that time.

        Raises:
            LimitReached: too many wait already.
            WritesRefused: a new bucket could not be journaled.
        """
        if self.max_count and self.pending_count + count > self.max_count:
            raise LimitReached(
                f"{self.pending_count} delayed messages wait already, and --max-delayed-messages is"
                f" {self.max_count}; wait until some are due, or cancel some"
            )
        registry = self._registry
        delay_ns = deliver_at_ns - registry.wall()
        width_ns = next((width for max_count, width in WIDTHS_NS if delay_ns <= max_count), DAY_NS)
        start_ns = deliver_at_ns - deliver_at_ns % width_ns
        end_ns = start_ns + width_ns
        bucket = self._buckets.get(topic.id, {}).get((start_ns, end_ns))
        if bucket is None:
            id = registry.next_id()
            index = Index(registry.log.storage, id, 0)
            id_base = registry.random.getrandbits(48) << 16
            queue = QueueLog(registry.log, id, 0, id_base, index, 0)
            bucket = Bucket(registry, self, id, topic, start_ns, end_ns, queue, DoneBitmap())
            registry.journal_topology(id, TopicEntry(bucket.describe()))
            self.adopt(bucket)
        return bucket

    def follow_wall(self) -> None:
        """Let the buckets keep their dates after the wall clock was set."""
        for buckets in self._buckets.values():
            for bucket in buckets.values():
                bucket.follow_wall()

    def adopt(self, bucket: Bucket) -> None:
        """Add a bucket."""
        self._registry.by_id[bucket.id] = bucket
        buckets = self._buckets.setdefault(bucket.target.id, {})
        buckets[bucket.start_ns, bucket.end_ns] = bucket
        self.pending_count += bucket.pending_count

    # listing

    def listing(
        self, topic: Topic, behind: ListingPosition | None, max_count: int
    ) -> Iterator[list[tuple[ListingPosition, Delayed]] | None]:
        """List messages of a topic by due time, from a position on: at least `max_count` if there
        are as many, in complete batches. Yields None while it searches, since there may be very
        many, and at last the list, each message with its position.
        """
        keys: list[ListingPosition] = []
        for bucket in self.buckets_of(topic):
            index = bucket.queue.index
            row = index.find(bucket.lowest_needed)
            while row < index.end_row:
                keys = sorted([*keys, *_first(bucket, row, behind, max_count)])[:max_count]
                row += _PIECE_ROWS
                yield None
        buckets = {bucket.id: bucket for bucket in self.buckets_of(topic)}
        listed: list[tuple[ListingPosition, Delayed]] = []
        for key in keys:
            bucket_there = buckets.get(key.bucket)
            if len(listed) < max_count and bucket_there is not None:
                listed += [(key, message) for message in bucket_there.delayed(key.first_offset)]
        yield listed

    # cancelling

    def cancel(self, topic: Topic, ids: Sequence[bytes]) -> set[bytes]:
        """Cancel delayed messages by their ids. Returns which of them were waiting. Raises
        WritesRefused.
        """
        numbers = np.fromiter((int(id, 16) for id in ids), np.uint64, len(ids))
        cancelled = np.zeros(len(ids), np.bool_)
        for bucket in self.buckets_of(topic):
            cancelled |= bucket.cancel(numbers)
        return {ids[index] for index in np.flatnonzero(cancelled).tolist()}

    def cancel_all(self, topic: Topic) -> None:
        """Cancel all delayed messages of a topic. Raises WritesRefused."""
        for bucket in self.buckets_of(topic):
            bucket.cancel_all()

    def drop(self, bucket: Bucket) -> bool:
        """Delete a bucket whose time is over and that is done. Returns False if it must stay."""
        try:
            self._registry.journal_topology(bucket.id, TopicDeletedEntry(bucket.id))
        except WritesRefused:
            return False
        self._remove(bucket)
        return True

    def topic_deleted(self, topic: Topic) -> None:
        """Delete the buckets of a deleted topic at a queue; the deletion is journaled already."""
        for bucket in list(self._buckets.get(topic.id, {}).values()):
            self.pending_count -= bucket.pending_count
            self._remove(bucket)

    def _remove(self, bucket: Bucket) -> None:
        buckets = self._buckets[bucket.target.id]
        assert buckets[bucket.start_ns, bucket.end_ns] is bucket and self.pending_count >= 0
        del buckets[bucket.start_ns, bucket.end_ns], self._registry.by_id[bucket.id]
        if not buckets:
            del self._buckets[bucket.target.id]
        self._registry.dropped_names.append(bucket.queue.index.name)
        bucket.close()


def _first(
    bucket: Bucket, row: int, behind: ListingPosition | None, max_count: int
) -> list[ListingPosition]:
    """Return the first of a bucket's rows by due time, from row `row` on and behind a position."""
    rows = bucket.queue.index.array(row, row + _PIECE_ROWS)
    rows = rows[~bucket.are_done(rows)]
    if behind is not None:
        rows = rows[rows["deliver_at_ns"] >= behind.deliver_at_ns]
    positions: list[ListingPosition] = []
    for index in np.argsort(rows["deliver_at_ns"], kind="stable").tolist():
        due_ns, first = int(rows["deliver_at_ns"][index]), int(rows["first_offset"][index])
        position = ListingPosition(due_ns, bucket.id, first)
        if behind is None or position > behind:
            positions.append(position)
        if len(positions) >= max_count:
            break
    return positions
