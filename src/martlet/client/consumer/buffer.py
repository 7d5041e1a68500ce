"""The buffer of received messages that the application does not have yet.

Runs of messages stay encoded until the application takes a message, which makes message objects of
one run, or a batch, which makes none.

A broker that counts failures must know the started messages before they are handed out, and the
report must be written before a handler can end the process. So messages become ready in runs, and
each run is reported one turn of the event loop ahead: as many messages as are handled in one turn,
or as there are idle workers; one if handlers are slow. What was written may still be lost: the
kernel drops what it has not sent yet if the process dies with unread input::

    received  | rest: not started | reported, written | ready: started | handed out
                                  1 turn              ^ taken from the left

A message that has failed before has a run of its own. A suspect, which a lost client was handling,
is handled while nothing else is (see `martlet.client.consumer.handling.isolation`), and when the
broker has answered its report: if it ends this process too, this message fails, and no other.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.batch import Batch, first_suspect
from martlet.client.consumer.handling.isolation import SuspectIsolation
from martlet.client.consumer.message import Message
from martlet.client.consumer.waiters import TURN_S, Waiters
from martlet.protocol.nsq.message_run import MessageRun

_MAX_RUN_LENGTH = 1024
"""The maximum number of messages reported as started at once."""
_PATIENCE = 1 / 8
"""The fraction of the message timeout that a suspect waits, and that others wait for it."""


@dataclass(slots=True)
class BufferedMessage:
    """A run of messages from one connection.

    Attributes:
        expires_at_s: when the broker has certainly begun to redeliver them, by ``time.monotonic``.
    """

    answers: AckBatcher
    run: MessageRun
    expires_at_s: float


class ReceiveBuffer(Waiters):
    """Hold deliveries in order of arrival, and wake waiting workers.

    Attributes:
        ready: message objects made of the oldest delivery; take them from the left after ``refill``
            returned True.
        expires_at_s: when those time out.
        touch_at_s: from then on they are touched when their handling begins.
        on_expired: called with the number of messages dropped because they had waited for longer
            than the broker's message timeout; the broker redelivers them, so handling them here
            would be in vain.
        taken: the number of runs begun or handed out.
        worker_count: the number of workers that take messages from here.
        on_hungry: called when a worker waits for a message after `take_late` found some.
        is_out: returns whether the application has unanswered messages or batches.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ready: deque[Message] = deque()
        self.expires_at_s = 0.0
        self.touch_at_s = 0.0
        self.on_expired: Callable[[int], None] = lambda _count: None
        self.taken = 0
        self.worker_count = 0
        self.on_hungry: Callable[[], None] | None = None
        self.is_out: Callable[[], bool] = lambda: False
        self._rest: deque[Message] = deque()
        """The rest of the current delivery, not started."""
        self._reported: list[Message] = []
        """The messages reported as started, which become ready in the next turn."""
        self._awaited: set[asyncio.Future[bool]] = set()
        """Whether the brokers know that suspects begin, each a batch."""
        self._run_size = 1
        self._run_began_s = 0.0
        self._isolation = SuspectIsolation(partial(self._wake, 1))
        self._current: BufferedMessage | None = None
        self._deliveries: deque[BufferedMessage] = deque()
        self._delivered = 0
        """The number of those messages."""

    def put(self, delivery: BufferedMessage) -> None:
        """Add received messages."""
        count = delivery.run.count
        self._deliveries.append(delivery)
        self._delivered += count
        if self._waiters:
            self._begin_turn()
            self._wake(count)

    def close(self, error: Exception | None = None) -> None:
        """Stop handing out; iterators and ``run`` raise the error, if any."""
        self._isolation.close()
        for known in self._awaited:
            _settle(known, False)
        super().close(error)

    async def arrival(self) -> None:
        """Wait until there may be a message, or the buffer is closed."""
        if self.is_closed or self.ready:
            return
        if self._is_held_up or self._isolation.is_waiting or not (self._rest or self._deliveries):
            if self.on_hungry is not None and not self.waits_for_rate:
                self.on_hungry()
            await self._wait()

    async def fill(self, count: int, wait_s: float) -> None:
        """Wait until there are enough messages, or for a time after the first one."""
        await self.arrival()
        try:
            async with asyncio.timeout(wait_s):
                while self.count() < count and not self.is_closed:
                    await self._wait()
        except TimeoutError:
            pass

    def refill(self) -> bool:
        """Fill ``ready``; return False if there are no messages."""
        if self.ready:
            return True
        if self._is_held_up:
            return False
        if self._rest:
            return self._start(idle_count=len(self._waiters) + 1)
        delivery = self._next_delivery()
        if delivery is None:
            return False
        answers = delivery.answers
        self.expires_at_s = delivery.expires_at_s
        self.touch_at_s = delivery.expires_at_s - answers.touch_before_s
        self._current = delivery
        run = delivery.run
        messages = [
            Message(answers, timestamp_ns, attempts, message_id, body)
            for timestamp_ns, attempts, message_id, body in run.fields()
        ]
        for place, packed in run.properties.items():
            messages[place].carries(packed)
        if answers.max_attempts or self.rate_limit is not None:
            self._rest.extend(messages)
            return self._start(idle_count=len(self._waiters) + 1)
        self.ready.extend(messages)
        return True

    # started messages

    @property
    def _is_held_up(self) -> bool:
        """Whether nothing may be taken now, even if messages wait."""
        return bool(self._reported) or self._isolation.holds_up or self.waits_for_rate

    def _start(self, *, idle_count: int) -> bool:
        """Report the next messages as started. Returns whether they are ready already."""
        rest, current = self._rest, self._current
        assert current is not None
        allowed = self._allowed(len(rest))
        if not allowed:
            return False
        if not current.answers.max_attempts:
            # There is a limit, or the channel's policy no longer counts failures.
            count = allowed if self.rate_limit is None else min(allowed, idle_count)
            self.ready.extend(rest.popleft() for _ in range(count))
            self._took(count)
            self._wake(count)
            return True
        first = rest[0]
        if (
            first.attempts > 1
            and first.is_suspect
            and self.worker_count != 1
            and not self._begins_alone(first, current.answers, idle_count)
        ):
            return False
        count = self._count_to_start(idle_count, current.answers.max_attempts)
        if self.rate_limit is not None:
            count = min(count, allowed, idle_count)
            self._took(count)
        self._reported = [rest.popleft() for _ in range(count)]
        reported, answers = self._reported, current.answers
        if first.attempts > 1 and first.is_suspect:
            answers.announce(reported[-1].id, partial(self._on_known, reported))
            patience_s = answers.message_timeout_s * _PATIENCE
            asyncio.get_running_loop().call_later(patience_s, self._stop_waiting, reported)
        else:
            answers.started(reported[-1].id)
            asyncio.get_running_loop().call_soon(self._hand_out, reported)
        return False

    def _on_known(self, reported: list[Message], error: BaseException | None) -> None:
        """Hand out a suspect, unless the broker no longer has it in flight here."""
        if error is None:
            self._hand_out(reported)
        elif reported is self._reported and self._current is not None:
            self._current.answers.dropped += len(reported)
            self._reported = []
            self._isolation.abandon()

    def _stop_waiting(self, reported: list[Message]) -> None:
        """Return the messages of a broker that does not answer, and go on with the others."""
        if reported is self._reported and self._current is not None:
            answers = self._current.answers
            self._unready()
            ids = [each.run.ids() for each in self._deliveries if each.answers is answers]
            self.forget(answers)
            for some in ids:
                answers.give_back(some)

    async def begin(self, batch: Batch) -> bool:
        """Report a batch as started. Returns whether it may be handled.

        Waits until the report is written, or answered for a suspect.
        """
        answers = batch.answers
        if answers.max_attempts and batch.is_suspect:
            known: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            answers.announce(batch.last_id, lambda error: _settle(known, error is None))
            self._awaited.add(known)
            try:
                async with asyncio.timeout(answers.message_timeout_s * _PATIENCE):
                    return await known
            except TimeoutError:
                return False
            finally:
                self._awaited.discard(known)
        if answers.max_attempts:
            answers.started_all(batch.ids)
            await asyncio.sleep(0)
        return not self.is_closed

    def _count_to_start(self, idle_count: int, max_attempts: int) -> int:
        """Estimate how many of the next messages will be handled in one turn."""
        took_s = time.monotonic() - self._run_began_s
        size = self._run_size
        size = 2 * size if took_s < TURN_S else max(1, int(size * TURN_S / took_s))
        self._run_size = size = min(size, _MAX_RUN_LENGTH)
        if max_attempts == 1:
            return 1
        count = 0
        for message in islice(self._rest, max(size, idle_count)):
            if message.attempts > 1 and message.failures:
                return count or 1
            count += 1
        return count

    def _hand_out(self, reported: list[Message]) -> None:
        """Make the reported messages ready, now that the report is written, or answered."""
        if reported is not self._reported:
            return  # They were dropped meanwhile.
        self._reported = []
        self.ready.extend(reported)
        self._run_began_s = time.monotonic()
        self._begin_turn()
        self._wake(len(reported))
        if self._waiters and self._rest and not self._is_held_up:
            self._start(idle_count=len(self._waiters))

    def _begins_alone(self, suspect: Message, answers: AckBatcher, idle_count: int) -> bool:
        """Return whether a suspect should begin now, with nothing beside it."""
        patience_s = answers.message_timeout_s * _PATIENCE
        solitude = self._isolation
        if not self.worker_count:
            if not solitude.may_begin(self.is_out, patience_s):
                return False
            solitude.begin(lambda: bool(self._reported or self.ready) or self.is_out(), patience_s)
            return True
        is_busy = idle_count < self.worker_count  # The last worker that becomes idle begins it.
        if not solitude.may_begin(lambda: is_busy, patience_s):
            return False
        solitude.begin(lambda: not suspect.is_answered, answers.message_timeout_s)
        return True

    def take_late(self, until_s: float) -> list[tuple[AckBatcher, NDArray[np.void]]]:
        """Take out waiting messages of Martlet brokers that time out by then."""
        late: list[tuple[AckBatcher, NDArray[np.void]]] = []
        current = self._current
        if (
            current is not None
            and not self._reported
            and current.expires_at_s < until_s
            and current.answers.are_extended
        ):
            self._unready()
        while self._deliveries and self._deliveries[0].expires_at_s < until_s:
            if not self._deliveries[0].answers.are_extended:
                break
            delivery = self._pop()
            late.append((delivery.answers, delivery.run.ids()))
        return late

    def forget(self, answers: AckBatcher) -> None:
        """Drop the messages of a lost connection: they are redelivered on another."""
        if self._current is not None and self._current.answers is answers:
            self._forget_current()
        kept = [each for each in self._deliveries if each.answers is not answers]
        self._deliveries.clear()
        self._deliveries.extend(kept)
        self._delivered = sum(each.run.count for each in kept)

    def drop_ready(self) -> None:
        """Drop the expired messages of ``ready``."""
        count = self._current_count
        if self._current is not None:
            self._current.answers.dropped += count
        self._forget_current()
        self.on_expired(count)

    @property
    def _current_count(self) -> int:
        return len(self.ready) + len(self._reported) + len(self._rest)

    def _forget_current(self) -> None:
        dropped = [*self.ready, *self._reported]
        self.ready.clear()
        self._reported = []
        self._rest.clear()
        self._isolation.is_waiting = False
        self._current = None
        if any(message.is_suspect for message in dropped):
            self._isolation.abandon()
        elif dropped:
            self._wake(1)  # The other deliveries may have waited for these.

    def next_batch(self, max_messages: int) -> Batch | None:
        """Take the oldest messages of one connection, up to a maximum. None if there are none, or
        not yet.
        """
        if self._isolation.holds_up and not self.ready:
            return None
        if self.rate_limit is not None and self.count():
            max_messages = self._allowed(max_messages)
            if not max_messages:
                return None
        self._unready()
        delivery = self._next_delivery()
        if delivery is None:
            return None
        runs = [delivery.run]
        left = max_messages - delivery.run.count
        suspect_at = first_suspect(delivery.run) if delivery.answers.max_attempts else None
        if suspect_at == 0:
            patience_s = delivery.answers.message_timeout_s * _PATIENCE
            if not self._isolation.may_begin(self.is_out, patience_s):
                self._put_back(delivery)
                return None
            self._isolation.begin(self.is_out, patience_s)
        if suspect_at is not None:
            left = min(left, max(1, suspect_at) - delivery.run.count)
        while left > 0 and self._deliveries and suspect_at is None:
            following = self._deliveries[0]
            if (
                following.answers is not delivery.answers
                or first_suspect(following.run) is not None
            ):
                break
            runs.append(following.run)
            left -= following.run.count
            self._pop()
        if left < 0:
            runs[-1], rest = runs[-1].split(runs[-1].count + left)
            self._put_back(BufferedMessage(delivery.answers, rest, delivery.expires_at_s))
        batch = Batch(delivery.answers, MessageRun.joined(runs))
        self._took(len(batch))
        if delivery.answers.touch_before_s > delivery.expires_at_s - time.monotonic():
            batch.touch_soon()
        return batch

    def count(self) -> int:
        """The number of waiting messages."""
        return self._current_count + self._delivered

    def drain(self) -> list[tuple[AckBatcher, NDArray[np.void]]]:
        """Take everything out. Returns the ids of messages never handed out."""
        self._unready()
        left = [(delivery.answers, delivery.run.ids()) for delivery in self._deliveries]
        self._deliveries.clear()
        self._delivered = 0
        return left

    def _unready(self) -> None:
        """Turn ready messages that were not taken back into a delivery."""
        count = self._current_count
        current = self._current
        if count and current is not None:
            run = current.run if count == current.run.count else current.run.split(-count)[1]
            self._put_back(BufferedMessage(current.answers, run, current.expires_at_s))
        self._forget_current()

    def _next_delivery(self) -> BufferedMessage | None:
        now_s = time.monotonic()
        while self._deliveries:
            delivery = self._pop()
            if now_s < delivery.expires_at_s:
                self.taken += 1
                return delivery
            delivery.answers.dropped += delivery.run.count
            self.on_expired(delivery.run.count)
        return None

    def _pop(self) -> BufferedMessage:
        delivery = self._deliveries.popleft()
        self._delivered -= delivery.run.count
        return delivery

    def _put_back(self, delivery: BufferedMessage) -> None:
        self._deliveries.appendleft(delivery)
        self._delivered += delivery.run.count


def _settle(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)
