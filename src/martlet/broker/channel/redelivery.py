"""Redelivery: handles a channel's messages that are not finished in time.

A consumer may requeue a message (REQ) or extend its timeout (TOUCH). An unfinished message is
redelivered, by NSQ's rules or by the channel's retry policy (see `martlet.broker.retry`), or
becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter

from martlet.broker.channel.delivery import Delivery
from martlet.broker.channel.ordering import Ordering
from martlet.broker.errors import NotInFlight
from martlet.broker.offset_ranges import apart_from
from martlet.broker.queue.channel_state import ChannelState
from martlet.broker.queue.consumer import ChannelConsumer, Lease, Rank
from martlet.broker.queue.pending import PendingMessage
from martlet.broker.retry import MAX_ERROR_LENGTH, Cause, DeadLetterReason
from martlet.broker.tracing.recorder import TraceStep

_STEPS = {
    Cause.REQUEUED: TraceStep.REQUEUED,
    Cause.TIMED_OUT: TraceStep.TIMED_OUT,
    Cause.GIVEN_BACK: TraceStep.GIVEN_BACK,
}


class Redelivery:
    """Redelivers the messages of a channel that were not finished."""

    __slots__ = ("_delivery", "_state")

    def __init__(self, state: ChannelState, delivery: Delivery) -> None:
        self._state = state
        self._delivery = delivery

    # acknowledgements

    def requeue(
        self,
        consumer: ChannelConsumer,
        offset: int,
        delay_ns: int,
        error: str = "",
        cause: Cause = Cause.REQUEUED,
    ) -> None:
        """Handle REQ: the message has failed. It is redelivered after the delay, unless the retry
        policy decides otherwise (see `martlet.broker.retry`). Raises NotInFlight.
        """
        state = self._state
        held = self._take_failed(consumer, offset)
        self._note_error(offset, error)
        now_ns = state.context.clock()
        failed = cause is not Cause.GIVEN_BACK
        if failed:
            consumer.progress.answered(held.first_rank, offset)
        self._again(
            offset, held, now_ns, cause, delay_ns, failed=failed, consumer=consumer, error=error
        )
        consumer.in_flight_count -= 1
        consumer.requeue_count += 1
        state.requeue_count += 1
        state.moved()
        self._delivery.resume(consumer)
        self._delivery.pump()

    def give_back(
        self, consumer: ChannelConsumer, offsets: Iterable[int], *, is_started: bool = False
    ) -> int:
        """Redeliver messages that a client returns, at once, without counting a failure. Unless the
        client had started them, the delivery is no attempt. Returns how many were in flight.
        """
        state = self._state
        offsets = list(offsets)
        self.recall(consumer, *offsets)
        count = self._return(consumer, offsets, is_started=is_started)
        consumer.requeue_count += count
        state.requeue_count += count
        state.moved()
        self._delivery.resume(consumer)
        self._delivery.pump()
        return count

    def _return(
        self, consumer: ChannelConsumer, offsets: Iterable[int], *, is_started: bool
    ) -> int:
        """Redeliver messages without a failure. Returns how many were in flight."""
        state = self._state
        now_ns, count = state.context.clock(), 0
        for offset in offsets:
            try:
                held = self._take_out(consumer, offset)
            except NotInFlight:
                continue  # It timed out: another consumer has it.
            held.attempts -= not is_started
            if not held.attempts:
                state.retry_count += 1  # Its next attempt is number 1, and no retry.
            self._again(offset, held, now_ns, Cause.GIVEN_BACK, failed=False, consumer=consumer)
            count += 1
        consumer.in_flight_count -= count
        return count

    def recall(self, consumer: ChannelConsumer, *besides: int) -> None:
        """Take back the messages that a client, if it handles them in order, drops since others of
        the queue fail: those `besides`, which the caller moves.
        """
        if not consumer.progress.in_order:
            return
        others = [offset for (_, offset), _ in held_by(self._state, consumer)]
        self._return(consumer, sorted(set(others).difference(besides)), is_started=False)
        consumer.client.recalled(self._state.queue.number)

    def reject(
        self, consumer: ChannelConsumer, offset: int, reason: DeadLetterReason, error: str = ""
    ) -> None:
        """Make a message that a consumer rejects a dead letter. Raises NotInFlight."""
        state = self._state
        held = self._take_failed(consumer, offset)
        consumer.progress.answered(held.first_rank, offset)
        self._note_error(offset, error)
        state.context.move_to_dead_letters(state, offset, held.attempts, held.failures + 1, reason)
        consumer.in_flight_count -= 1
        self._state.moved()
        self._delivery.resume(consumer)

    def touch(self, consumer: ChannelConsumer, offset: int, timeout_ns: int = 0) -> int:
        """Handle TOUCH: restart the message's timeout, by default the consumer's, up to the maximum
        since its delivery. Returns when it times out, as a running time. Raises NotInFlight.
        """
        state = self._state
        held = self._take_out(consumer, offset)
        held.delivered_at_ns = max(held.delivered_at_ns, consumer.progressed_ns)
        deadline_ns = min(
            state.context.clock() + (timeout_ns or consumer.timeout_ns),
            held.delivered_at_ns + state.context.settings.max_timeout_ns,
        )
        state.cursor.pending.hold(
            offset,
            held.attempts,
            consumer,
            held.delivered_at_ns,
            deadline_ns,
            held.failures,
            held.rank,
            held.first_rank,
        ).is_suspect = held.is_suspect
        consumer.settle_progress()
        consumer.progress.touched(held.rank, offset, deadline_ns)
        state.alarm.at(deadline_ns)
        state.moved()
        return deadline_ns

    def started(self, consumer: ChannelConsumer, offset: int) -> None:
        """Handle STARTED: the consumer starts this message, and has started all before it. Raises
        NotInFlight.
        """
        cursor = self._state.cursor
        if cursor.window.holds(consumer.number, offset):
            rank = consumer.lease_of(offset).rank
        elif (message := cursor.pending.get(offset, consumer)) is not None:
            rank = message.rank
        else:
            raise self.not_in_flight(consumer, offset)
        consumer.progress.started(rank, offset)
        consumer.started = rank, offset

    def _take_out(self, consumer: ChannelConsumer, offset: int) -> PendingMessage[ChannelConsumer]:
        """Remove a message in flight from the window and return it as a pending message. A pending
        one is left for the caller to move.
        """
        cursor = self._state.cursor
        if cursor.window.holds(consumer.number, offset):
            lease = consumer.lease_of(offset)
            cursor.window.release(offset)
            return _leased(consumer, lease)
        message = cursor.pending.get(offset, consumer)
        if message is None:
            raise self.not_in_flight(consumer, offset)
        return message

    def _take_failed(
        self, consumer: ChannelConsumer, offset: int
    ) -> PendingMessage[ChannelConsumer]:
        """As `_take_out`, of a message that fails; those behind it are taken back."""
        self.recall(consumer, offset)
        try:
            return self._take_out(consumer, offset)
        except NotInFlight:
            self._delivery.resume(consumer)
            raise

    def not_in_flight(self, consumer: ChannelConsumer, offset: int) -> NotInFlight:
        """Return the error for an answer to a message that is not in flight."""
        state = self._state
        consumer.progress.answered_late(state.context.clock())
        message = state.cursor.pending.by_offset.get(offset)
        owner = message and message.owner
        if state.cursor.window.is_held(offset) or (owner and owner is not state.moving.consumer):
            return NotInFlight("client does not own message")
        return NotInFlight("ID not in flight")

    # timeouts and lost clients

    def redeliver_held(self, consumer: ChannelConsumer, charged: Collection[int]) -> None:
        """Redeliver what a consumer holds to others; the charged messages have failed."""
        cursor, now_ns = self._state.cursor, self._state.context.clock()
        lost = [
            (lease.rank, offset, _leased(consumer, lease))
            for lease in consumer.leases
            for offset in self._release(consumer, lease)
        ]
        owned = cursor.pending.owned_by(consumer)
        lost += [(message.rank, offset, message) for offset, message in owned]
        assert len(lost) == consumer.in_flight_count, "messages are in flight without a lease"
        lost.sort(key=_by_rank)
        if consumer.progress.in_order:
            for _, _, unstarted in lost[1:]:
                unstarted.attempts -= 1
        for _, offset, held in lost:
            failed = offset in charged
            self._again(offset, held, now_ns, Cause.GIVEN_BACK, failed=failed, consumer=consumer)

    def time_out(self, now_ns: int) -> int:
        """Redeliver timed-out messages, by offset. Returns their number."""
        state = self._state
        late: list[tuple[int, int, PendingMessage[ChannelConsumer]]] = []
        for consumer in state.consumers:
            if consumer.progress.in_order and consumer.in_flight_count:
                self._time_out_first(consumer, now_ns)
            leases = consumer.leases
            if not leases or leases[0].deadline_ns > now_ns:
                continue
            consumer.settle_progress()
            while leases and leases[0].deadline_ns <= now_ns:
                lease = leases.popleft()
                held = _leased(consumer, lease)
                late += [(lease.rank, offset, held) for offset in self._release(consumer, lease)]
        for offset, message in state.cursor.pending.expire(now_ns):
            assert message.owner is not None
            message.owner.settle_progress()
            late.append((message.rank, offset, message))
        failed_offsets: set[int] = set()
        for rank, offset, held in sorted(late, key=_by_rank):
            owner = held.owner
            assert owner is not None
            owner.in_flight_count -= 1
            if _charges(owner, (rank, offset), held.delivered_at_ns, now_ns):
                failed_offsets.add(offset)
            owner.progress.timed_out()
        for _, offset, held in sorted(late, key=itemgetter(1)):
            owner = held.owner
            assert owner is not None
            failed = offset in failed_offsets
            again = self._again(
                offset, held, now_ns, Cause.TIMED_OUT, failed=failed, consumer=owner
            )
            if again is not None:
                again.last_progress, again.first_rank = owner.progress, held.first_rank
        state.timeout_count += len(late)
        return len(late)

    def _time_out_first(self, consumer: ChannelConsumer, now_ns: int) -> None:
        """Let only the first message of a client that handles them in order time out: the others
        wait for it there.
        """
        pending, leases = self._state.cursor.pending, consumer.leases
        earliest_ns = pending.earliest_ns()
        is_early = earliest_ns is None or earliest_ns > now_ns
        if is_early and not (leases and leases[0].deadline_ns <= now_ns):
            return
        (_, offset), delivered_at_ns = min(held_by(self._state, consumer))
        message = pending.get(offset, consumer)
        due_ns = delivered_at_ns + consumer.timeout_ns if message is None else message.due_ns
        due_ns = max(due_ns, consumer.progressed_ns + consumer.timeout_ns)
        if due_ns <= now_ns:
            self.recall(consumer, offset)
            return
        for _ in range(len(leases)):
            lease = leases.popleft()
            leases.append(lease._replace(deadline_ns=max(lease.deadline_ns, due_ns)))
        pending.extend([offset for offset, _ in pending.owned_by(consumer)], due_ns)

    def _release(self, consumer: ChannelConsumer, lease: Lease) -> list[int]:
        held = self._state.cursor.window.release_range(consumer.number, lease.first, lease.end)
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
        """Requeue a message whose consumer failed to finish it, or dead-letter it. Returns the
        pending message, where it is redelivered.
        """
        state = self._state
        retry, attempts, failures = state.retry, held.attempts, held.failures + failed
        is_over = failed and retry is not None and retry.is_over(failures)
        if is_over and cause is Cause.GIVEN_BACK:
            is_over = consumer.progress.is_blamed_for(is_suspect=held.is_suspect)
        if failed and retry is not None and not is_over:
            delay_ns = retry.delay_ns(failures, cause, delay_ns)
        if state.recorder is not None:
            end, step = offset + 1, _STEPS[cause]
            date_ns = state.context.wall()
            state.recorder.note(step, offset, end, date_ns, consumer, attempts, delay_ns, error)
        if is_over:
            state.context.move_to_dead_letters(state, offset, attempts, failures, cause.value)
            return None
        again = state.cursor.pending.wait(offset, attempts, now_ns + delay_ns, now_ns, failures)
        again.is_suspect = cause is Cause.GIVEN_BACK if failed else held.is_suspect
        if delay_ns:
            state.alarm.at(now_ns + delay_ns)
        return again

    def _note_error(self, offset: int, error: str) -> None:
        if error:
            self._state.cursor.pending.note_error(offset, error[:MAX_ERROR_LENGTH])

    # messages handled out of order

    def finish_unheld(self, offset: int) -> None:
        """Finish a message that no consumer holds."""
        self._state.cursor.pending.remove(offset)
        self._state.moved()
        self._delivery.pump()

    def finish_ended(self, offset: int, attempts: int) -> None:
        """Finish a message whose lease has ended, if it was not delivered again since: it had been
        delivered `attempts` times when the consumer got it. Raises NotInFlight.
        """
        state = self._state
        message = state.cursor.pending.by_offset.get(offset)
        if state.cursor.window.is_held(offset) or (message is not None and message.owner):
            raise NotInFlight("its lease has ended, and it was delivered again")
        if message is None:
            raise NotInFlight("it is finished already, or the channel was set back before it")
        if message.attempts > attempts:
            raise NotInFlight("its lease has ended, and it was delivered again")
        if state.recorder is not None:
            now_ns = state.context.wall()
            state.recorder.note(TraceStep.FINISHED, offset, offset + 1, now_ns, None, attempts)
        state.finishes.note(offset)
        self.finish_unheld(offset)

    def make_pending(self, end: int) -> None:
        """Make every message below an offset pending, so that any of them may be taken."""
        state = self._state
        cursor, source = state.cursor, state.source
        if end <= cursor.next:
            return
        now_ns = state.context.clock()
        for first, stop in source.stretches(cursor.next, end):
            deferred = cursor.queue.index.deferred(first, min(stop, source.limit))
            for stretch in apart_from(deferred, first, stop):
                for offset in range(*stretch):
                    cursor.pending.wait(offset, 0, now_ns, now_ns)
        cursor.skip_to(end, source.deferred_from(end))
        if isinstance(self._delivery.order, Ordering):
            self._delivery.order.begin_again()
        state.moved()


def charged_of(held: Sequence[tuple[ChannelState, ChannelConsumer]]) -> list[set[int]]:
    """Return the offsets that a lost client may have started to handle, by queue, where `held` has
    the channel and the client's consumer at each.
    """
    charged: list[set[int]] = [set() for _ in held]
    progress = held[0][1].progress
    if progress.takes_no_more:
        return charged
    held[0][1].settle_progress()
    ranks = [
        (rank, number, delivered_at_ns)
        for number, (channel, consumer) in enumerate(held)
        for rank, delivered_at_ns in held_by(channel, consumer)
    ]
    now_ns = held[0][0].context.clock()
    for rank, number, delivered_at_ns in sorted(ranks):
        if _charges(held[number][1], rank, delivered_at_ns, now_ns):
            charged[number].add(rank[1])
    return charged


def held_by(channel: ChannelState, consumer: ChannelConsumer) -> list[tuple[Rank, int]]:
    """Return the messages that a consumer holds, and when each was delivered."""
    window, pending = channel.cursor.window, channel.cursor.pending
    ranks = [
        ((lease.rank, offset), lease.deadline_ns - consumer.timeout_ns)
        for lease in consumer.leases
        for offset in window.held_by(consumer.number, lease.first, lease.end)
    ]
    owned = pending.owned_by(consumer)
    return ranks + [((message.rank, offset), message.delivered_at_ns) for offset, message in owned]


def _charges(consumer: ChannelConsumer, rank: Rank, delivered_at_ns: int, now_ns: int) -> bool:
    """Whether a message fails when its client is lost, or it times out: see `StartedMessages`."""
    if consumer.progress.in_order:  # Those delivered before may wait for others of their queues.
        return rank == consumer.started
    return consumer.progress.charges(*rank, delivered_at_ns, now_ns)


def _leased(consumer: ChannelConsumer, lease: Lease) -> PendingMessage[ChannelConsumer]:
    """Return a message under a lease as a pending message."""
    delivered_at_ns = lease.deadline_ns - consumer.timeout_ns
    return PendingMessage(
        1, lease.deadline_ns, delivered_at_ns, consumer, rank=lease.rank, first_rank=lease.rank
    )


def _by_rank(held: tuple[int, int, PendingMessage[ChannelConsumer]]) -> Rank:
    return held[:2]
