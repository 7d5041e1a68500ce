"""Failures: what a channel does with messages that are not finished in time.

A consumer may give one back (REQ), or ask for more time (TOUCH).  What was not finished comes
again, by NSQ's rules or by the channel's policy (see `martlet.broker.retry`), or is a dead letter.
Messages that are on their way to another topic are set aside meanwhile: stragglers that nobody, a
consumer with the number 0, has in flight.  A restart finds them due.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from martlet.broker.consumer import NOBODY, Consumer
from martlet.broker.dead_letter_topic import LONGEST_ERROR
from martlet.broker.delivery import Delivery, Source, Surroundings, Waiting
from martlet.broker.errors import NotInFlight
from martlet.broker.policy import ChannelPolicy
from martlet.broker.retry import Cause, Retry
from martlet.broker.stretch import apart_from
from martlet.broker.trail import Step

if TYPE_CHECKING:
    from martlet.broker.cursor import Cursor
    from martlet.broker.dead_letter_topic import Reason

NEVER_NS = 1 << 62
_STEPS = {
    Cause.REQUEUED: Step.REQUEUED,
    Cause.TIMED_OUT: Step.TIMED_OUT,
    Cause.GIVEN_BACK: Step.GIVEN_BACK,
}


class Failures(Delivery):
    """The part of a channel that deals with messages that were not finished.

    Args:
        around, cursor, source, waiting: see `Delivery`.
        max_timeout_ns: how long TOUCH may keep a message in flight.
    """

    def __init__(
        self,
        around: Surroundings,
        cursor: Cursor,
        source: Source,
        waiting: dict[Waiting, None],
        max_timeout_ns: int,
    ) -> None:
        super().__init__(around, cursor, source, waiting)
        self.requeue_count = 0
        self.committed_count = 0
        """Messages below an offset that was committed since then, where it is a group."""
        self.dead_letter_count = 0
        """Messages that went to its dead-letter topic since the broker was started."""
        self.closed = False
        """Whether it was deleted."""
        self._policy = ChannelPolicy()
        self._retry: Retry | None = None
        self._aside = Consumer(NOBODY, 0, 0)
        self._max_timeout_ns = max_timeout_ns

    @property
    def retries(self) -> bool:
        """Whether the broker decides about messages that fail."""
        return self._retry is not None

    @property
    def policy(self) -> ChannelPolicy:
        """What is set for it."""
        return self._policy

    @policy.setter
    def policy(self, policy: ChannelPolicy) -> None:
        self._policy = policy
        self._retry = Retry.of(policy)

    # what consumers answer

    def requeue(
        self,
        consumer: Consumer,
        offset: int,
        delay_ns: int,
        error: str = "",
        cause: Cause = Cause.REQUEUED,
    ) -> None:
        """REQ: the message is delivered again, after a delay, unless the channel's policy has it
        otherwise (see `martlet.broker.retry`). Raises NotInFlight.
        """
        attempts, _ = self._let_go(consumer, offset)
        self._note_error(offset, error)
        now_ns = self._around.clock()
        self._again(offset, attempts, now_ns, cause, delay_ns, consumer=consumer, error=error)
        consumer.in_flight_count -= 1
        consumer.requeue_count += 1
        self.requeue_count += 1
        self._changed()
        self.resume(consumer)
        self.pump()

    def reject(self, consumer: Consumer, offset: int, reason: Reason, error: str = "") -> None:
        """A consumer says that a message should not come again: it becomes a dead letter.

        Raises NotInFlight.
        """
        attempts, _ = self._let_go(consumer, offset)
        self._note_error(offset, error)
        self._bury(offset, attempts, reason)
        consumer.in_flight_count -= 1
        self._changed()
        self.resume(consumer)

    def touch(self, consumer: Consumer, offset: int) -> None:
        """TOUCH: the message's timeout begins anew, up to the maximum since it was delivered.

        Raises NotInFlight.
        """
        attempts, delivered_at_ns = self._let_go(consumer, offset)
        deadline_ns = min(
            self._around.clock() + consumer.timeout_ns, delivered_at_ns + self._max_timeout_ns
        )
        self.cursor.stragglers.hold(offset, attempts, consumer, delivered_at_ns, deadline_ns)
        self._alarm.at(deadline_ns)
        self._changed()

    def _let_go(self, consumer: Consumer, offset: int) -> tuple[int, int]:
        """Take a message in flight out of the window. Returns its attempts and when it was
        delivered; a straggler is left for the caller to put elsewhere.
        """
        cursor = self.cursor
        if cursor.window.holds(consumer.number, offset):
            lease = consumer.lease_of(offset)
            cursor.window.release(offset)
            return 1, lease.deadline_ns - consumer.timeout_ns
        straggler = cursor.stragglers.get(offset, consumer)
        if straggler is None:
            raise self._not_in_flight(offset)
        return straggler.attempts, straggler.delivered_at_ns

    def _not_in_flight(self, offset: int) -> NotInFlight:
        straggler = self.cursor.stragglers.by_offset.get(offset)
        owner = straggler and straggler.owner
        if self.cursor.window.is_held(offset) or (owner and owner is not self._aside):
            return NotInFlight("client does not own message")
        return NotInFlight("ID not in flight")

    def _again(
        self,
        offset: int,
        attempts: int,
        now_ns: int,
        cause: Cause,
        delay_ns: int = 0,
        *,
        consumer: Consumer | None = None,
        error: str = "",
    ) -> None:
        """A message was not finished, and nobody has it any more, a consumer had: it comes again,
        or is given up.
        """
        retry = self._retry
        if retry is not None and not retry.is_over(attempts):
            delay_ns = retry.delay_ns(attempts, cause, delay_ns)
        if self.trail is not None:
            end, step = offset + 1, _STEPS[cause]
            self.trail.note(step, offset, end, now_ns, consumer, attempts, delay_ns, error)
        if retry is not None and retry.is_over(attempts):
            self._bury(offset, attempts, cause.value)
            return
        self.cursor.stragglers.wait(offset, attempts, now_ns + delay_ns, now_ns)
        if delay_ns:
            self._alarm.at(now_ns + delay_ns)

    def _note_error(self, offset: int, error: str) -> None:
        if error:
            self.cursor.stragglers.note_error(offset, error[:LONGEST_ERROR])

    @abstractmethod
    def _bury(self, offset: int, attempts: int, reason: Reason) -> None:
        """A message that nobody has is to become a dead letter."""

    # messages on their way elsewhere

    def set_aside(self, offset: int, attempts: int) -> None:
        """A message that nobody has is kept from all consumers."""
        if not self.is_aside(offset):
            self._aside.in_flight_count += 1
        now_ns = self._around.clock()
        self.cursor.stragglers.hold(offset, attempts, self._aside, now_ns, NEVER_NS)
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
        now_ns = self._around.clock()
        for first, stop in source.stretches(cursor.next, end):
            deferred = cursor.queue.index.deferred(first, min(stop, source.limit))
            for part in apart_from(deferred, first, stop):
                for offset in range(*part):
                    cursor.stragglers.wait(offset, 0, now_ns, now_ns)
        cursor.skip_to(end, source.deferred_from(end))
        self._changed()

    def put_back(self, offset: int, attempts: int) -> None:
        """It stays, to be delivered as before."""
        now_ns = self._around.clock()
        self.cursor.stragglers.wait(offset, attempts, now_ns, now_ns)
        self._aside.in_flight_count -= 1
        self._changed()
        self.pump()
