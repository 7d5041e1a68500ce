"""A member of a group in its own process, which writes down what it handles before that counts.

Lines of a ledger that all members share, each written in one go::

    begins  PID QUEUE OFFSET          the queue is this member's from that offset on
    handled PID QUEUE OFFSET BODY
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Sequence

from tests.ledger import Ledger

from martlet.client import Backoff, PullConsumer, PulledMessage, QueueId, Requeue

FAST = Backoff(first_s=0.01, max_s=0.1)


class PullMember:
    """Handle messages, now and then slowly or not at once, until stopped."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        self._ledger = ledger
        self._random = random.Random(os.getpid())
        self._consumer = PullConsumer(
            "work",
            "g",
            address,
            start="first",
            lease_s=2.0,
            commit_every_s=0.02,
            leave_timeout_s=0.5,
            fetch_messages=40,
            max_span=200,
            retry=FAST,
            backoff=FAST,
            on_assigned=self._begin,
        )

    def _note(self, *fields: object) -> None:
        self._ledger.write([" ".join(map(str, fields)).encode()])

    def _begin(self, queues: Sequence[QueueId]) -> None:
        for queue in queues:
            self._note("begins", os.getpid(), queue.queue, self._consumer.position(queue))

    async def _handle(self, message: PulledMessage) -> None:
        chance = self._random.random()
        if chance < 0.02 and message.attempts == 1:
            raise Requeue(10)
        if chance < 0.1:
            await asyncio.sleep(0.02)
        self._note("handled", os.getpid(), message.queue, message.offset, message.body.decode())

    async def run(self) -> None:
        """Handle until the consumer fails."""
        async with self._consumer as consumer:
            await consumer.run(self._handle, concurrency=4, order="queue")


if __name__ == "__main__":
    asyncio.run(PullMember(sys.argv[1], Ledger(sys.argv[2])).run())
