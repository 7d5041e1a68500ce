"""Priorities, by every way to send, at a real broker."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request

import pytest

from martlet.client import Admin, Consumer, Producer
from martlet.properties.model import BadProperties
from martlet.testing import Broker

TOPIC = "jobs"


async def received(broker: Broker, count: int) -> list[tuple[bytes, int]]:
    """The next messages of a channel that takes one at a time, and their priorities."""
    received = []
    async with (
        asyncio.timeout(50),
        Consumer(TOPIC, "c", addresses=broker.tcp_address, max_in_flight=1) as consumer,
    ):
        async for message in consumer:
            received.append((bytes(message.body), message.properties.priority))
            message.finish()
            if len(received) == count:
                return received
    raise AssertionError("the consumer ended")


def by_http(broker: Broker, path: str, body: bytes, priority: str) -> None:
    request = urllib.request.Request(
        f"http://{broker.http_address}{path}", body, {"X-Martlet-Priority": priority}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.read() == b"OK"


async def test_each_way_to_send_takes_a_priority() -> None:
    async with Broker() as broker, Producer(broker.tcp_address) as producer:
        await producer.publish(TOPIC, b"plain")
        await producer.publish(TOPIC, b"publish", priority=0)
        await producer.publish_many(TOPIC, [b"publish_many"], priority=1)
        await producer.send(TOPIC, b"send", priority=2)
        await producer.send_many(TOPIC, [b"send_many"], priority=3, tag="t")
        async with producer.transaction() as transaction:
            await transaction.publish(TOPIC, b"transaction", priority=5)
        await asyncio.to_thread(by_http, broker, f"/pub?topic={TOPIC}", b"pub", "6")
        await asyncio.to_thread(by_http, broker, f"/mpub?topic={TOPIC}", b"mpub", "7")
        await producer.send(TOPIC, b"keyed", priority=8, order_key="k", deliver_at=time.time() - 10)
        async with Admin([broker.http_address]) as admin:
            await admin.topics.publish(TOPIC, b"admin", priority=9)
            (queues,) = (await admin.topics.describe(TOPIC)).values.values()
            assert sorted(queue.priority for queue in queues.queues) == list(range(10))
            (stats,) = (await admin.topics.create(TOPIC)).values.values()
            assert stats == 1, "the queues of priorities are no further queues"
        assert await received(broker, 10) == [
            (b"admin", 9),
            (b"keyed", 8),
            (b"mpub", 7),
            (b"pub", 6),
            (b"transaction", 5),
            (b"plain", 4),
            (b"send_many", 3),
            (b"send", 2),
            (b"publish_many", 1),
            (b"publish", 0),
        ]


@pytest.mark.parametrize("priority", [-1, 10, 1 << 70])
async def test_what_is_no_priority_is_refused_before_it_is_sent(priority: int) -> None:
    async with Broker() as broker, Producer(broker.tcp_address) as producer:
        with pytest.raises(BadProperties, match=r"0 \(the lowest\) to 9"):
            await producer.send(TOPIC, b"x", priority=priority)
        with pytest.raises(ValueError, match="queue and priority both choose a queue"):
            await producer.send(TOPIC, b"x", priority=1, queue=0)
        assert TOPIC not in broker.server.broker.topics


@pytest.mark.parametrize("priority", ["10", "-1", "high", "4.5", "\N{ARABIC-INDIC DIGIT FIVE}"])
async def test_what_is_no_priority_is_refused_over_http(priority: str) -> None:
    sent = priority.encode().decode("latin-1")
    async with Broker() as broker:
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(by_http, broker, f"/pub?topic={TOPIC}", b"x", sent)
        assert refused.value.code == 400
        message = json.load(refused.value)["message"]
        assert message.startswith(f"INVALID_PROPERTIES: the priority {priority!r}:")
