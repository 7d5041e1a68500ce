"""What waits in the inbox, and what it costs to know how much that is."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator

from tests.unit.client.scripted_broker import ScriptedBroker, message_frame

from martlet.address import Address
from martlet.client import Identity
from martlet.client.answers import Answers
from martlet.client.connection import Connection
from martlet.client.inbox import Delivery, Inbox
from martlet.protocol.message_run import MessageRun


class Walked(deque[Delivery]):
    """Counts how many deliveries are looked at one after the other."""

    steps = 0

    def __iter__(self) -> Iterator[Delivery]:
        for each in super().__iter__():
            self.steps += 1
            yield each


def run_of(count: int) -> MessageRun:
    frame = message_frame(b"body")
    return MessageRun.uniform(frame * count, len(frame))


async def test_filling_a_batch_does_not_count_all_that_waits_at_each_arrival() -> None:
    inbox = Inbox()
    walked = inbox._deliveries = Walked()
    async with ScriptedBroker() as broker:
        connection = await Connection.open(Address.parse(broker.address), Identity())
        answers = Answers(connection)
        filling = asyncio.create_task(inbox.fill(1000, 10))
        for _ in range(500):
            assert not filling.done()
            inbox.put(Delivery(answers, run_of(2), time.monotonic() + 60))
            await asyncio.sleep(0)
        await asyncio.wait_for(filling, 5)
        connection.abort()
    assert walked.steps < 1000


async def test_what_waits_is_counted_whatever_is_done_with_it() -> None:
    inbox = Inbox()
    async with ScriptedBroker() as broker:
        connection = await Connection.open(Address.parse(broker.address), Identity())
        one, other = Answers(connection), Answers(connection)

        def put(answers: Answers, count: int, seconds: float = 60) -> None:
            inbox.put(Delivery(answers, run_of(count), time.monotonic() + seconds))

        put(one, 10)
        put(one, 5)
        put(other, 7)
        assert inbox.count() == 22
        batch = inbox.next_batch(12)
        assert batch is not None
        assert (len(batch), inbox.count()) == (12, 10)
        assert inbox.refill()
        inbox.ready.popleft()
        assert inbox.count() == 9
        batch = inbox.next_batch(1)  # what was ready waits again
        assert batch is not None
        assert (len(batch), inbox.count()) == (1, 8)
        inbox.forget(other)
        assert inbox.count() == 1
        put(other, 3, -1)  # has expired
        put(other, 4)
        assert [len(inbox.next_batch(100) or ()) for _ in range(2)] == [1, 4]
        assert inbox.count() == 0
        put(one, 6)
        assert sum(len(ids) for _, ids in inbox.drain()) == 6
        assert inbox.count() == 0
        connection.abort()
