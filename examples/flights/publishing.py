"""Publishing the flights at a steady pace, and never far ahead of the readers.

The broker takes the year's flights in a second. So that there is a middle in which producer and
readers are at work, they come at a rate; and so that it is the middle for the readers too, however
slow the machine is, the producer waits where it is too far ahead of one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from examples.flights.board import Mark
from examples.flights.handling import TOPIC
from martlet.client import Producer

SLICE = 100
"""How many flights are published in one call."""
CALLS = 32
"""How many calls may wait for their OK at once."""
_MIN_REST_S = 0.05


class DemoPublishing:
    """Publishes all messages to the topic.

    Attributes:
        published: how many were given to the client.
        acknowledged: the mark of how many were answered OK.
        answered: for each message, whether it was.
    """

    def __init__(
        self, address: str, messages: list[bytes], rate: float, leads: Mapping[Mark, float]
    ) -> None:
        """Publish `rate` messages a second at most.

        `leads` says how far to be ahead of each mark at most, as a part of all messages.
        """
        self.published = 0
        self.acknowledged = Mark()
        self.answered = bytearray(len(messages))
        self._address = address
        self._messages = messages
        self._leads = {mark: max(int(len(messages) * part), SLICE) for mark, part in leads.items()}
        self._interval_s = SLICE / rate

    async def run(self) -> None:
        """Publish until every message is answered OK.

        Raises:
            ExceptionGroup: of the client's errors, such as PublishTimeout.
        """
        loop = asyncio.get_running_loop()
        calls = asyncio.Semaphore(CALLS)
        due_s = loop.time()
        async with Producer(self._address) as producer, asyncio.TaskGroup() as group:
            for start in range(0, len(self._messages), SLICE):
                wait_s = due_s - loop.time()
                if wait_s > _MIN_REST_S:
                    await asyncio.sleep(wait_s)
                for mark, lead in self._leads.items():
                    await mark.reach(start - lead)
                await calls.acquire()
                group.create_task(self._publish(producer, start, calls))
                # Each call in a command of its own: what is published in one turn goes in one.
                await asyncio.sleep(0)
                due_s += self._interval_s

    async def _publish(self, producer: Producer, start: int, calls: asyncio.Semaphore) -> None:
        part = self._messages[start : start + SLICE]
        self.published += len(part)
        try:
            count = await producer.publish_many(TOPIC, part)
        finally:
            calls.release()
        self.answered[start : start + count] = b"\1" * count
        self.acknowledged.rise(self.acknowledged.count + count)
