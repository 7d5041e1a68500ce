"""The queues with messages to hand out, and the workers that wait for them.

The queues take turns, so that a long backlog in one does not hold up others: message by message, or
where handlers return at once by runs of messages, for a millisecond at most.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from martlet.client.consumer.waiters import Waiters
from martlet.client.group.batch import PulledBatch
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.assigned_queue import AssignedQueue

MAX_ANSWER_S = 5.0
"""The maximum time that other queues wait until the broker of a suspect has answered its report."""


class ReadyQueues(Waiters):
    """Hand out messages of queues in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work = 0
        """The number of messages or batches handed out, of all queues."""
        self.on_lost_often: Callable[[PulledMessage, int], object] = lambda _message, _count: None
        """Called with a message to dead-letter, and the number of members lost by it."""
        self._queues: deque[AssignedQueue] = deque()
        self._is_alone = False
        """Whether a suspect is announced or handed out, and nothing else may be handed out."""
        self._announcing: AssignedQueue | None = None
        """The queue of a suspect whose report the broker has not answered."""
        self._announced: AssignedQueue | None = None
        """The queue of a suspect that the broker knows to begin, and that is not handed out yet."""
        self.is_held_back = False
        """Whether a suspect waits until nothing is handed out."""

    def add(self, held: AssignedQueue) -> None:
        """Add a queue, if it has messages to hand out."""
        if not held.is_queued and held.is_ready:
            held.is_queued = True
            self._queues.append(held)
            self._wake(1)

    async def message(self, *, in_order: bool = False) -> PulledMessage | None:
        """Take the next message; None at the end. `in_order` skips queues with one in a handler."""
        while not self.is_closed:
            if time.monotonic() > self.turn_ends_at_s:
                await self.rest()
            elif (message := self._taken(in_order)) is not None:
                return message
            else:
                await self._wait()
        return None

    def message_now(self, in_order: bool) -> PulledMessage | None:
        """Take the next message if one may be handled now: this saves an await for each."""
        if self.is_closed or time.monotonic() > self.turn_ends_at_s:
            return None
        return self._taken(in_order)

    def _taken(self, in_order: bool) -> PulledMessage | None:
        """Take the next message, whatever the time. None if waiters are woken for a later one."""
        if self.rate_limit is not None and not self._allowed(1):
            return None
        while (held := self._next(in_order)) is not None:
            if held.starts is None:
                message = held.take()
                is_withheld = False
            else:
                self._is_alone = self.is_held_back = held.is_charged and not self.at_work
                message = held.take()
                is_withheld = held.withhold(message, alone=self._is_alone)
                if not is_withheld:
                    held.start(message)
            held.is_busy = in_order
            self._back(held, in_order)
            if not is_withheld:
                self._took(1)
                return message
        return None

    def run_now(self, in_order: bool) -> AssignedQueue | None:
        """Take the queue whose turn it is, for a run; None without one, or with a rate limit."""
        queues = self._queues
        if not queues or self.is_closed or self._is_alone or self.rate_limit is not None:
            return None
        if time.monotonic() > self.turn_ends_at_s:
            return None
        held = queues[0]
        if not held.may_run or (in_order and held.is_busy):
            return None
        queues.popleft()
        held.is_queued = False
        held.is_busy = in_order
        if queues:
            self._wake(1)
        return held

    def hand_out_again(self) -> None:
        """Hand out a message that waited until nothing else was handled."""
        self._is_alone = self.is_held_back = False
        self._wake(1)

    async def batch(self, max_count: int, wait_s: float = 0.0) -> PulledBatch | None:
        """Take the next messages of one queue within `wait_s`, up to a maximum; None at the end."""
        while not self.is_closed:
            allowed = self._allowed(max_count)
            held = self._next(False) if allowed else None
            if held is None:
                await self._wait()
                continue
            if wait_s > 0 and held.count < max_count and not held.has_charged:
                self._back(held, False)
                await asyncio.sleep(wait_s)
                wait_s = 0.0
                continue
            batch = self._batch_of(held, allowed)
            self._back(held, False)
            if batch is not None:
                self._took(len(batch))
                return batch
        return None

    def _batch_of(self, held: AssignedQueue, max_count: int) -> PulledBatch | None:
        """Take the next messages of a queue; None if the next one is withheld."""
        if not held.has_charged:
            return held.take_batch(max_count)
        self._is_alone = self.is_held_back = alone = held.is_charged and not self.at_work
        message = held.take()
        return None if held.withhold(message, alone=alone) else held.batch_of(message)

    def _next(self, in_order: bool) -> AssignedQueue | None:
        """Return the queue whose turn it is."""
        queues = self._queues
        if self._is_alone:
            announced, self._announced = self._announced, None
            if announced is None:
                return None
            announced.is_queued = False
            if announced.is_announced:
                return announced
            self._is_alone = False
            announced.take_back()
            self.add(announced)
        while queues:
            held = queues.popleft()
            held.is_queued = False
            if not held.is_ready or (in_order and held.is_busy):
                continue
            if held.starts is None or not held.is_charged:
                return held
            held.is_queued = True
            if self.at_work:
                self.is_held_back = True
                queues.appendleft(held)
            else:
                self._announce(held)
            return None
        return None

    def _announce(self, held: AssignedQueue) -> None:
        """Have the broker know that a suspect begins, and hand out nothing before it answers."""
        self._is_alone = True
        self._announcing = held
        held.announce(partial(self._on_known, held))
        asyncio.get_running_loop().call_later(MAX_ANSWER_S, self._stop_waiting, held)

    def _on_known(self, held: AssignedQueue, error: BaseException | None) -> None:
        """Hand out the suspect, unless the queue is lost: then it takes no more turns."""
        if self._announcing is not held:
            held.is_queued = False
            if error is None:
                self.add(held)
        elif error is not None:
            self._stop_waiting(held)
        else:
            self._announcing, self._announced = None, held
            self._wake(1)

    def _stop_waiting(self, held: AssignedQueue) -> None:
        """Go on with other queues. This one takes turns again when the broker answers."""
        if self._announcing is held:
            self._announcing = None
            self._is_alone = False
            held.take_back()
            self._wake(1)

    def _back(self, held: AssignedQueue, in_order: bool) -> None:
        """Add the queue again for its next turn, if it has more; wake a waiter for the next one."""
        if held.is_ready and not (in_order and held.is_busy):
            held.is_queued = True
            self._queues.append(held)
        if self._queues:
            self._wake(1)
