"""Filters in SQL, with real brokers: set by consumers, groups and operators, kept and refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.crash.wire import channels_of, http_now, until
from tests.interop.broker.consuming import take, visit

from martlet.client import Consumer, Producer, PullConsumer, SubscribeRefused, sync
from martlet.client.admin import Admin
from martlet.properties.filter.parser import BadFilter
from martlet.testing import Broker, BrokerProcess

IN_EUROPE = "region MATCHES 'eu.#' AND price > 3"
SENT = [
    ("eu.berlin", "5"),
    ("us.nyc", "5"),
    ("eu", "3"),
    ("eu.rome", "3.01"),
    ("europe", "9"),
    ("eu.paris", "much"),
]
WANTED = [b"eu.berlin 5", b"eu.rome 3.01"]


async def send(address: str, topic: str = "t") -> None:
    async with Producer(address) as producer:
        for region, price in SENT:
            body = f"{region} {price}".encode()
            await producer.send(topic, body, headers={"region": region, "price": price})
        await producer.publish(topic, b"without headers")


async def until_finished(http_address: str) -> dict[str, Any]:
    async def is_finished() -> bool:
        stats = (await channels_of(http_address))["t", "c"]
        return not stats["depth"] and not stats["in_flight_count"]

    await until(is_finished)
    return (await channels_of(http_address))["t", "c"]


@pytest.mark.parametrize("order", [None, "key"])
async def test_a_consumer_gets_what_its_filter_accepts(broker: Broker, order: Any) -> None:
    await send(broker.tcp_address)
    options = {"filter": IN_EUROPE, "order": order}
    async with Consumer("t", "c", broker.tcp_address, **options) as consumer:
        assert await take(consumer, 2) == WANTED
        stats = await until_finished(broker.http_address)
    assert stats["filtered_count"] == 5
    assert stats["message_count"] == 7


async def test_a_filter_outlives_a_kill_and_the_lost_cursor(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as process:
        address = process.tcp_address
        await visit(Consumer("t", "c", address, filter=IN_EUROPE))
        await send(address)
        await asyncio.to_thread(process.kill)
        await asyncio.to_thread(process.start)
        # This one does not ask for a filter, and gets the channel's.
        async with Consumer("t", "c", process.tcp_address) as consumer:
            assert await take(consumer, 2) == WANTED
            assert (await until_finished(process.http_address))["filtered_count"] == 5


async def test_consumers_of_a_channel_have_one_filter(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    address = broker.tcp_address
    async with Consumer("t", "c", address, filter="region = 'eu'"):
        await visit(Consumer("t", "c", address, filter=" region = 'eu' "))
        with pytest.raises(
            SubscribeRefused,
            match=r"CONFLICT .* has filter=region = 'eu', and .* wants filter=region = 'us'; a"
            r" consumer has set that",
        ):
            await visit(Consumer("t", "c", address, filter="region = 'us'"))
    await visit(Consumer("t", "c", address, filter="region = 'us'"))
    assert "the filter of channel c of topic t changed from region = 'eu' to region = 'us'" in (
        caplog.text
    )
    async with Admin([broker.http_address]) as admin:
        answers = await admin.channels.configure("t", "c", filter="region = 'asia'")
        assert list(answers.values.values()) == [{"filter": "region = 'asia'"}]
    with pytest.raises(SubscribeRefused, match="an operator has set that"):
        await visit(Consumer("t", "c", address, filter="region = 'us'"))


async def test_a_group_has_one_filter_and_commits_what_it_skips(broker: Broker) -> None:
    address = broker.tcp_address
    await send(address)
    async with PullConsumer("t", "g", address, start="first", filter=IN_EUROPE) as consumer:
        assert await take(consumer, 2) == WANTED
        async with asyncio.timeout(50):
            while consumer.position(0) < 7:  # noqa: ASYNC110, a fetch moves it
                await asyncio.sleep(0.01)
        await consumer.commit()
        async with Admin([broker.http_address]) as admin:
            (group,) = (await admin.groups.describe("t", "g")).values.values()
        assert (group.filter, group.lag) == (IN_EUROPE, 0)
        with pytest.raises(SubscribeRefused, match="wants filter=region = 'us'"):
            await visit(PullConsumer("t", "g", address, start="first", filter="region = 'us'"))


def test_redelivered_delayed_and_replayed_messages_are_filtered_too() -> None:
    with BrokerProcess() as process:
        address = process.tcp_address
        headers = [{"region": "us"}, {"region": "eu"}]
        with sync.Producer(address) as producer:
            for some in headers:
                producer.send("t", some["region"].encode(), headers=some)
            for some in headers:
                producer.send("t", b"late " + some["region"].encode(), headers=some, defer_ms=50)
        with sync.Consumer("t", "c", address, filter="region = 'eu'") as consumer:
            first = next(iter(consumer))
            assert first.body == b"eu"
            first.requeue(backoff=False)
            again = [next(iter(consumer)) for _ in range(2)]
            assert {(message.body, message.attempts) for message in again} == {
                (b"eu", 2),
                (b"late eu", 1),
            }
            for message in again:
                message.finish()
        http_now(process.http_address, "/channel/replay?topic=t&channel=c&beginning=true", b"")
        with sync.Consumer("t", "c", address) as consumer:
            replayed = [next(iter(consumer)) for _ in range(2)]
            assert [message.body for message in replayed] == [b"eu", b"late eu"]
            for message in replayed:
                message.finish()


@pytest.mark.parametrize("kind", [Consumer, PullConsumer, sync.Consumer, sync.PullConsumer])
def test_a_wrong_filter_is_refused_by_the_client_with_the_place(kind: Any) -> None:
    with pytest.raises(BadFilter, match="at character 10, 'eu': a value is expected"):
        kind("t", "c", filter="region = eu")


def test_an_operator_sets_shows_and_removes_a_filter() -> None:
    with BrokerProcess() as process:
        where = f"--nsqd-http-address={process.http_address}"

        def martlet(*words: str, code: int = 0) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "martlet", *words, where],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == code, done.stderr
            return done.stderr if code else done.stdout

        martlet("topic", "create", "t")
        martlet("channel", "create", "t", "c")
        configure = ("channel", "configure", "t", "c")
        error = martlet(*configure, "filter=price >> 3", code=2)
        assert "filter: the filter is wrong at character 8, '> 3': a value is expected" in error
        assert "filter=a = 'x, y'" in martlet(*configure, "filter=a = 'x, y'")
        assert "filter=a = 'x, y'" in martlet(*configure)
        assert "nothing is set" in martlet(*configure, "filter=default")
        martlet(*configure, "kind=offsets", "filter=a = 'x'")
        assert "only where a = 'x'" in martlet("groups", "describe", "t", "c")
