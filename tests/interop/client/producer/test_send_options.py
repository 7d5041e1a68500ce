"""One set of options, for all ways to publish and send."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.scripted_broker import ScriptedBroker

from martlet.client import (
    Consumer,
    NotSupported,
    Outgoing,
    Producer,
    Properties,
    PublishRefused,
    sync,
)
from martlet.testing import Broker

OPTIONS: dict[str, Any] = {"tag": "red", "keys": "a-1", "headers": {"h": "v"}, "order_key": "k"}
PROPERTIES = ("red", ("a-1",), {"h": "v"}, "k")
AMPLE_S = 60

Way = Callable[[Producer, Any, dict[str, Any]], Awaitable[object]]


async def _oneway(producer: Producer, message: Any, options: dict[str, Any]) -> None:
    producer.send_oneway("t", message, **options)


async def _in_transaction(producer: Producer, message: Any, options: dict[str, Any]) -> None:
    async with producer.transaction() as transaction:
        await transaction.publish("t", message, **options)


async def _many_in_transaction(producer: Producer, message: Any, options: dict[str, Any]) -> None:
    async with producer.transaction() as transaction:
        assert await transaction.publish_many("t", [message], **options) == 1


WAYS: dict[str, Way] = {
    "publish": lambda producer, message, options: producer.publish("t", message, **options),
    "submit": lambda producer, message, options: producer.submit("t", message, **options),
    "publish_many": lambda producer, message, options: producer.publish_many(
        "t", [message], **options
    ),
    "publish_many of an iterable": lambda producer, message, options: producer.publish_many(
        "t", iter([message]), **options
    ),
    "send": lambda producer, message, options: producer.send("t", message, **options),
    "send_async": lambda producer, message, options: producer.send_async("t", message, **options),
    "send_many": lambda producer, message, options: producer.send_many("t", [message], **options),
    "send_oneway": _oneway,
    "transaction": _in_transaction,
    "many in a transaction": _many_in_transaction,
}


async def received(broker: Broker) -> tuple[bytes, tuple[Any, ...]]:
    async with asyncio.timeout(AMPLE_S), Consumer("t", "c", broker.tcp_address) as consumer:
        message = await anext(consumer)
        message.finish()
        properties = message.properties
        return message.body, (
            properties.tag,
            properties.keys,
            properties.headers,
            properties.order_key,
        )


@pytest.mark.parametrize("way", WAYS)
async def test_each_way_takes_properties_and_a_delay(broker: Broker, way: str) -> None:
    async with Producer(broker.tcp_address) as producer:
        began_s = time.time()
        await WAYS[way](producer, b"1", {**OPTIONS, "defer_ms": 150})
        assert await received(broker) == (b"1", PROPERTIES)
        assert time.time() >= began_s + 0.15
        at = time.time() + 0.15
        await WAYS[way](producer, Outgoing(b"2", Properties(tag="green")), {"deliver_at": at})
        assert await received(broker) == (b"2", ("green", (), {}, ""))
        assert time.time() >= at


async def test_threads_use_the_same_options(broker: Broker) -> None:
    def publish() -> None:
        with sync.Producer(broker.tcp_address) as producer:
            producer.publish("t", b"1", **OPTIONS)
            producer.submit("t", b"2", **OPTIONS).result(AMPLE_S)
            assert producer.publish_many("t", iter([b"3", b"4"]), **OPTIONS) == 2
            assert producer.send("t", b"5", **OPTIONS).offset == 4
            results = producer.send_many("t", iter([b"6", b"7"]), **OPTIONS)
            assert [result.offset for result in results] == [5, 6]
            futures = [producer.send_async("t", b"%d" % n, **OPTIONS) for n in (8, 9)]
            assert [future.result(AMPLE_S).offset for future in futures] == [7, 8]
            producer.send_oneway("t", b"10", **OPTIONS)
            with pytest.raises(PublishRefused, match="NO_QUEUE"):
                producer.send("t", b"refused", queue=9)
            with producer.transaction() as transaction:
                transaction.publish("t", b"11", **OPTIONS, defer_ms=1)

    await asyncio.to_thread(publish)
    for number in range(1, 12):
        assert await received(broker) == (b"%d" % number, PROPERTIES)


async def test_an_ordered_producer_orders_sends_too(broker: Broker) -> None:
    async with (
        Broker() as other,
        Producer([broker.tcp_address, other.tcp_address], ordered=True) as producer,
    ):
        results = await asyncio.gather(*(producer.send("t", b"%d" % n) for n in range(50)))
        assert len({result.broker for result in results}) == 1
        assert [result.offset for result in results] == list(range(50))


async def test_messages_with_properties_among_others_are_published_in_order(
    broker: Broker,
) -> None:
    def messages() -> Any:
        for number in range(100):
            yield b"%d" % number
        yield Outgoing(b"100", Properties(tag="red"))
        yield bytearray(b"101")

    async with Producer(broker.tcp_address) as producer:
        assert await producer.publish_many("t", messages()) == 102
    async with Consumer("t", "c", broker.tcp_address) as consumer:
        consumed = [await anext(consumer) for _ in range(102)]
    assert [message.body for message in consumed] == [b"%d" % number for number in range(102)]
    assert [message.properties.tag for message in consumed[-2:]] == ["red", ""]


async def test_an_nsqd_gets_only_options_that_its_commands_carry() -> None:
    async with ScriptedBroker() as broker, Producer(broker.address) as producer:
        await producer.publish("t", b"1", defer_ms=5, order_key="k", timeout_s=10)
        await producer.publish_many("t", [b"2", bytearray(b"3")], order_key="k")
        await producer.submit("t", Outgoing(b"4"))
        refused: list[tuple[str, Any, dict[str, Any]]] = [
            ("publish", b"5", {"tag": "red"}),
            ("publish", b"5", {"deliver_at": time.time() + 1}),
            ("publish", b"5", {"queue": 1}),
            ("publish", b"5", {"wait_store_ok": False}),
            ("publish", b"5", {"headers": {"h": "v"}, "order_key": "k"}),
            ("publish", Outgoing(b"5", Properties(tag="red")), {}),
            ("publish_many", b"5", {"defer_ms": 5}),
            ("send", b"5", {}),
            ("send_oneway", b"5", {}),
        ]
        for way, message, options in refused:
            with pytest.raises(NotSupported, match="no Martlet broker"):
                await WAYS[way](producer, message, options)
        assert producer.stats.pending_messages == 0
    commands = [" ".join(command.words) for command in broker.commands]
    assert commands == ["DPUB t 5", "MPUB t", "PUB t"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"defer_ms": 1, "deliver_at": 2.0}, "both say when to deliver: give one"),
        ({"defer_ms": -1}, "defer_ms=-1"),
        ({"queue": 1, "order_key": "a"}, "both choose a queue: give one"),
        ({"timeout_s": -1.0}, "timeout_s=-1.0 must be above 0"),
    ],
)
async def test_options_that_make_no_sense_are_refused_at_once(
    broker: Broker, options: dict[str, Any], why: str
) -> None:
    async with Producer(broker.tcp_address) as producer:
        for way in WAYS.values():
            with pytest.raises(ValueError, match=why):
                await way(producer, b"1", options)
        unknown: dict[str, Any] = {"colour": "red"}
        for way in WAYS.values():
            with pytest.raises(
                TypeError, match=r"\w\(\) has no keyword argument 'colour'; its opt"
            ):
                await way(producer, b"1", unknown)

    def send_blocking() -> None:
        with sync.Producer(broker.tcp_address) as blocking:
            blocking.send("t", b"1", **unknown)

    with pytest.raises(TypeError, match=r"^send\(\) has no keyword argument 'colour'; its opt"):
        await asyncio.to_thread(send_blocking)
    assert "t" not in broker.server.broker.topics


async def test_a_message_in_a_transaction_has_no_timeout_of_its_own(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as producer, producer.transaction() as transaction:
        with pytest.raises(ValueError, match="in a transaction"):
            await transaction.publish("t", b"1", timeout_s=1.0)  # type: ignore[call-arg]


async def test_a_delay_above_the_broker_s_limit_names_the_limit_and_the_way_out() -> None:
    async with Broker() as broker, Producer(broker.tcp_address) as producer:
        with pytest.raises(PublishRefused) as caught:
            await producer.publish("t", b"1", defer_ms=86_400_000)
        assert str(caught.value) == (
            "E_INVALID defer_ms=86400000 is above the broker's --max-req-timeout (3600000 ms); use"
            " deliver_at, which needs a Martlet broker:"
            " DPUB timeout 86400000 out of range 0-3600000"
        )
        await producer.publish("t", b"1", deliver_at=time.time() + 86_400)
