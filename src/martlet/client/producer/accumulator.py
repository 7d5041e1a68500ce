"""The accumulator: unanswered messages, waiting to be sent or in flight at one of the brokers.

::

    publish, send -> waiting -> pack -> in flight at a broker -> answered: done
                        ^                       |
                        +------- put_back ------+   the connection was lost

All messages that wait for a topic when a broker can accept more go as one command: those published
in one turn of the event loop, or while brokers were slow or away. So a single publish is not
delayed, and many at once cost as much as one. This module does no I/O and reads no clock.

There are two families of commands (see `martlet.client.producer.in_flight`).  A PUB, MPUB or DPUB
whose connection was lost goes to any broker, in another batch. A SEND goes unchanged to its broker
again, since only that broker recognises the repeat, and to another only if the application has
asked for that.

Messages with an order key wait for the broker to which the key is pinned
(`martlet.client.producer.key_pinning`). With one broker, messages of a topic that use the same
family stay in order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from operator import attrgetter

from martlet.client.errors import (
    ConnectionLost,
    NotSupported,
    PublishLost,
    PublishRefused,
    PublishUnclear,
    Refused,
)
from martlet.client.producer.in_flight import InFlightQueue, ProducerBatch
from martlet.client.producer.key_pinning import KeyPinning
from martlet.client.producer.limits import Limits
from martlet.client.producer.pending import PendingPublish, SendFields, Trouble
from martlet.client.producer.result import SendResult
from martlet.client.producer.routing import lightest
from martlet.client.transport.backoff import Backoff
from martlet.names import PUBLISH_AGAIN, PutStatus
from martlet.properties.model import PRODUCER_BYTES

MAY_BE_ANOTHERS_FAULT = frozenset({"E_BAD_MESSAGE", "E_BAD_BODY"})
"""Errors of one message for which the broker refuses the entire command."""
MAY_DO_ELSEWHERE = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})
"""Errors of the broker, such as a full disk: another may accept the same message."""
MAY_PASS = "E_AUTH_FAILED"
"""The auth server does not answer at the moment: nothing is wrong with the messages."""
MAY_DO_LATER = frozenset({"REFUSED", "TRY_AGAIN"})
"""Temporary errors of a SEND's broker, such as a full disk."""
MAY_BE_STORED = "TOO_OLD"
_BACKOFF = Backoff(max_s=1.0)
"""The delays before a SEND that the broker could not store is sent again."""


class Accumulator:
    """Waiting messages, and the brokers at which others are in flight.

    Args:
        retries: the number of retries of messages without their own; None for no limit.
        is_idempotent: whether brokers recognise a repeated SEND.
        tries_others: whether a SEND that its broker could not store goes to another.

    Attributes:
        on_room: called when a broker has answered and messages wait.
        pending_messages: the number published and not answered.
        retried_count: the number of messages to be sent again.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        retries: int | None = None,
        is_idempotent: bool = True,
        tries_others: bool = False,
    ) -> None:
        self.on_room: Callable[[], None] = lambda: None
        self.call_later: Callable[[float, Callable[[], None]], object]
        self.brokers: list[InFlightQueue] = []
        self.pending_messages = 0
        self.pending_bytes = 0
        self._stored_before = 0
        """The number stored by brokers that have gone."""
        self.retried_count = 0
        self._limits = limits
        self._retries = retries
        self._is_idempotent = is_idempotent
        self._tries_others = tries_others
        self._waiting: deque[PendingPublish] = deque()
        """For PUB, MPUB and DPUB, at any broker."""
        self._sends: deque[PendingPublish] = deque()
        """For SEND, at any broker."""
        self._unanswered_sends = 0
        """The number of pending messages that use SEND."""
        self._order = KeyPinning(self.brokers, lambda: self.on_room())  # noqa: PLW0108, set later
        self._pins = self._order.pins
        self._turn = 0

    @property
    def stored_count(self) -> int:
        """The number of messages stored."""
        return self._stored_before + sum(broker.stored_count for broker in self.brokers)

    @property
    def takes_sends(self) -> bool:
        """Whether all brokers that are connected, or were last, are Martlet brokers."""
        takers = [
            broker.takes_sends for broker in self.brokers if broker.is_up or broker.takes_sends
        ]
        return bool(takers) and all(takers)

    # The brokers.

    def add_broker(self, name: str) -> InFlightQueue:
        """Add a broker by its address, not connected yet."""
        producer = os.urandom(PRODUCER_BYTES) if self._is_idempotent else b""
        broker = InFlightQueue(name, self._limits, producer)
        self.brokers.append(broker)
        return broker

    def remove_broker(self, broker: InFlightQueue) -> None:
        """Remove a broker: its unanswered messages go to others, or are lost."""
        self.put_back(broker, ConnectionLost("the broker is not to be used any more"))
        self._stored_before += broker.stored_count
        self.brokers.remove(broker)
        while broker.retries:
            batch = broker.retries.popleft()
            if not (self._tries_others and self._pass_on(batch)):
                batch.fail(PublishLost(f"the broker at {broker.name} has gone"))
                self._close(batch)
        self._order.assign()

    def connected(self, broker: InFlightQueue, *, takes_sends: bool) -> None:
        """Start sending to a broker that has connected."""
        broker.is_up = True
        broker.takes_sends = takes_sends
        for batch in broker.retries:
            batch.is_due = True  # What the run before could not store, this one may.
        if self._order.unassigned:
            self._order.assign()

    # Messages.

    def add(self, pending: PendingPublish) -> None:
        """Publish this."""
        self.pending_messages += len(pending.bodies)
        self.pending_bytes += pending.size_bytes
        is_send = pending.extras is not None and pending.extras.fields is not None
        if is_send:
            self._unanswered_sends += 1
        if pending.order_key is not None:
            self._order.add(pending, pending.order_key)
        elif is_send:
            self._sends.append(pending)
        else:
            self._waiting.append(pending)

    def _queues(self) -> list[deque[PendingPublish]]:
        pinned = (broker.pinned for broker in self.brokers)
        return [self._waiting, self._sends, *self._order.queues(), *pinned]

    def waiting(self) -> Iterator[PendingPublish]:
        """Iterate over messages that wait in no batch."""
        waiting = chain.from_iterable(self._queues())
        return (pending for pending in waiting if not pending.future.done())

    def batches(self) -> Iterator[ProducerBatch]:
        """Iterate over batches in flight, and those to be sent again."""
        for broker in self.brokers:
            yield from broker.batches
            yield from broker.retries

    def unanswered(self) -> Iterator[PendingPublish]:
        """Iterate over unanswered messages."""
        for batch in self.batches():
            yield from (pending for pending in batch.pendings if not pending.future.done())
        yield from self.waiting()

    def forget_settled(self) -> None:
        """Remove waiting messages that timed out or were cancelled."""
        for broker in self.brokers:
            for batch in [batch for batch in broker.retries if batch.is_done]:
                broker.retries.remove(batch)
                self._close(batch)
        for queue in self._queues():
            for _ in range(len(queue)):
                pending = queue.popleft()
                if pending.future.done():
                    self._forget(pending)
                else:
                    queue.append(pending)

    # Sending.

    def pack(self, brokers: list[InFlightQueue]) -> list[ProducerBatch]:
        """Take the batches that may be sent now to these brokers, none of which is held.

        The caller must send them in this order.
        """
        packed: list[ProducerBatch] = []
        if not (self._pins or self._unanswered_sends):
            self._pack(self._waiting, brokers, packed)
            return packed
        if self._unanswered_sends and not any(broker.takes_sends for broker in self.brokers):
            self._refuse_sends()
        for broker in brokers:
            self._send_again(broker, packed)
        queues: list[tuple[deque[PendingPublish], list[InFlightQueue]]] = [
            (broker.pinned, [broker]) for broker in brokers if broker.pinned
        ]
        queues += [(queue, brokers) for queue in (self._waiting, self._sends) if queue]
        # The oldest topic goes first, so that no topic starves others.
        queues.sort(key=lambda queue_and_brokers: queue_and_brokers[0][0].deadline_s)
        for queue, usable in queues:
            if queue is self._sends:
                usable = [broker for broker in usable if broker.takes_sends]
            self._pack(queue, [broker for broker in usable if not broker.is_held], packed)
        return packed

    def _refuse_sends(self) -> None:
        """Refuse messages that need a Martlet broker, if all brokers are known and none is one."""
        names = [broker.name for broker in self.brokers if broker.is_up]
        if not names:
            return
        error = not_supported(*names)
        for pending in self.unanswered():
            if pending.fields is not None:
                pending.fail(error)
        self.forget_settled()

    def _send_again(self, broker: InFlightQueue, packed: list[ProducerBatch]) -> None:
        while broker.retries and broker.takes_sends and not broker.is_held:
            batch = broker.retries[0]
            if not (batch.is_due or batch.is_done):
                return
            broker.retries.popleft()
            if batch.is_done:
                self._close(batch)
            else:
                self._launch(batch, packed)

    def _pack(
        self,
        waiting: deque[PendingPublish],
        brokers: list[InFlightQueue],
        packed: list[ProducerBatch],
    ) -> None:
        growing: dict[object, ProducerBatch] = {}
        group: object = None
        grown: ProducerBatch | None = None
        last: tuple[str, SendFields | None] | None = None
        max_bytes = self._limits.command_bytes
        while waiting and brokers:
            pending = waiting[0]
            if pending.future.done():
                self._forget(waiting.popleft())  # Cancelled, or too late.
                continue
            topic, extras, key = pending.topic, pending.extras, pending.order_key
            fields = None if extras is None else extras.fields
            if last is None or topic is not last[0] or fields is not last[1]:
                last = (topic, fields)
                group = topic if fields is None else last
                grown = growing.get(group)
            batch = grown
            if batch is not None and not (
                not pending.is_alone
                and (pending.trouble is None or not pending.trouble.is_suspect)
                and batch.size_bytes + pending.size_bytes <= max_bytes
                and batch.broker.has_room(pending)
            ):
                batch = None
            if key is not None and self._order.holds(waiting, key, batch):
                continue
            if batch is not None:
                batch.pendings.append(waiting.popleft())
                count, size_bytes = len(pending.bodies), pending.size_bytes
                batch.message_count += count
                batch.size_bytes += size_bytes
                broker = batch.broker
                broker.message_count += count
                broker.size_bytes += size_bytes
                if key is not None:
                    self._order.sent(key, batch)
                continue
            target = lightest(brokers, pending) if len(brokers) > 1 else brokers[0]
            if target is None or not target.may_begin(pending):
                return
            if fields is not None and not target.takes_sends:
                pending.fail(not_supported(target.name))
                continue
            batch = ProducerBatch(self, target, waiting.popleft())
            if fields is not None:
                target.assign_number(batch)
            if key is not None:
                self._order.sent(key, batch)
            self._launch(batch, packed)
            last = None
            if target.is_held:
                brokers.remove(target)
                growing = {name: one for name, one in growing.items() if one.broker is not target}
            elif pending.is_alone:
                growing.pop(group, None)
            else:
                growing[group] = batch

    def take_turn(self, brokers: list[InFlightQueue]) -> InFlightQueue | None:
        """Choose the broker with the least in flight, in turns."""
        if not brokers:
            return None
        broker = min(brokers, key=attrgetter("is_slow", "size_bytes", "turn"))
        self._turn += 1
        broker.turn = self._turn
        return broker

    def _launch(self, batch: ProducerBatch, packed: list[ProducerBatch]) -> None:
        """Put a batch in flight; nothing may follow one that is suspect."""
        broker = batch.broker
        self._turn += 1
        broker.turn = self._turn
        broker.message_count += batch.message_count
        broker.size_bytes += batch.size_bytes
        broker.batches.append(batch)
        packed.append(batch)
        # If it ends the connection, batches after it would lose a try, and their answers.
        if broker.is_on_trial or batch.pendings[0].is_suspect:
            broker.is_held = True

    # Outcomes.

    def stored(self, batch: ProducerBatch, result: SendResult | None) -> None:
        """Complete a broker's oldest batch, which is stored; `result` says how safely."""
        broker = batch.broker
        self._land(batch)
        broker.stored_count += batch.message_count
        broker.refusals = 0
        broker.is_on_trial = False
        if result is not None and result.status is not PutStatus.OK and self._tries_others:
            batch.stored = result
            if not self._is_hopeless(batch) and self._pass_on(batch):
                broker.on_answer()
                return
        batch.succeed(result)
        self._close(batch)
        broker.on_answer()
        self._fill_room()

    def declined(self, batch: ProducerBatch, error: Refused) -> None:
        """Schedule a broker's oldest SEND, which it could not store, for a retry."""
        broker = batch.broker
        self._land(batch)
        broker.refused_count += batch.message_count
        _trouble(batch).is_suspect = False
        if error.code in MAY_DO_LATER and not self._is_hopeless(batch, error):
            self.retried_count += batch.message_count
            self._retry(batch, delay_s=_BACKOFF.delay_s(_trouble(batch).failures))
        else:
            if error.code == MAY_BE_STORED:
                batch.fail(PublishUnclear(f"{broker.name}: {error}"))
            else:
                batch.fail(PublishRefused(error.code, error.text))
            self._close(batch)
        broker.on_answer()
        self._fill_room()

    def refused(self, batch: ProducerBatch, error: Refused) -> None:
        """Handle the refusal of a broker's oldest batch, after which it closes the connection."""
        broker = batch.broker
        batch.is_refused = True
        pendings = batch.pendings
        # Messages not completed here stay in flight, and are put back when the connection is lost.
        if len(pendings) > 1 and error.code in MAY_BE_ANOTHERS_FAULT:
            # The answer does not name the message at fault, so each is tried alone.
            batch.is_split = True
            for pending in pendings:
                pending.is_alone = True
            return
        if error.code == MAY_PASS:
            broker.refusals += 1
            if batch.number and self._is_hopeless(batch, error):
                batch.fail(PublishRefused(error.code, error.text))
                self._settle(batch)
            return
        if error.code in MAY_DO_ELSEWHERE and error.text.endswith(PUBLISH_AGAIN):
            broker.refusals += 1
            return
        broker.refused_count += batch.message_count
        final = PublishRefused(error.code, _way_out_of(error, pendings[0]))
        if error.code in MAY_DO_ELSEWHERE:
            broker.refusals += 1
            broker.is_on_trial = True
            for pending in pendings:
                trouble = pending.failed(error)
                if trouble.refusals >= len(self.brokers) or self._is_over(pending, trouble):
                    pending.fail(final)
        else:
            batch.fail(final)
        if batch.is_done:
            self._settle(batch)

    def lost_track(self, batch: ProducerBatch, error: PublishUnclear) -> None:
        """Fail a broker's oldest batch, whose answer is unintelligible."""
        batch.broker.lost_count += batch.message_count
        batch.fail(error)
        self._settle(batch)

    def not_sent(self, batch: ProducerBatch, error: Exception) -> None:
        """Fail a batch that was packed and cannot be encoded."""
        batches = batch.broker.batches
        batches.remove(batch)
        batches.appendleft(batch)
        batch.fail(error)
        self._land(batch)
        self._close(batch)
        self._fill_room()

    def put_back(self, broker: InFlightQueue, error: ConnectionLost) -> int:
        """Queue batches in flight on a lost connection for a retry, before everything else.

        Returns the number of messages. The first of them become suspect of having made the broker
        close the connection: they may do so again, and must not take others with them.
        """
        broker.is_up = False
        free: list[PendingPublish] = []
        ordered: list[PendingPublish] = []
        count = 0
        is_blamed = isinstance(error.__cause__, Refused)
        """Whether refused messages ended the connection: those after them were not tried."""
        for batch in broker.take_batches():
            if not batch.is_refused:
                broker.lost_count += batch.message_count
                if not is_blamed:
                    self._count_loss(batch, error)
            if batch.is_done and batch.number:
                self._close(batch)
                continue
            if batch.number and not batch.is_split:
                if not count:
                    _trouble(batch).is_suspect = True
                count += batch.message_count
                self._retry(batch)
                continue
            broker.drop(batch)
            for pending in batch.pendings:
                if pending.future.done():
                    self._forget(pending, was_sent=True)
                    continue
                if not count:
                    pending.trouble = pending.trouble or Trouble()
                    pending.trouble.is_suspect = True
                count += len(pending.bodies)
                (free if pending.order_key is None else ordered).append(pending)
        for pending in reversed(free):
            (self._waiting if pending.fields is None else self._sends).appendleft(pending)
        self._order.leave(broker, ordered)
        self.retried_count += count
        return count

    def _count_loss(self, batch: ProducerBatch, error: ConnectionLost) -> None:
        """Fail messages whose retries are used up."""
        for pending in batch.pendings:
            trouble = pending.failed()
            if self._is_over(pending, trouble):
                lost = PublishLost(f"sent {trouble.failures} times, and not answered: {error}")
                if batch.stored is not None:
                    batch.succeed(batch.stored)
                else:
                    pending.fail(lost)

    def _is_hopeless(self, batch: ProducerBatch, refusal: Refused | None = None) -> bool:
        """Count a failed try of a SEND. Returns whether its retries are used up."""
        troubles = [pending.failed(refusal) for pending in batch.pendings]
        return self._is_over(batch.pendings[0], troubles[0])

    def _is_over(self, pending: PendingPublish, trouble: Trouble) -> bool:
        """Return whether its retries are used up."""
        fields = pending.fields
        retries = self._retries if fields is None else fields.retries
        return retries is not None and trouble.failures > retries

    def _retry(self, batch: ProducerBatch, delay_s: float = 0.0) -> None:
        """Send a SEND again after the delay, to the same broker or another."""
        if self._tries_others and self._pass_on(batch):
            return
        batch.is_refused = False
        batch.broker.retry(batch)
        if delay_s:
            batch.is_due = False
            self.call_later(delay_s, lambda: self._become_due(batch))

    def _become_due(self, batch: ProducerBatch) -> None:
        batch.is_due = True
        self.on_room()

    def _pass_on(self, batch: ProducerBatch) -> bool:
        """Send a SEND to another broker; return False if there is none."""
        others = [
            broker
            for broker in self.brokers
            if broker is not batch.broker
            and broker.is_up
            and broker.takes_sends
            and broker.has_number_for(batch.pendings[0])
        ]
        if not others:
            return False
        batch.is_refused = False
        batch.move_to(min(others, key=lambda broker: broker.size_bytes))
        batch.broker.retry(batch)
        self.on_room()
        return True

    def _settle(self, batch: ProducerBatch) -> None:
        """Remove the completed oldest batch of its broker."""
        self._land(batch)
        self._close(batch)
        batch.broker.on_answer()
        self._fill_room()

    def _land(self, batch: ProducerBatch) -> None:
        """Take the oldest batch of its broker out of flight."""
        broker = batch.broker
        oldest = broker.batches.popleft()
        assert oldest is batch
        broker.message_count -= batch.message_count
        broker.size_bytes -= batch.size_bytes
        if broker.is_held and not broker.batches:
            broker.is_held = False

    def _close(self, batch: ProducerBatch) -> None:
        """Forget a completed batch that is no longer in flight."""
        self.pending_messages -= batch.message_count
        self.pending_bytes -= batch.size_bytes
        if batch.number:
            batch.broker.drop(batch)
            self._unanswered_sends -= len(batch.pendings)
        if self._pins:
            for pending in batch.pendings:
                self._order.settle(pending, was_sent=True)

    def _fill_room(self) -> None:
        if (
            self._waiting
            or self._sends
            or (
                (self._pins or self._unanswered_sends)
                and any(broker.pinned or broker.retries for broker in self.brokers)
            )
        ):
            self.on_room()

    def _forget(self, pending: PendingPublish, *, was_sent: bool = False) -> None:
        """Forget a message that failed."""
        self.pending_messages -= len(pending.bodies)
        self.pending_bytes -= pending.size_bytes
        if pending.fields is not None:
            self._unanswered_sends -= 1
        self._order.settle(pending, was_sent=was_sent)


def not_supported(*names: str) -> NotSupported:
    """Make the error of messages that need a Martlet broker, with the names of the others."""
    return NotSupported(
        f"{', '.join(names)}: no Martlet broker, and only those take messages with properties or"
        " report where they are stored: publish() without them works"
    )


def _way_out_of(error: Refused, pending: PendingPublish) -> str:
    """Return the text of a refusal; if the delay is too long, with the limit and the way out."""
    if not error.text.startswith("DPUB timeout "):
        return error.text
    assert pending.extras is not None
    return (
        f"defer_ms={pending.extras.defer_ms} is above the broker's --max-req-timeout"
        f" ({error.text.rpartition('-')[2]} ms); use deliver_at, which needs a Martlet broker:"
        f" {error.text}"
    )


def _trouble(batch: ProducerBatch) -> Trouble:
    """Return the trouble of a SEND, shared by all its messages."""
    first = batch.pendings[0]
    first.trouble = first.trouble or Trouble()
    return first.trouble
