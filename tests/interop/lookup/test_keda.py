"""What KEDA's scaler for NSQ asks (keda v2.21, pkg/scalers/nsq_scaler.go), of lookup and broker.

Its requests are repeated with the same paths, arguments and headers, and of the answers the same
fields are read, with their types: Go refuses a JSON number that is not whole, or a text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from tests.interop.lookup_process import LookupProcess

from martlet.client import Consumer, Producer
from martlet.testing import Broker

pytestmark = pytest.mark.interop


async def depth(http: aiohttp.ClientSession, lookups: list[str], topic: str, channel: str) -> int:
    """Return the depth by which KEDA scales the channel's consumers."""
    hosts = {host for lookup in lookups for host in await brokers_of(http, lookup, topic)}
    return sum([await depth_at(http, host, topic, channel) for host in hosts])


async def brokers_of(http: aiohttp.ClientSession, lookup: str, topic: str) -> list[str]:
    accept = {"Accept": "application/json; charset=utf-8"}
    arguments = {"topic": topic}
    async with http.get(f"http://{lookup}/lookup", params=arguments, headers=accept) as answer:
        if answer.status == 404:
            return []
        assert answer.status == 200
        answered = await answer.json(content_type=None)
    return [
        f"{typed(producer, 'broadcast_address', str)}:{typed(producer, 'http_port', int)}"
        for producer in answered["producers"]
    ]


async def depth_at(http: aiohttp.ClientSession, host: str, topic: str, channel: str) -> int:
    arguments = {
        "format": "json",
        "include_clients": "false",
        "include_mem": "false",
        "topic": topic,
    }
    async with http.get(f"http://{host}/stats", params=arguments) as answer:
        assert answer.status == 200
        answered = await answer.json(content_type=None)
    total = 0
    for report in answered["topics"]:
        if typed(report, "topic_name", str) != topic:
            continue
        channels = {typed(one, "channel_name", str): one for one in report["channels"]}
        if channel not in channels:
            # The topic's own messages, so that a first consumer is started.
            total += typed(report, "depth", int)
        elif not typed(channels[channel], "paused", bool):
            total += typed(channels[channel], "depth", int)
    return total


def typed(fields: dict[str, Any], name: str, kind: type) -> Any:
    assert type(fields[name]) is kind
    return fields[name]


@pytest.fixture(scope="module")
def lookup() -> Iterator[LookupProcess]:
    with LookupProcess() as process:
        yield process


@pytest.fixture
async def broker(lookup: LookupProcess) -> AsyncIterator[Broker]:
    addresses = (lookup.tcp_address,)
    async with Broker(lookupd_tcp_addresses=addresses, broadcast_address="127.0.0.1") as broker:
        yield broker


async def test_keda_reads_the_depth_of_a_channel(broker: Broker, lookup: LookupProcess) -> None:
    async with aiohttp.ClientSession() as http, Producer(broker.tcp_address) as producer:

        async def of(topic: str = "orders", channel: str = "mail") -> int:
            return await depth(http, [lookup.http_address], topic, channel)

        async def ask(path: str) -> None:
            async with http.post(f"http://{broker.http_address}{path}") as answer:
                answer.raise_for_status()

        assert await of("unknown") == 0
        await producer.publish_many("orders", [b"x"] * 7)
        async with asyncio.timeout(50):
            # The broker registers the topic a moment later.
            while not await brokers_of(http, lookup.http_address, "orders"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await of() == 7, "the topic has no channel yet, and a consumer is to be started"
        await ask("/channel/create?topic=orders&channel=audit")
        assert await of() == 0, "the messages are the other channel's"
        await ask("/channel/create?topic=orders&channel=mail")
        await producer.publish_many("orders", [b"x"] * 5)
        await producer.publish("other", b"x")
        assert await of() == 5
        assert await of(channel="audit") == 12
        async with Consumer("orders", "mail", broker.tcp_address, max_in_flight=1) as consumer:
            message = await anext(consumer)
            assert await of() == 4, "messages in flight are not counted"
            message.finish()
        await ask("/channel/pause?topic=orders&channel=mail")
        assert await of() == 0
