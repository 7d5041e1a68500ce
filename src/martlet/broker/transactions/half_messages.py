"""The store of half messages: keeps them, and publishes them when their transaction commits.

Delayed messages are published to their buckets (`martlet.broker.delayed.delayed_messages`), in the
same bundle as the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from martlet.broker.errors import LimitReached
from martlet.broker.journal.entries import HALF, HalfBatch, TopicEntry, TopicRecord
from martlet.broker.queue.queue_log import QueueLog
from martlet.broker.topic.registry import TopicRegistry
from martlet.broker.transactions.half_topic import HalfTopic, SentMessages, StoredHalf
from martlet.broker.transactions.publish import PendingCopy, forward
from martlet.broker.transactions.state import OpenTransaction, TransitionRefused
from martlet.log.index import Index
from martlet.log.record import BadRecord

if TYPE_CHECKING:
    from martlet.broker.delayed.delayed_messages import DelayedMessages
    from martlet.broker.topic.retained import Retained
    from martlet.broker.topic.topic import Topic
    from martlet.native.raw_bodies import Bodies


class TransactionContext(TopicRegistry, Protocol):
    """The broker's services for transactions."""

    delays: DelayedMessages


class HalfMessageStore:
    """The half messages of a broker.

    Args:
        context: the broker.

    Attributes:
        topic: stores them, once there were any.
    """

    def __init__(self, context: TransactionContext) -> None:
        self._context = context
        self.topic: HalfTopic | None = None
        self._journaled: dict[int, int] = {}
        """The log's position when a bundle first described each topic at a queue."""

    def made(self) -> HalfTopic:
        """Return the topic of half messages, created with the first one."""
        if self.topic is None:
            context = self._context
            id = context.next_id()
            index = Index(context.log.storage, id, 0)
            queue = QueueLog(context.log, id, 0, context.random.getrandbits(64), index, 0)
            half = HalfTopic(context, id, HALF, queue)
            context.journal_topology(id, TopicEntry(half.describe()))
            context.by_id[half.id] = half
            self.topic = half
        return self.topic

    def hold(self, transaction: OpenTransaction) -> None:
        """Keep the messages of a transaction."""
        if transaction.batch_count:
            assert self.topic is not None
            self.topic.held.update(b.first_offset for b in transaction.all_batches())

    def release(self, transaction: OpenTransaction) -> None:
        """Release the messages of a transaction."""
        if self.topic is not None:
            self.topic.held.difference_update(b.first_offset for b in transaction.all_batches())

    def forward(
        self,
        transaction: OpenTransaction,
        batches: Sequence[HalfBatch],
        entry: Callable[[Sequence[Retained]], bytes],
        to: str = "",
    ) -> int:
        """Publish messages to their topics, or all to one topic. Returns the position behind them.

        Raises TransitionRefused, LimitReached, or as `BrokerCore.topic`.
        """
        context, half = self._context, self.topic
        wanted: list[PendingCopy] = []
        try:
            for batch in batches:
                assert half is not None
                stored = half.get(batch.first_offset, transaction.id)
                part = _part(context.topic(to or batch.topic), batch.queue)
                wanted += [PendingCopy(part, stored)] if to else self._timed(part, stored)
            self._check_delayed(wanted)
            return forward(context, wanted, entry)
        except BadRecord as error:
            for name in transaction.branches:
                transaction.lose(name)
            raise TransitionRefused(
                f"messages of transaction {transaction.id!r} are lost: {error}; roll it back",
                transaction.state,
                is_incomplete=True,
            ) from error

    def publish(
        self,
        topic: str,
        queue: int,
        bodies: Bodies,
        entries: Sequence[tuple[int, bytes]],
        times: Sequence[tuple[int, int]],
        entry: Callable[[Sequence[Retained]], bytes],
    ) -> int:
        """Publish messages that were not stored as half messages. Returns the position behind them.

        Raises as `forward`.
        """
        context = self._context
        if not times:
            sent = SentMessages(bodies, entries)
            return forward(context, [PendingCopy(_part(context.topic(topic), queue), sent)], entry)
        batch = context.lend_scratch()
        try:
            batch.begin(0, 0)
            batch.add_bodies(bodies)
            stored = StoredHalf(*batch.frames(), entries, times)
            wanted = list(self._timed(_part(context.topic(topic), queue), stored))
            self._check_delayed(wanted)
            return forward(context, wanted, entry)
        finally:
            context.take_scratch(batch)

    def _timed(self, part: Topic, stored: StoredHalf) -> Iterator[PendingCopy]:
        """Yield messages by their delivery times, each with its target; due ones go to the topic
        itself.
        """
        if not stored.times:
            yield PendingCopy(part, stored)
            return
        now_ns = self._context.wall()
        first = 0
        for at_ns, count in stored.times:
            some = stored.cut(first, first + count)
            first += count
            if at_ns <= now_ns:
                yield PendingCopy(part, some)
            else:
                yield PendingCopy(self._context.delays.bucket(part, at_ns, count), some, at_ns)

    def _check_delayed(self, wanted: Sequence[PendingCopy]) -> None:
        delays = self._context.delays
        count = sum(each.stored.message_count for each in wanted if each.deliver_at_ns)
        if count and delays.max_count and delays.pending_count + count > delays.max_count:
            raise LimitReached(
                f"{count} messages of the transaction are delayed, {delays.pending_count} wait"
                f" already, and --max-delayed-messages is {delays.max_count}"
            )

    def news_of(self, topics: Sequence[Retained]) -> tuple[TopicRecord, ...]:
        """Return those topics whose journal entries a power cut may still lose."""
        log = self._context.log
        each_once = dict.fromkeys(some for each in topics for some in (each.target or each, each))
        # The creation of a part lies below the position at which it was first described.
        return tuple(
            part.describe()
            for topic in each_once
            for part in topic.parts
            if self._journaled.setdefault(part.id, log.position) > log.durable_position
        )


def _part(topic: Topic, queue: int) -> Topic:
    """Return a topic at one of its queues; the number may be beyond its queues."""
    if queue < 0:
        return topic.next_part()
    if queue < len(topic.parts):
        return topic.parts[queue]
    return topic.normal_parts[queue % len(topic.normal_parts)]
