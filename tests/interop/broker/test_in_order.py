"""Several messages of an ordered queue at once: on the wire, and in each way to consume."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from tests.interop.connections import connect

from martlet.client import Consumer, FailureBackoff, Message, Requeue, sync
from martlet.client.transport.connection import Connection
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.message_run import MessageRun
from martlet.testing import Broker

QUEUES, EACH = 3, 40
CALM = FailureBackoff(max_s=0)


def fill(broker: Broker, **policy: Any) -> None:
    """Messages ``queue number`` in each queue of a topic."""
    core = broker.server.broker
    core.set_queues("t", QUEUES)
    topic = core.topics["t"]
    topic.channel("c")
    if policy:
        settings = topic.channels["c"].policy.changed(policy)
        topic.configure_channel("c", settings)
    for number in range(EACH):
        for queue in range(QUEUES):
            topic.at_queue(queue).stage([b"%d %d" % (queue, number)], 0)
    core.commit()


class Handled:
    """What was handled of each queue, in order; every fifth message fails twice."""

    def __init__(self) -> None:
        self.of: dict[int, list[int]] = defaultdict(list)
        self.failures: dict[tuple[int, int], int] = defaultdict(int)
        self.is_all = asyncio.Event()

    def handle(self, message: Any) -> bool:
        """Check a message, and return whether it is handled now."""
        queue, number = map(int, message.body.split())
        assert number == len(self.of[queue]), f"{number} of queue {queue} is out of order"
        if number % 5 == 3 and self.failures[queue, number] < 2:
            self.failures[queue, number] += 1
            return False
        self.of[queue].append(number)
        if sum(map(len, self.of.values())) == QUEUES * EACH:
            self.is_all.set()
        return True


async def until_handled(handled: Handled, consumer: Consumer, run: asyncio.Task[None]) -> None:
    """Wait until all is handled; raise what a handler raised before."""
    await asyncio.wait(
        (run, asyncio.create_task(handled.is_all.wait())), return_when=asyncio.FIRST_COMPLETED
    )
    consumer.stop()
    await run


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("policy", [{}, {"max_attempts": 5, "retry_delays_ms": [1]}])
async def test_handlers_that_fail_keep_the_order(
    concurrency: int, policy: dict[str, object]
) -> None:
    wrong: list[BaseException] = []
    async with Broker() as broker:
        fill(broker, **policy)
        handled = Handled()

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            try:
                is_done = handled.handle(message)
            except AssertionError as error:
                wrong.append(error)
                handled.is_all.set()
                return
            if not is_done:
                raise Requeue(1)

        async with Consumer(
            "t", "c", broker.tcp_address, order="queue", failure_backoff=CALM
        ) as consumer:
            run = asyncio.create_task(consumer.run(handle, concurrency=concurrency))
            await until_handled(handled, consumer, run)
        channel = broker.server.broker.topics["t"].channels["c"].all_queues
        assert not wrong
        assert channel.depth == channel.in_flight_count == channel.deferred_count == 0


async def test_one_message_of_a_queue_is_out_while_an_application_iterates(broker: Broker) -> None:
    fill(broker)
    handled = Handled()
    async with Consumer("t", "c", broker.tcp_address, order="queue") as consumer:
        first = [await anext(consumer) for _ in range(QUEUES)]
        assert {message.body for message in first} == {b"0 0", b"1 0", b"2 0"}
        for message in first:
            handled.handle(message)
            message.finish()
        async for message in consumer:
            if handled.handle(message):
                message.finish()
            else:
                message.requeue()
            if handled.is_all.is_set():
                break


async def test_a_batch_has_one_message_of_each_queue(broker: Broker) -> None:
    fill(broker)
    handled = Handled()
    async with Consumer("t", "c", broker.tcp_address, order="queue") as consumer:
        async for batch in consumer.batches():
            assert len(batch) <= QUEUES
            good = [handled.handle(SimpleNamespace(body=body)) for body in batch.bodies]
            if any(good):
                await batch.finish(good)
            if not all(good):
                await batch.requeue()
            if handled.is_all.is_set():
                break


async def test_a_consumer_of_threads_keeps_the_order(broker: Broker) -> None:
    fill(broker)
    handled = Handled()

    def consume() -> None:
        with sync.Consumer("t", "c", broker.tcp_address, order="queue") as consumer:
            for message in consumer:
                if handled.handle(message):
                    message.finish()
                else:
                    message.requeue()
                if sum(map(len, handled.of.values())) == QUEUES * EACH:
                    return

    await asyncio.to_thread(consume)


async def test_what_a_closed_consumer_had_goes_to_the_next_in_order(broker: Broker) -> None:
    fill(broker)
    handled = Handled()
    while not handled.is_all.is_set():
        async with Consumer("t", "c", broker.tcp_address, order="queue") as consumer:
            for _ in range(10):
                message = await anext(consumer)
                if not handled.handle(message):
                    break  # It is left unanswered.
                message.finish()
                if handled.is_all.is_set():
                    break


class Frames:
    """A raw connection, and what comes on it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.got: list[Any] = []
        """Bodies, and recalled queues."""
        self._came = asyncio.Event()
        connection.on_run = self._take
        connection.on_recalled = lambda queue: self._add([queue])

    def _take(self, run: MessageRun) -> None:
        self._add(run.bodies())

    def _add(self, news: Any) -> None:
        self.got += news
        self._came.set()

    async def until(self, count: int) -> None:
        while len(self.got) < count:
            self._came.clear()
            await self._came.wait()


async def _subscribed(broker: Broker, *, in_order: bool) -> Frames:
    connection = await connect(broker, in_order=in_order)
    await connection.ask(commands.subscribe("t", "c"))
    return Frames(connection)


async def test_only_a_client_that_asks_for_it_gets_several_messages_and_recalls(
    broker: Broker,
) -> None:
    fill(broker, order="queue")
    base = broker.server.broker.topics["t"].queue.id_base
    plain = await _subscribed(broker, in_order=False)
    plain.connection.write(commands.ready(30))
    await plain.until(QUEUES)
    assert sorted(map(str, plain.got)) == [str(b"%d 0" % queue) for queue in range(QUEUES)]
    assert plain.connection.id_base is None
    topic = broker.server.broker.topics["t"]
    ids = [part.queue.message_id(0) for part in topic.at_queues]
    plain.connection.write(commands.ready(0) + commands.finish(ids))
    plain.connection.close()

    client = await _subscribed(broker, in_order=True)
    client.connection.write(commands.ready(30))
    await client.until(30)
    assert client.connection.id_base == base
    for queue in range(QUEUES):
        of_queue = [body for body in client.got if body.startswith(b"%d" % queue)]
        assert of_queue == [b"%d %d" % (queue, number) for number in range(1, 11)]
    client.connection.write(commands.requeue(topic.at_queue(1).queue.message_id(1), 0))
    await client.until(32)
    assert client.got[30:] == [1, b"1 1"]
    client.connection.abort()
