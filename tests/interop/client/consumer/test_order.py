"""Ordered channels as the client sees them: several queues, many handlers, failures in between."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.interop.client.group.test_pull import call
from tests.unit.client.consumer.consuming import refused, running

from martlet.client import (
    CallRefused,
    Consumer,
    FailureBackoff,
    Message,
    SubscribeRefused,
)
from martlet.properties.model import Properties
from martlet.testing import Broker

KEYS = [f"customer {number}" for number in range(10)]


def send(broker: Broker, count: int) -> None:
    """Messages of each key in turn, each key in the queue that is its own."""
    topic = broker.server.broker.topic("t")
    for number in range(count):
        for key in KEYS:
            part = topic.queue_for_key(key.encode())
            entry = Properties(order_key=key).pack()
            part.stage([b"%d" % number], 0, [(0, entry)])
    broker.server.broker.commit()


@pytest.mark.parametrize("order", ["key", "queue"])
@pytest.mark.parametrize("queues", [1, 4])
async def test_each_key_is_handled_in_order_by_many_handlers(queues: int, order: str) -> None:
    async with Broker() as broker:
        broker.server.broker.topic("t")
        broker.server.broker.set_queues("t", queues)
        send(broker, 30)
        done: dict[str, list[int]] = defaultdict(list)
        at_work: set[str] = set()
        finished = asyncio.Event()

        async def handle(message: Message) -> None:
            key = message.properties.order_key
            assert isinstance(key, str)
            assert key not in at_work, "two messages of one key at once"
            at_work.add(key)
            try:
                await asyncio.sleep(0)
                if int(message.body) % 10 == 3 and message.attempts == 1:
                    message.requeue(10, backoff=False)
                    return
                done[key].append(int(message.body))
            finally:
                at_work.discard(key)
            if sum(map(len, done.values())) == 30 * len(KEYS):
                finished.set()

        settings: dict[str, Any] = {"order": order, "failure_backoff": FailureBackoff(max_s=0)}
        async with (
            Consumer("t", "c", broker.tcp_address, **settings) as one,
            Consumer("t", "c", broker.tcp_address, **settings) as other,
            running(one, handle, concurrency=8),
            running(other, handle, concurrency=8),
        ):
            await finished.wait()
    assert done == {key: list(range(30)) for key in KEYS}


@pytest.mark.parametrize(
    ("first", "says"),
    [({"order": "queue"}, r"CONFLICT .*queue"), ({}, "others consume from it already")],
)
async def test_a_consumer_with_another_order_is_refused(
    broker: Broker, first: dict[str, Any], says: str
) -> None:
    async with Consumer("t", "c", broker.tcp_address, **first):
        await refused(Consumer("t", "c", broker.tcp_address, order="key"), SubscribeRefused, says)


async def configure(broker: Broker, **policy: str) -> dict[str, object]:
    """Set a channel's policy as an operator does."""
    return await call(broker, "channel.configure", topic="t", channel="c", policy=policy)


async def test_an_order_that_is_set_is_changed_by_no_consumer(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker, Consumer("t", "c", broker.tcp_address, order="key"):
        pass
    # All have left, and the broker was restarted.
    async with Broker(tmp_path) as broker:
        other = Consumer("t", "c", broker.tcp_address, order="queue")
        refusal = await refused(other, SubscribeRefused)
        assert refusal.code == "CONFLICT"
        said = str(refusal)
        assert "channel 'c' of topic 't' has order=key, and this consumer wants order=queue" in said
        assert "a consumer has set that" in said
        assert "martlet channel configure t c order=queue" in said
        async with Consumer("t", "c", broker.tcp_address, order="key"):
            pass

        expected = {"policy": {"order": "key", "from_consumers": ["order"]}}
        assert await configure(broker) == expected
        assert await configure(broker, order="queue") == {"policy": {"order": "queue"}}
        async with Consumer("t", "c", broker.tcp_address, order="queue"):
            pass
        await refused(
            Consumer("t", "c", broker.tcp_address, order="key"),
            SubscribeRefused,
            "an operator has set that",
        )
        with pytest.raises(CallRefused, match="there is no setting 'from_consumers'"):
            await configure(broker, from_consumers="order")
