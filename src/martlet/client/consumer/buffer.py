"""The buffer of received messages that the application does not have yet.

A broker that counts failures must know the started messages before they are handed out, and the
report must be written before a handler can end the process. So each run of messages is reported one
turn of the event loop ahead. What was written may still be lost: the kernel drops what it has not
sent yet if the process dies with unread input. Therefore a suspect, which a lost client was
handling, begins while nothing else is handled (see `martlet.client.consumer.handling.isolation`),
and when the broker has answered its report: if it ends this process too, no other message fails::

    state       a message is
    encoded     in a run, as it was received
    waiting     of the oldest run, and not started: the channel counts failures or there is a limit
    reported    written as started; nothing else is reported meanwhile
    ready       started: the next one to hand out

    event                        new state of its messages
    put                          encoded
    refill, nothing waits        of the oldest run: waiting, or ready where starts are not counted
    refill, or reported ended    the next of those waiting: reported, or ready (not counted)
      new                          as many as one turn handles, at least one for each idle worker
      has failed before            that one alone
      suspect                      that one alone; stays waiting while anything else is handled
    one turn later               reported: ready; of a suspect only once the broker has answered
    the broker has it no more    reported: dropped
    the broker does not answer   all of its connection: given back
    taken, handed out            ready: out of the buffer
    a batch, late or a drain     waiting, reported, ready: encoded again; then the oldest leave
                                 (late ones not before all that is reported is ready)
    expired                      a run whose turn comes, or that is waiting or ready: dropped
    connection lost              all of it: dropped
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
class BufferedRun:
    """A run of messages from one connection."""

    answers: AckBatcher
    run: MessageRun
    expires_at_s: float
    """When the broker has certainly begun to redeliver them, by ``time.monotonic``."""

    def is_late(self, until_s: float) -> bool:
        """Return whether they time out by then, at a Martlet broker."""
        return self.expires_at_s < until_s and self.answers.are_extended

    def ids(self) -> tuple[AckBatcher, NDArray[np.void]]:
        """Return their ids, with the answers of their connection."""
        return self.answers, self.run.ids()


class ReceiveBuffer(Waiters):
    """Hold runs in order of arrival, and wake waiting workers."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: deque[Message] = deque()
        """Take messages from the left after `refill` returned True."""
        self.expires_at_s = 0.0
        """When those of ``ready`` time out."""
        self.touch_at_s = 0.0
        """From then on they are touched when their handling begins."""
        self.taken = 0
        """The number of runs begun or handed out."""
        self.worker_count = 0
        """The number of workers that take messages from here."""
        self.on_expired: Callable[[int], None] = lambda _count: None
        """Called with the number of messages dropped after a timeout; brokers redeliver them."""
        self.on_hungry: Callable[[], None] | None = None
        """Called when a worker waits for a message after `take_late` took some out."""
        self.is_out: Callable[[], bool] = lambda: False
        """Returns whether the application has unanswered messages or batches."""
        self._waiting: deque[Message] = deque()
        self._reported: list[Message] = []
        self._announced: set[asyncio.Future[bool]] = set()
        """One for each batch that begins with a suspect: whether the broker has it in flight."""
        self._run_size = 1
        self._run_began_s = 0.0
        self._isolation = SuspectIsolation(partial(self._wake, 1))
        self._current: BufferedRun | None = None
        """The run of the messages that are waiting, reported or ready."""
        self._runs: deque[BufferedRun] = deque()
        self._encoded_count = 0
        """The number of messages in ``_runs``."""

    def put(self, received: BufferedRun) -> None:
        """Add received messages."""
        count = received.run.count
        self._runs.append(received)
        self._encoded_count += count
        if self._waiters:
            self._begin_turn()
            self._wake(count)

    def close(self, error: Exception | None = None) -> None:
        """Stop handing out; iterators and ``run`` raise the error, if any."""
        self._isolation.close()
        for answer in self._announced:
            _settle(answer, False)
        super().close(error)

    async def arrival(self) -> None:
        """Wait until there may be a message, or the buffer is closed."""
        if self.is_closed or self.ready:
            return
        if self._is_held_up or self._isolation.is_waiting or not (self._waiting or self._runs):
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
        if not self._waiting:
            current = self._current = self._next_run()
            if current is None:
                return False
            answers, run = current.answers, current.run
            self.expires_at_s = current.expires_at_s
            self.touch_at_s = current.expires_at_s - answers.touch_before_s
            messages = [
                Message(answers, timestamp_ns, attempts, message_id, body)
                for timestamp_ns, attempts, message_id, body in run.fields()
            ]
            for index, packed in run.properties.items():
                messages[index].carries(packed)
            if not answers.max_attempts and self.rate_limit is None:
                self.ready.extend(messages)
                return True
            self._waiting.extend(messages)
        return self._start(idle_count=len(self._waiters) + 1)

    # started messages

    @property
    def _is_held_up(self) -> bool:
        """Whether nothing may be taken now, even if messages wait."""
        return bool(self._reported) or self._isolation.holds_up or self.waits_for_rate

    def _start(self, *, idle_count: int) -> bool:
        """Start the next messages that wait. Returns whether they are ready already."""
        waiting, current = self._waiting, self._current
        assert current is not None
        answers = current.answers
        count = self._allowed(len(waiting))
        if not count:
            return False
        if self.rate_limit is not None:
            count = min(count, idle_count)
        # The channel's policy may count failures no longer.
        is_counted = answers.max_attempts != 0
        is_suspect = is_counted and waiting[0].attempts > 1 and waiting[0].is_suspect
        if is_suspect and not self._begins_alone(waiting[0], answers, idle_count):
            return False
        if is_counted:
            count = min(count, self._count_to_start(idle_count, answers.max_attempts))
        self._took(count)
        started = [waiting.popleft() for _ in range(count)]
        if not is_counted:
            self.ready.extend(started)
            self._wake(count)
            return True
        self._reported = started
        if is_suspect:
            answers.announce(started[-1].id, partial(self._on_known, started))
            patience_s = answers.message_timeout_s * _PATIENCE
            asyncio.get_running_loop().call_later(patience_s, self._stop_waiting, started)
        else:
            answers.started(started[-1].id)
            asyncio.get_running_loop().call_soon(self._hand_out, started)
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
            for ids in self.forget(answers):
                answers.give_back(ids)

    async def begin(self, batch: Batch) -> bool:
        """Report a batch as started. Returns whether it may be handled.

        Waits until the report is written, or answered for a suspect.
        """
        answers = batch.answers
        if answers.max_attempts and batch.is_suspect:
            answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            answers.announce(batch.last_id, lambda error: _settle(answer, error is None))
            self._announced.add(answer)
            try:
                async with asyncio.timeout(answers.message_timeout_s * _PATIENCE):
                    return await answer
            except TimeoutError:
                return False
            finally:
                self._announced.discard(answer)
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
        for message in islice(self._waiting, max(size, idle_count)):
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
        if self._waiters and self._waiting and not self._is_held_up:
            self._start(idle_count=len(self._waiters))

    def _begins_alone(self, suspect: Message, answers: AckBatcher, idle_count: int) -> bool:
        """Return whether a suspect should begin now, with nothing beside it."""
        if self.worker_count == 1:
            return True
        patience_s = answers.message_timeout_s * _PATIENCE
        # The last worker that becomes idle begins it.
        is_busy = (lambda: idle_count < self.worker_count) if self.worker_count else self.is_out
        if not self._isolation.may_begin(is_busy, patience_s):
            return False
        if self.worker_count:
            self._isolation.begin(lambda: not suspect.is_answered, answers.message_timeout_s)
        else:
            self._isolation.begin(
                lambda: bool(self._reported or self.ready) or self.is_out(), patience_s
            )
        return True

    def take_late(self, until_s: float) -> list[tuple[AckBatcher, NDArray[np.void]]]:
        """Take out waiting messages of Martlet brokers that time out by then."""
        if self._current is not None and not self._reported and self._current.is_late(until_s):
            self._unready()
        late = []
        while self._runs and self._runs[0].is_late(until_s):
            late.append(self._pop().ids())
        return late

    def forget(self, answers: AckBatcher) -> list[NDArray[np.void]]:
        """Drop the messages of a lost connection; return the ids of those encoded, run by run."""
        if self._current is not None and self._current.answers is answers:
            self._forget_current()
        dropped = [buffered.run.ids() for buffered in self._runs if buffered.answers is answers]
        self._runs = deque(buffered for buffered in self._runs if buffered.answers is not answers)
        self._encoded_count -= sum(map(len, dropped))
        return dropped

    def drop_ready(self) -> None:
        """Drop the expired messages of ``ready``."""
        count = self._current_count
        if self._current is not None:
            self._current.answers.dropped += count
        self._forget_current()
        self.on_expired(count)

    @property
    def _current_count(self) -> int:
        return len(self.ready) + len(self._reported) + len(self._waiting)

    def _forget_current(self) -> None:
        dropped = [*self.ready, *self._reported]
        self.ready.clear()
        self._reported = []
        self._waiting.clear()
        self._isolation.is_waiting = False
        self._current = None
        if any(message.is_suspect for message in dropped):
            self._isolation.abandon()
        elif dropped:
            self._wake(1)  # Other runs may have waited for these.

    def next_batch(self, max_messages: int) -> Batch | None:
        """Take the oldest messages of one connection; None if there are none, or not yet."""
        if self._isolation.holds_up and not self.ready:
            return None
        if self.rate_limit is not None and self.count():
            max_messages = self._allowed(max_messages)
            if not max_messages:
                return None
        self._unready()
        first = self._next_run()
        if first is None:
            return None
        answers = first.answers
        suspect_at = first_suspect(first.run) if answers.max_attempts else None
        if suspect_at == 0:
            patience_s = answers.message_timeout_s * _PATIENCE
            if not self._isolation.may_begin(self.is_out, patience_s):
                self._put_back(first)
                return None
            self._isolation.begin(self.is_out, patience_s)
        if suspect_at is not None:
            max_messages = min(max_messages, max(1, suspect_at))
        runs, expires_at_s = [first.run], first.expires_at_s
        left = max_messages - first.run.count
        while left > 0 and self._runs:
            following = self._runs[0]
            if following.answers is not answers or first_suspect(following.run) is not None:
                break
            self._pop()
            runs.append(following.run)
            expires_at_s = following.expires_at_s
            left -= following.run.count
        if left < 0:
            runs[-1], rest = runs[-1].split(runs[-1].count + left)
            self._put_back(BufferedRun(answers, rest, expires_at_s))
        batch = Batch(answers, MessageRun.joined(runs))
        self._took(len(batch))
        if answers.touch_before_s > first.expires_at_s - time.monotonic():
            batch.touch_soon()
        return batch

    def count(self) -> int:
        """The number of waiting messages."""
        return self._current_count + self._encoded_count

    def drain(self) -> list[tuple[AckBatcher, NDArray[np.void]]]:
        """Take everything out. Returns the ids of messages never handed out."""
        self._unready()
        left = [buffered.ids() for buffered in self._runs]
        self._runs.clear()
        self._encoded_count = 0
        return left

    def _unready(self) -> None:
        """Encode what is waiting, reported or ready again."""
        count = self._current_count
        current = self._current
        if count and current is not None:
            run = current.run if count == current.run.count else current.run.split(-count)[1]
            self._put_back(BufferedRun(current.answers, run, current.expires_at_s))
        self._forget_current()

    def _next_run(self) -> BufferedRun | None:
        now_s = time.monotonic()
        while self._runs:
            oldest = self._pop()
            if now_s < oldest.expires_at_s:
                self.taken += 1
                return oldest
            oldest.answers.dropped += oldest.run.count
            self.on_expired(oldest.run.count)
        return None

    def _pop(self) -> BufferedRun:
        oldest = self._runs.popleft()
        self._encoded_count -= oldest.run.count
        return oldest

    def _put_back(self, buffered: BufferedRun) -> None:
        self._runs.appendleft(buffered)
        self._encoded_count += buffered.run.count


def _settle(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)
