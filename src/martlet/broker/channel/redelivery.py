"""Failures: what a channel does with messages that are not finished in time.

A consumer may give one back (REQ), or ask for more time (TOUCH).  What was not finished comes
again, by NSQ's rules or by the channel's policy (see `martlet.broker.retry`), or is a dead
letter. Messages that are on their way to another topic are set aside meanwhile: stragglers that
nobody, a consumer with the number 0, has in flight.  A restart finds them due.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from martlet.broker.channel.delivery import ChannelContext, Delivery, Source, Waiting
from martlet.broker.dead_letters.dead_letter import MAX_ERROR_LENGTH
from martlet.broker.errors import NotInFlight
from martlet.broker.offset_ranges import apart_from
from martlet.broker.policy import ChannelPolicy
from martlet.broker.queue.consumer import NOBODY, ChannelConsumer
from martlet.broker.queue.pending import PendingMessage
from martlet.broker.retry import Cause, RetryPolicy
from martlet.broker.tracing.recorder import TraceStep

if TYPE_CHECKING:
    from martlet.broker.dead_letters.dead_letter import DeadLetterReason
    from martlet.broker.queue.consumer import Lease
    from martlet.broker.queue.cursor import Cursor
    from martlet.broker.queue.started import Rank

NEVER_NS = 1 << 62
_STEPS = {
    Cause.REQUEUED: TraceStep.REQUEUED,
    Cause.TIMED_OUT: TraceStep.TIMED_OUT,
    Cause.GIVEN_BACK: TraceStep.GIVEN_BACK,
}


class Redelivery(Delivery):
    """The part of a channel that deals with messages that were not finished.

    Args:
        context, cursor, source, waiting: see `Delivery`.
        max_timeout_ns: how long TOUCH may keep a message in flight.
    """

    def __init__(
        self,
        context: ChannelContext,
        cursor: Cursor,
        source: Source,
        waiting: dict[Waiting, None],
        max_timeout_ns: int,
    ) -> None:
        super().__init__(context, cursor, source, waiting)
        self.consumers: list[ChannelConsumer] = []
        self.timeout_count = 0
        self.requeue_count = 0
        self.committed_count = 0
        """Messages below an offset that was committed since then, where it is a group."""
        self.dead_letter_count = 0
        """Messages that went to its dead-letter topic since the broker was started."""
        self.closed = False
        """Whether it was deleted."""
        self._policy = ChannelPolicy()
        self._retry: RetryPolicy | None = None
        self._aside = ChannelConsumer(NOBODY, 0, 0)
        self._max_timeout_ns = max_timeout_ns

    @property
    def retries(self) -> bool:
        """Whether the broker decides about messages that fail."""
        return self._retry is not None

    @property
    def max_attempts(self) -> int:
        """How often a message may fail; -1 for ever, 0 where failures are not counted."""
        return 0 if self._retry is None else self._retry.max_attempts or -1

    @property
    def policy(self) -> ChannelPolicy:
        """What is set for it."""
        return self._policy

    @policy.setter
    def policy(self, policy: ChannelPolicy) -> None:
        self._policy = policy
        self._retry = RetryPolicy.of(policy)
        self.counts_failures = self._retry is not None

    # what consumers answer

    def requeue(
        self,
        consumer: ChannelConsumer,
        offset: int,
        delay_ns: int,
        error: str = "",
        cause: Cause = Cause.REQUEUED,
    ) -> None:
        """REQ: the message has failed, and is delivered again after a delay, unless the channel's
        policy has it otherwise (see `martlet.broker.retry`). What is given back has not
        failed.

        Raises NotInFlight.
        """
        held = self._let_go(consumer, offset)
        self._note_error(offset, error)
        now_ns = self._context.clock()
        failed = cause is not Cause.GIVEN_BACK
        if failed:
            self._note_answer(consumer, offset, held)
        self._again(
            offset, held, now_ns, cause, delay_ns, failed=failed, consumer=consumer, error=error
        )
        consumer.in_flight_count -= 1
        consumer.requeue_count += 1
        self.requeue_count += 1
        self._changed()
        self.resume(consumer)
        self.pump()

    def give_back(
        self, consumer: ChannelConsumer, offsets: Iterable[int], *, is_started: bool = False
    ) -> int:
        """A client does not go on with these: they come again at once, and have not failed. Where
        it had not started them, their delivery is no attempt. Returns how many were in flight.
        """
        now_ns, count = self._context.clock(), 0
        for offset in offsets:
            try:
                held = self._let_go(consumer, offset)
            except NotInFlight:
                continue  # Its time was over: others have it already.
            held.attempts -= not is_started
            if not held.attempts:
                self.retry_count += 1  # It shows no other way that it is delivered again.
            self._again(offset, held, now_ns, Cause.GIVEN_BACK, failed=False, consumer=consumer)
            count += 1
        consumer.in_flight_count -= count
        consumer.requeue_count += count
        self.requeue_count += count
        self._changed()
        self.resume(consumer)
        self.pump()
        return count

    def reject(
        self, consumer: ChannelConsumer, offset: int, reason: DeadLetterReason, error: str = ""
    ) -> None:
        """A consumer says that a message should not come again: it becomes a dead letter.

        Raises NotInFlight.
        """
        held = self._let_go(consumer, offset)
        self._note_answer(consumer, offset, held)
        self._note_error(offset, error)
        self._bury(offset, held.attempts, held.failures + 1, reason)
        consumer.in_flight_count -= 1
        self._changed()
        self.resume(consumer)

    def touch(self, consumer: ChannelConsumer, offset: int) -> None:
        """TOUCH: the message's timeout begins anew, up to the maximum since it was delivered.

        Raises NotInFlight.
        """
        held = self._let_go(consumer, offset)
        deadline_ns = min(
            self._context.clock() + consumer.timeout_ns, held.delivered_at_ns + self._max_timeout_ns
        )
        self.cursor.stragglers.hold(
            offset,
            held.attempts,
            consumer,
            held.delivered_at_ns,
            deadline_ns,
            held.failures,
            held.rank,
            held.asked_rank,
        ).is_suspect = held.is_suspect
        consumer.settle_progress()
        consumer.progress.touched(held.rank, offset, deadline_ns)
        self._alarm.at(deadline_ns)
        self._changed()

    def started(self, consumer: ChannelConsumer, offset: int) -> None:
        """STARTED: the consumer handles this one from now on, and had begun with all that was
        delivered to it before. Raises NotInFlight.
        """
        if self.cursor.window.holds(consumer.number, offset):
            rank = consumer.lease_of(offset).rank
        elif (straggler := self.cursor.stragglers.get(offset, consumer)) is not None:
            rank = straggler.rank
        else:
            raise self._not_in_flight(consumer, offset)
        consumer.progress.started(rank, offset)

    def _let_go(self, consumer: ChannelConsumer, offset: int) -> PendingMessage[ChannelConsumer]:
        """Take a message in flight out of the window; what it would be as a straggler. One that is
        a straggler is left for the caller to put elsewhere.
        """
        cursor = self.cursor
        if cursor.window.holds(consumer.number, offset):
            lease = consumer.lease_of(offset)
            cursor.window.release(offset)
            return _leased(consumer, lease)
        straggler = cursor.stragglers.get(offset, consumer)
        if straggler is None:
            raise self._not_in_flight(consumer, offset)
        return straggler

    def _note_answer(
        self, consumer: ChannelConsumer, offset: int, held: PendingMessage[ChannelConsumer]
    ) -> None:
        consumer.progress.answered(held.asked_rank, offset)

    def _not_in_flight(self, consumer: ChannelConsumer, offset: int) -> NotInFlight:
        consumer.progress.answered_late(self._context.clock())
        straggler = self.cursor.stragglers.by_offset.get(offset)
        owner = straggler and straggler.owner
        if self.cursor.window.is_held(offset) or (owner and owner is not self._aside):
            return NotInFlight("client does not own message")
        return NotInFlight("ID not in flight")

    # what they do not answer

    def charged(self, consumer: ChannelConsumer) -> Collection[int]:
        """The offsets of what a client that is lost held and may have started to handle."""
        return charged_of([(self, consumer)])[0]

    def held_by(self, consumer: ChannelConsumer) -> list[tuple[Rank, int]]:
        """What a consumer holds, and since when."""
        window = self.cursor.window
        ranks = [
            ((lease.rank, offset), lease.deadline_ns - consumer.timeout_ns)
            for lease in consumer.leases
            for offset in window.held_by(consumer.number, lease.first, lease.end)
        ]
        owned = self.cursor.stragglers.owned_by(consumer)
        return ranks + [((each.rank, offset), each.delivered_at_ns) for offset, each in owned]

    def _take_back(self, consumer: ChannelConsumer, charged: Collection[int]) -> None:
        """What a consumer holds is delivered to others; these have failed."""
        now_ns = self._context.clock()
        lost = [
            (lease.rank, offset, _leased(consumer, lease))
            for lease in consumer.leases
            for offset in self._release(consumer, lease)
        ]
        owned = self.cursor.stragglers.owned_by(consumer)
        lost += [(straggler.rank, offset, straggler) for offset, straggler in owned]
        for _, offset, held in sorted(lost, key=_by_rank):
            failed = offset in charged
            self._again(offset, held, now_ns, Cause.GIVEN_BACK, failed=failed, consumer=consumer)

    def _time_out(self, now_ns: int) -> int:
        """Have what has timed out delivered again. Returns how many those were."""
        late: list[tuple[int, int, PendingMessage[ChannelConsumer]]] = []
        for consumer in self.consumers:
            leases = consumer.leases
            if not leases or leases[0].deadline_ns > now_ns:
                continue
            consumer.settle_progress()
            while leases and leases[0].deadline_ns <= now_ns:
                lease = leases.popleft()
                held = _leased(consumer, lease)
                late += [(lease.rank, offset, held) for offset in self._release(consumer, lease)]
        for offset, straggler in self.cursor.stragglers.expire(now_ns):
            assert straggler.owner is not None
            straggler.owner.settle_progress()
            late.append((straggler.rank, offset, straggler))
        for rank, offset, held in sorted(late, key=_by_rank):
            owner = held.owner
            assert owner is not None
            owner.in_flight_count -= 1
            failed = owner.progress.charges(rank, offset, held.delivered_at_ns, now_ns)
            owner.progress.timed_out()
            again = self._again(
                offset, held, now_ns, Cause.TIMED_OUT, failed=failed, consumer=owner
            )
            if again is not None:
                again.last_progress, again.asked_rank = owner.progress, held.asked_rank
        self.timeout_count += len(late)
        return len(late)

    def _release(self, consumer: ChannelConsumer, lease: Lease) -> list[int]:
        held = self.cursor.window.release_range(consumer.number, lease.first, lease.end)
        offsets: list[int] = held.tolist()
        return offsets

    def _again(
        self,
        offset: int,
        held: PendingMessage[ChannelConsumer],
        now_ns: int,
        cause: Cause,
        delay_ns: int = 0,
        *,
        failed: bool,
        consumer: ChannelConsumer,
        error: str = "",
    ) -> PendingMessage[ChannelConsumer] | None:
        """A message was not finished, and nobody has it any more, a consumer had: it comes again,
        or is given up. Returns what it is from now on, where it comes again.
        """
        retry, attempts, failures = self._retry, held.attempts, held.failures + failed
        is_over = failed and retry is not None and retry.is_over(failures)
        if is_over and cause is Cause.GIVEN_BACK:
            is_over = consumer.progress.is_blamed_for(is_suspect=held.is_suspect)
        if failed and retry is not None and not is_over:
            delay_ns = retry.delay_ns(failures, cause, delay_ns)
        if self.trail is not None:
            end, step = offset + 1, _STEPS[cause]
            self.trail.note(step, offset, end, now_ns, consumer, attempts, delay_ns, error)
        if is_over:
            self._bury(offset, attempts, failures, cause.value)
            return None
        again = self.cursor.stragglers.wait(offset, attempts, now_ns + delay_ns, now_ns, failures)
        again.is_suspect = cause is Cause.GIVEN_BACK if failed else held.is_suspect
        if delay_ns:
            self._alarm.at(now_ns + delay_ns)
        return again

    def _note_error(self, offset: int, error: str) -> None:
        if error:
            self.cursor.stragglers.note_error(offset, error[:MAX_ERROR_LENGTH])

    @abstractmethod
    def _bury(self, offset: int, attempts: int, failures: int, reason: DeadLetterReason) -> None:
        """A message that nobody has is to become a dead letter."""

    # messages on their way elsewhere

    def set_aside(self, offset: int, attempts: int, failures: int = 0) -> None:
        """A message that nobody has is kept from all consumers."""
        if not self.is_aside(offset):
            self._aside.in_flight_count += 1
        now_ns = self._context.clock()
        failures = max(failures, self._failures(offset))
        self.cursor.stragglers.hold(offset, attempts, self._aside, now_ns, NEVER_NS, failures)
        self._changed()

    def is_aside(self, offset: int) -> bool:
        """Whether it still is."""
        return not self.closed and self.cursor.stragglers.get(offset, self._aside) is not None

    def let_aside_go(self, offset: int) -> None:
        """It has arrived, or is not there any more."""
        self.cursor.stragglers.remove(offset)
        self._aside.in_flight_count -= 1
        self._changed()
        self.pump()  # In order, the next one may have waited for it.

    def let_go(self, offset: int) -> None:
        """A message that nobody has is as good as finished."""
        self.cursor.stragglers.remove(offset)
        self._changed()
        self.pump()

    def unroll(self, end: int) -> None:
        """Have every message below an offset stand by itself, as those do that come again, so that
        any of them may be taken; what was never delivered is ready.
        """
        cursor, source = self.cursor, self.source
        if end <= cursor.next:
            return
        now_ns = self._context.clock()
        for first, stop in source.stretches(cursor.next, end):
            deferred = cursor.queue.index.deferred(first, min(stop, source.limit))
            for part in apart_from(deferred, first, stop):
                for offset in range(*part):
                    cursor.stragglers.wait(offset, 0, now_ns, now_ns)
        cursor.skip_to(end, source.deferred_from(end))
        self._changed()

    def put_back(self, offset: int, attempts: int) -> None:
        """It stays, to be delivered as before."""
        now_ns = self._context.clock()
        self.cursor.stragglers.wait(offset, attempts, now_ns, now_ns, self._failures(offset))
        self._aside.in_flight_count -= 1
        self._changed()
        self.pump()

    def _failures(self, offset: int) -> int:
        straggler = self.cursor.stragglers.by_offset.get(offset)
        return 0 if straggler is None else straggler.failures


def charged_of(held: Sequence[tuple[Redelivery, ChannelConsumer]]) -> list[set[int]]:
    """The offsets that a client which is lost may have started to handle, by queue.

    Args:
        held: the channel at each queue, and the client's consumer there.
    """
    charged: list[set[int]] = [set() for _ in held]
    progress = held[0][1].progress
    if progress.takes_no_more:
        return charged
    held[0][1].settle_progress()
    ranks = [
        (rank, number, delivered_at_ns)
        for number, (channel, consumer) in enumerate(held)
        for rank, delivered_at_ns in channel.held_by(consumer)
    ]
    now_ns = held[0][0].now_ns()
    for (rank, offset), number, delivered_at_ns in sorted(ranks):
        if progress.charges(rank, offset, delivered_at_ns, now_ns):
            charged[number].add(offset)
            progress.lost_count += 1
    return charged


def _leased(consumer: ChannelConsumer, lease: Lease) -> PendingMessage[ChannelConsumer]:
    """What a message under a lease would be as a straggler."""
    delivered_at_ns = lease.deadline_ns - consumer.timeout_ns
    return PendingMessage(
        1, lease.deadline_ns, delivered_at_ns, consumer, rank=lease.rank, asked_rank=lease.rank
    )


def _by_rank(held: tuple[int, int, PendingMessage[ChannelConsumer]]) -> Rank:
    return held[:2]
