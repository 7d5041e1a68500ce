"""When what is published is given up."""

from __future__ import annotations

import asyncio

from martlet.client.errors import PublishTimeout
from martlet.client.producer.accumulator import Accumulator
from martlet.client.producer.broker_pool import BrokerPool
from martlet.client.producer.publication import PendingPublish


class Expiry:
    """Gives up what has no answer in time, with one timer for all of it.

    Attributes:
        count: messages given up.
        timer: goes off at the earliest deadline; None while nothing has one.
    """

    def __init__(self, outbox: Accumulator, pool: BrokerPool, timeout_s: float) -> None:
        self.count = 0
        self._outbox = outbox
        self._pool = pool
        self._timeout_s = timeout_s
        self.timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop, deadline_s: float) -> None:
        """Watch, now that something has this deadline; what comes later has none before it."""
        self.timer = loop.call_at(deadline_s, self._expire, loop)

    def close(self) -> None:
        """Give up nothing more."""
        if self.timer is not None:
            self.timer.cancel()

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give up what is too late, and look again when the next will be."""
        now_s = loop.time()
        next_s: float | None = None
        for lane in self._outbox.lanes:
            for shipment in lane.in_flight:
                for publication in shipment.publications:
                    if publication.deadline_s <= now_s:
                        self._give_up(publication, f"{lane.name} did not answer")
                    elif next_s is None or publication.deadline_s < next_s:
                        next_s = publication.deadline_s
        trouble = self._pool.trouble
        for publication in self._outbox.waiting():
            if publication.deadline_s <= now_s:
                self._give_up(publication, trouble)
            elif next_s is None or publication.deadline_s < next_s:
                next_s = publication.deadline_s
        self._outbox.forget_settled()
        self.timer = None if next_s is None else loop.call_at(next_s, self._expire, loop)

    def _give_up(self, publication: PendingPublish, reason: str) -> None:
        if publication.future.done():
            return
        self.count += len(publication.bodies)
        trouble = publication.trouble
        if trouble is not None and trouble.refusal is not None:
            reason += f"; refused {trouble.refusals} times, at last with {trouble.refusal}"
        publication.fail(PublishTimeout(f"not published in {self._timeout_s:g} s: {reason}"))
