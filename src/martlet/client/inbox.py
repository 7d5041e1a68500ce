"""What has been received and not been handed to the application yet.

Runs of messages stay as they came until somebody takes a message, which makes message objects of
one run, or a batch, which makes none.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from martlet.client.answers import Answers
from martlet.client.batch import Batch
from martlet.client.message import Message
from martlet.client.takers import Takers
from martlet.protocol.message_run import MessageRun


@dataclass(slots=True)
class Delivery:
    """A run of messages from one connection.

    Attributes:
        expires_at_s: when the broker has certainly begun to deliver them again, by
            ``time.monotonic``.
    """

    answers: Answers
    run: MessageRun
    expires_at_s: float


class Inbox(Takers):
    """Deliveries in the order in which they came, and those who wait for one.

    Attributes:
        ready: message objects made of the oldest delivery; to be taken from the left after
            ``refill`` said that there are some.
        expires_at_s: until when those are worth handling.
        touch_at_s: from when on they are to be touched when their handling begins.
        on_expired: called with how many messages were dropped because they had waited for longer
            than the broker's message timeout; the broker delivers them again, so that handling
            them here would be for nothing.
        taken: how many runs of messages were begun or handed out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ready: deque[Message] = deque()
        self.expires_at_s = 0.0
        self.touch_at_s = 0.0
        self.on_expired: Callable[[int], None] = lambda _count: None
        self.taken = 0
        self._current: Delivery | None = None
        self._deliveries: deque[Delivery] = deque()
        self._delivered = 0
        """The messages of those."""

    def put(self, delivery: Delivery) -> None:
        """This came."""
        count = delivery.run.count
        self._deliveries.append(delivery)
        self._delivered += count
        if self._waiters:
            self._begin_turn()
            self._wake(count)

    async def arrival(self) -> None:
        """Wait until there may be something, or the inbox is closed."""
        if not (self.ready or self._deliveries or self.is_closed):
            await self._wait()

    async def fill(self, count: int, wait_s: float) -> None:
        """Wait until there are so many messages, or for so long since there was one."""
        await self.arrival()
        try:
            async with asyncio.timeout(wait_s):
                while self.count() < count and not self.is_closed:
                    await self._wait()
        except TimeoutError:
            pass

    def refill(self) -> bool:
        """Make sure that ``ready`` has messages; False if there are none."""
        if self.ready:
            return True
        delivery = self._next_delivery()
        if delivery is None:
            return False
        answers = delivery.answers
        self.expires_at_s = delivery.expires_at_s
        self.touch_at_s = delivery.expires_at_s - answers.touch_before_s
        self._current = delivery
        run = delivery.run
        messages = [Message(answers, *fields) for fields in run.fields()]
        for place, packed in run.properties.items():
            messages[place].carries(packed)
        self.ready.extend(messages)
        return True

    def forget(self, answers: Answers) -> None:
        """The connection of these is lost: what it delivered comes again, from another."""
        if self._current is not None and self._current.answers is answers:
            self.ready.clear()
            self._current = None
        kept = [each for each in self._deliveries if each.answers is not answers]
        self._deliveries.clear()
        self._deliveries.extend(kept)
        self._delivered = sum(each.run.count for each in kept)

    def drop_ready(self) -> None:
        """Drop the messages of ``ready``, which have expired."""
        count = len(self.ready)
        self.ready.clear()
        if self._current is not None:
            self._current.answers.dropped += count
        self.on_expired(count)

    def next_batch(self, max_messages: int) -> Batch | None:
        """The oldest messages, as many as one connection gave and no more than so many."""
        self._unready()
        delivery = self._next_delivery()
        if delivery is None:
            return None
        runs = [delivery.run]
        left = max_messages - delivery.run.count
        while left > 0 and self._deliveries:
            following = self._deliveries[0]
            if following.answers is not delivery.answers:
                break
            runs.append(following.run)
            left -= following.run.count
            self._pop()
        if left < 0:
            runs[-1], rest = runs[-1].split(runs[-1].count + left)
            self._put_back(Delivery(delivery.answers, rest, delivery.expires_at_s))
        batch = Batch(delivery.answers, MessageRun.joined(runs))
        if delivery.answers.touch_before_s > delivery.expires_at_s - time.monotonic():
            batch.touch_soon()
        return batch

    def count(self) -> int:
        """How many messages wait here."""
        return len(self.ready) + self._delivered

    def drain(self) -> list[tuple[Answers, NDArray[np.void]]]:
        """Take everything out: the ids of what was never handed out."""
        self._unready()
        left = [(delivery.answers, delivery.run.ids()) for delivery in self._deliveries]
        self._deliveries.clear()
        self._delivered = 0
        return left

    def _unready(self) -> None:
        """Make a delivery again of the messages that are ready and that nobody took."""
        count = len(self.ready)
        current = self._current
        if count and current is not None:
            run = current.run if count == current.run.count else current.run.split(-count)[1]
            self._put_back(Delivery(current.answers, run, current.expires_at_s))
        self.ready.clear()
        self._current = None

    def _next_delivery(self) -> Delivery | None:
        now_s = time.monotonic()
        while self._deliveries:
            delivery = self._pop()
            if now_s < delivery.expires_at_s:
                self.taken += 1
                return delivery
            delivery.answers.dropped += delivery.run.count
            self.on_expired(delivery.run.count)
        return None

    def _pop(self) -> Delivery:
        delivery = self._deliveries.popleft()
        self._delivered -= delivery.run.count
        return delivery

    def _put_back(self, delivery: Delivery) -> None:
        self._deliveries.appendleft(delivery)
        self._delivered += delivery.run.count
