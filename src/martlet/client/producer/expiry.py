"""The deadlines of published messages."""

from __future__ import annotations

import asyncio
from math import inf

from martlet.client.errors import PublishTimeout
from martlet.client.producer.accumulator import Accumulator
from martlet.client.producer.broker_pool import BrokerPool
from martlet.client.producer.in_flight import ProducerBatch
from martlet.client.producer.pending import PendingPublish


class Expiry:
    """Fail messages without an answer in time, with one timer for all.

    Attributes:
        next_s: when the timer fires: not after the earliest deadline.
    """

    def __init__(self, accumulator: Accumulator, pool: BrokerPool, timeout_s: float) -> None:
        self.count = 0
        self.next_s = inf
        self._accumulator = accumulator
        self._pool = pool
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None

    def set_timer(self, loop: asyncio.AbstractEventLoop, deadline_s: float) -> None:
        """Set the timer to this earlier time."""
        self.close()
        self.next_s = deadline_s
        self._timer = loop.call_at(deadline_s, self._expire, loop)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail messages past their deadline, and set the timer for the next."""
        now_s = loop.time()
        next_s = inf
        for batch in self._accumulator.batches():
            for pending in batch.pendings:
                if pending.deadline_s <= now_s:
                    reason = f"{batch.broker.name} did not answer in time"
                    self._give_up(pending, reason, batch)
                else:
                    next_s = min(next_s, pending.deadline_s)
        trouble = self._pool.trouble
        for pending in self._accumulator.waiting():
            if pending.deadline_s <= now_s:
                self._give_up(pending, trouble)
            else:
                next_s = min(next_s, pending.deadline_s)
        self._accumulator.forget_settled()
        self.next_s = inf
        if next_s < inf:
            self.set_timer(loop, next_s)

    def _give_up(
        self, pending: PendingPublish, reason: str, batch: ProducerBatch | None = None
    ) -> None:
        if pending.future.done():
            return
        if batch is not None and batch.stored is not None:
            batch.succeed(batch.stored)
            return
        self.count += len(pending.bodies)
        trouble = pending.trouble
        if trouble is not None and trouble.refusal is not None:
            reason += f"; refused {trouble.refusals} times, at last with {trouble.refusal}"
        timeout_s = self._timeout_s if pending.extras is None else pending.extras.timeout_s
        is_sent = batch is not None or trouble is not None
        stored = "it may be stored all the same" if is_sent else "it is not stored"
        pending.fail(
            PublishTimeout(
                f"no OK in {timeout_s:g} s: {reason}; {stored}; timeout_s and retries give it"
                " longer, send_timeout_s and send_retries those of send"
            )
        )
