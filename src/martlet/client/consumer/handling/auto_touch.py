"""Touch messages whose handling takes long, before they time out.

A broker redelivers a message that is not answered within the message timeout, unless it is touched,
and in any case after ``--max-msg-timeout``. So four times in a message timeout all messages being
handled are touched: those in handlers, those taken by iterating, and unanswered batches. Fast
handlers are hardly ever running at that moment, so this costs next to nothing. A message that has
waited for long is touched when it is handed out (`ReceiveBuffer.touch_at_s`).

A batch, or a message taken by iterating, counts as being handled as long as it is referenced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.batch import Batch
from martlet.client.consumer.handling.worker import Worker
from martlet.client.consumer.message import Message


class HandedOut:
    """Remember messages handed out one by one until they are answered.

    One that the application no longer references is not touched: nothing can answer it, so the
    broker must redeliver it.

    Args:
        limit: above this number, answered ones are removed; if too many remain, the oldest are
            forgotten, since they have timed out at the broker.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._messages: deque[Message] = deque()
        self._old: deque[ReferenceType[Message]] = deque()
        """Messages that `held` has checked before: only the application keeps them."""

    def remember(self, limit: int) -> None:
        """Raise the limit, if it is lower."""
        self._limit = max(self._limit, limit)

    def add(self, message: Message) -> None:
        """Remember a message."""
        messages = self._messages
        while messages and messages[0]._answers is None:
            messages.popleft()
        messages.append(message)
        if len(messages) > self._limit:
            unanswered = [other for other in messages if not other.is_answered]
            messages.clear()
            messages.extend(unanswered[-(self._limit // 2) - 1 :])

    @property
    def has_open(self) -> bool:
        """Return whether any is unanswered."""
        old = (old() for old in self._old)
        return any(not message.is_answered for message in (*self._messages, *old) if message)

    def held(self) -> list[Message]:
        """Return unanswered messages that the application still has."""
        waiting: list[Message] = []
        while self._messages:
            message = self._messages.popleft()
            answers = message._answers
            if answers is None:
                continue
            if answers.is_handed_out:
                self._old.append(ref(message))
            else:
                waiting.append(message)
        self._messages.extend(waiting)
        message = None  # type: ignore[assignment]  # or the last one would be held here
        kept = [old() for old in self._old]
        held = [old for old in kept if old is not None and not old.is_answered][-self._limit :]
        self._old = deque(map(ref, held))
        return held

    def give_back(self) -> None:
        """Have the brokers deliver unanswered messages to others."""
        for message in [*(old() for old in self._old), *self._messages]:
            if message is not None and not message.is_answered:
                message.give_back()
        self._old.clear()
        self._messages.clear()


logger = logging.getLogger("martlet.client")

MIN_PAUSE_S = 0.02
MANY = 1000
"""Above this number of batches, answered ones are removed."""


class AutoTouch:
    """Touch messages being handled, at intervals while there are any.

    Args:
        is_on: whether to touch; else it only remembers batches.
    """

    def __init__(self, is_on: bool, handed_out: HandedOut) -> None:
        self.is_on = is_on
        self._handed_out = handed_out
        self._workers: set[Worker] = set()
        self._batches: deque[ReferenceType[Batch]] = deque()
        self._since_s: WeakKeyDictionary[Message | Batch, float] = WeakKeyDictionary()
        """When each that is being handled was first seen here."""
        self._overdue: WeakSet[Message | Batch] = WeakSet()
        """Messages logged as beyond the help of touches."""
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = float("inf")

    def connected(self, message_timeout_s: float) -> None:
        """Note a broker's message timeout."""
        pause_s = max(MIN_PAUSE_S, message_timeout_s / 4)
        if pause_s < self._pause_s:
            self._pause_s = pause_s
            self._begin_again()

    def begin(self, workers: Iterable[Worker]) -> None:
        """Touch the messages of these workers."""
        self._workers.update(workers)
        self._begin_again()

    def end(self, workers: Iterable[Worker]) -> None:
        """Forget workers that have ended."""
        self._workers.difference_update(workers)

    def take(self, batch: Batch) -> None:
        """Remember a batch."""
        batches = self._batches
        while batches:
            first = batches[0]()
            if first is not None and first.is_open:
                break
            batches.popleft()
        batches.append(ref(batch))
        if len(batches) > MANY:
            self._batches = deque(ref(held) for held in self.held())
        if self._timer is None:
            self._begin_again()

    def close(self) -> None:
        """Stop touching."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._pause_s = 0.0

    def held(self) -> list[Batch]:
        """Return unanswered batches that were handed out."""
        batches = (held() for held in self._batches)
        return [batch for batch in batches if batch is not None and batch.is_open]

    def _begin_again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # It runs even while idle: a check at each message would cost more.
        if self.is_on and 0 < self._pause_s < float("inf"):
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._touch)

    def _touch(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        for message in [*(worker.message for worker in self._workers), *self._handed_out.held()]:
            answers = message._answers if message is not None else None
            if message is None or answers is None:
                continue  # Another thread may have answered it.
            if self._may_touch(message, answers, now_s):
                answers.touch(message.id)
        batches = self.held()
        self._batches = deque(map(ref, batches))
        for batch in batches:
            if self._may_touch(batch, batch.answers, now_s):
                batch.touch_soon()
        self._begin_again()

    def _may_touch(self, what: Message | Batch, answers: AckBatcher, now_s: float) -> bool:
        """Return whether the broker accepts a touch of it; log once when it no longer does."""
        at_work_s = now_s - self._since_s.setdefault(what, now_s)
        left_s = answers.max_message_timeout_s - at_work_s
        if left_s <= 0 and what not in self._overdue:
            self._overdue.add(what)
            logger.error(
                "%r has been handled for %.3g s, and the broker delivers it again: that is its"
                " --max-msg-timeout",
                what,
                at_work_s,
            )
        return left_s > 0
