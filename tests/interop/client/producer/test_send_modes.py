"""Sending with results, futures, callbacks and no answer, and each message stored exactly once."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.interop.client.kit import losing_answers
from tests.interop.cutting_proxy import CuttingProxy
from tests.polling import until
from tests.unit.broker.core import bodies_of

from martlet.client import (
    Backoff,
    BadBody,
    Closed,
    Consumer,
    Hooks,
    Limits,
    Outgoing,
    Producer,
    ProducerFull,
    Properties,
    PublishLost,
    PublishRefused,
    PublishTimeout,
    PublishUnclear,
    PutStatus,
    SendResult,
)
from martlet.client.settings import parse_addresses
from martlet.properties.model import BadProperties
from martlet.testing import Broker

SOON = Backoff(first_s=0.01, max_s=0.02)


def producer_of(*addresses: str, **settings: Any) -> Producer:
    settings = {"send_timeout_s": 20.0, "backoff": SOON, **settings}
    return Producer(list(addresses), **settings)


async def bodies(broker: Broker, topic: str, count: int) -> list[bytes]:
    """Receive all messages of a topic, and check that no more come."""
    async with Consumer(topic, "all", broker.tcp_address) as consumer:
        received = [(await asyncio.wait_for(anext(consumer), 50)).body for _ in range(count)]
    assert broker.server.broker.topics[topic].all_queues.message_count == count
    return received


async def test_the_result_has_the_place_of_a_message(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as producer:
        await producer.publish("t", b"before")
        result = await producer.send("t", b"1", tag="red", keys="a-1", order_key="k")
        assert (result.status, result.queue, result.offset) == (PutStatus.OK, 0, 1)
        assert (result.broker, result.is_duplicate) == (broker.tcp_address, False)
        async with Consumer("t", "c", broker.tcp_address) as consumer:
            await anext(consumer)
            message = await anext(consumer)
            assert (message.id, message.body) == (result.id, b"1")
            again = await producer.send("other", message, tag="green")
            assert again.offset == 0
        async with Consumer("other", "c", broker.tcp_address) as consumer:
            sent = (await anext(consumer)).properties
            assert (sent.tag, sent.keys, sent.order_key) == ("green", ("a-1",), "k")
            assert sent.sent is not None
            assert sent.sent.sequence == 2


async def test_sends_of_one_turn_go_together_and_each_gets_its_place(
    broker: Broker,
) -> None:
    async with Producer(broker.tcp_address) as producer:
        futures = [
            producer.send_async("t", b"%d" % number, tag="even" if number % 2 == 0 else "")
            for number in range(100)
        ]
        results = await asyncio.gather(*futures)
        many = await producer.send_many("t", [b"x", Outgoing(b"y", Properties(tag="z"))])
        assert [result.offset for result in many] == [100, 101]
        stats = producer.stats
        assert (stats.stored, stats.pending_messages, stats.retried) == (102, 0, 0)
    assert [result.offset for result in results] == list(range(100))
    assert broker.server.broker.topics["t"].queue.index.end_row < 5, "few batches"
    async with Consumer("t", "c", broker.tcp_address) as consumer:
        for number, result in enumerate(results):
            message = await anext(consumer)
            assert (message.id, message.body) == (result.id, b"%d" % number)
            assert message.properties.tag == ("even" if number % 2 == 0 else "")
            message.finish()


async def test_callbacks_hear_of_results_and_of_errors(broker: Broker) -> None:
    results: list[SendResult] = []
    errors: list[BaseException] = []
    async with Producer(broker.tcp_address) as producer:
        said: dict[str, Any] = {"on_result": results.append, "on_error": errors.append}
        good = producer.send_async("t", b"1", **said)
        bad = producer.send_async("t", b"2", queue=3, **said)
        await asyncio.wait([good, bad])
        with pytest.raises(PublishRefused, match="NO_QUEUE topic 't' has no queue 3"):
            await bad
        assert results == [await good]
        assert [type(error) for error in errors] == [PublishRefused]


async def test_oneway_is_stored_and_waits_for_nothing(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as producer:
        for number in range(10):
            producer.send_oneway("t", b"%d" % number, tag="t")
        await producer.send("t", b"last")
        assert await bodies(broker, "t", 11) == [*(b"%d" % n for n in range(10)), b"last"]


async def test_a_send_goes_on_when_the_broker_has_read_the_oneway_sends(broker: Broker) -> None:
    """Nothing was in flight whose answer would have had it sent: it timed out."""
    async with Producer(broker.tcp_address) as producer:

        def flood() -> None:
            for _ in range(1000):
                producer.send_oneway("t", bytes(100_000))

        with pytest.raises(ProducerFull, match="does not read as fast"):
            flood()
        result = await producer.send("t", b"behind them", timeout_s=20)
        assert result.offset == broker.server.broker.topics["t"].queue.end_offset - 1


async def test_a_producer_never_runs_further_ahead_than_the_broker_remembers(
    broker: Broker,
) -> None:
    async with (
        CuttingProxy(broker.tcp_address) as proxy,
        producer_of(proxy.address, send_retries=None) as producer,
    ):
        futures = []
        async with losing_answers(proxy):
            for number in range(200):
                futures.append(producer.send_async("t", b"%d" % number))
                await asyncio.sleep(0)
            (queue,) = producer._accumulator.brokers
            assert queue.sequence == 64
        results = await asyncio.gather(*futures)
        assert [result.offset for result in results] == list(range(200))
        assert 0 < sum(result.is_duplicate for result in results) <= 64


async def test_messages_are_delivered_at_their_time(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as producer:
        at = datetime.now(UTC) + timedelta(milliseconds=300)
        later = await producer.send("t", b"later", deliver_at=at)
        assert (later.queue, later.offset) == (0, None)
        await producer.send("t", b"now")
        async with Consumer("t", "c", broker.tcp_address) as consumer:
            assert (await anext(consumer)).body == b"now"
            assert (await asyncio.wait_for(anext(consumer), 50)).body == b"later"
        assert time.time() >= at.timestamp()
        with pytest.raises(ValueError, match="needs a time zone"):
            await producer.send("t", b"x", deliver_at=datetime(2030, 1, 1))
        with pytest.raises(ValueError, match="deliver_at=tomorrow: seconds since 1970, or a"):
            await producer.send("t", b"x", deliver_at="tomorrow")  # type: ignore[arg-type]
        several = await producer.send_many("t", [b"1", b"2"])
        assert repr(several) == f"<SendResults of 2: {several[0]!r}, ...>"


async def test_a_message_for_later_is_stored_once_too_also_when_it_is_on_its_way_already(
    broker: Broker,
) -> None:
    async with (
        CuttingProxy(broker.tcp_address) as proxy,
        producer_of(proxy.address, send_retries=None) as producer,
        Consumer("t", "c", broker.tcp_address) as consumer,
    ):
        core = broker.server.broker
        async with losing_answers(proxy):
            future = producer.send_async("t", b"later", deliver_at=time.time() + 0.2)
            message = await asyncio.wait_for(anext(consumer), 50)
            message.finish()
            for bucket in list(core.delays.buckets_of(core.topics["t"])):
                assert core.delays.drop(bucket)  # as it does when the bucket's time is over
        result = await future
        assert (result.is_duplicate, result.offset, result.id) == (True, None, None)
        assert core.topics["t"].message_count == 1


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_a_stored_but_unanswered_send_is_stored_once(tmp_path: Path, flush: str) -> None:
    async with (
        Broker(tmp_path, flush=flush) as broker,
        CuttingProxy(broker.tcp_address) as proxy,
        producer_of(proxy.address, send_retries=None) as producer,
    ):
        sent = [await producer.send("t", b"first")]
        for turn in range(3):
            async with losing_answers(proxy):
                futures = [producer.send_async("t", b"%d.%d" % (turn, n)) for n in range(5)]
            sent += await asyncio.gather(*futures)
            assert all(result.is_duplicate for result in sent[-5:])
        assert [result.offset for result in sent] == list(range(16))
        assert producer.stats.retried >= 15
        expected = [b"first", *(b"%d.%d" % (turn, n) for turn in range(3) for n in range(5))]
        assert await bodies(broker, "t", 16) == expected


async def test_without_idempotence_it_may_be_stored_twice(broker: Broker) -> None:
    async with (
        CuttingProxy(broker.tcp_address) as proxy,
        producer_of(proxy.address, idempotent=False) as producer,
    ):
        async with losing_answers(proxy):
            future = producer.send_async("t", b"1")
        assert (await future).offset == 1
        assert await bodies(broker, "t", 2) == [b"1", b"1"]


async def test_a_send_is_tried_so_often_and_no_longer_than_its_time(broker: Broker) -> None:
    async with (
        CuttingProxy(broker.tcp_address) as proxy,
        producer_of(proxy.address, send_retries=1) as producer,
    ):
        proxy.swallow()
        with pytest.raises(PublishTimeout, match="did not answer in time"):
            await producer.send("t", b"1", timeout_s=0.3)
        proxy.go_on()
        assert (await producer.send("t", b"2")).offset == 1
        count = proxy.connected_count
        async with losing_answers(proxy):
            lost = producer.send_async("t", b"3")
        assert (await lost).is_duplicate
        assert proxy.connected_count == count + 1
    async with (
        CuttingProxy(broker.tcp_address) as proxy,
        producer_of(proxy.address, send_retries=0) as producer,
    ):
        async with losing_answers(proxy):
            lost = producer.send_async("t", b"4")
        with pytest.raises(PublishLost, match="sent 1 times"):
            await lost


@pytest.mark.parametrize("bad", [{100}, {10, 250}, {0, 1, 2, 3, 150, 299}])
async def test_of_many_sends_that_went_together_a_few_bad_ones_are_refused_alone(
    bad: set[int],
) -> None:
    """The broker knows the last 64 sends of a producer; more than that wait to go one by one."""
    async with Broker(max_msg_size=1000) as broker, producer_of(broker.tcp_address) as producer:
        await producer.send("t", b"first")
        sent = [b"x" * 2000 if number in bad else b"%d" % number for number in range(300)]
        futures = [producer.send_async("t", body) for body in sent]
        results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 60)
        assert {n for n, result in enumerate(results) if isinstance(result, PublishRefused)} == bad
        stored = [result for result in results if isinstance(result, SendResult)]
        assert [result.offset for result in stored] == list(range(1, 301 - len(bad)))
        remaining = [body for number, body in enumerate(sent) if number not in bad]
        core = broker.server.broker
        assert bodies_of(core, core.topics["t"]) == [b"first", *remaining]


async def test_another_broker_is_asked_only_if_that_is_wanted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(flush="sync", sync_flush_timeout_ns=30_000_000) as other:
        monkeypatch.setattr(other.server.flusher, "flush", lambda: None)
        addresses = (other.tcp_address, broker.tcp_address)
        async with producer_of(*addresses) as producer:
            await until(lambda: producer.stats.connected == 2)
            results = await asyncio.gather(*(producer.send(f"t{n}", b"1") for n in range(2)))
            assert {result.status for result in results} == {
                PutStatus.OK,
                PutStatus.FLUSH_DISK_TIMEOUT,
            }
        async with producer_of(*addresses, retry_another_broker=True) as producer:
            await until(lambda: producer.stats.connected == 2)
            results = await asyncio.gather(*(producer.send(f"t{n}", b"2") for n in range(2)))
            assert {result.status for result in results} == {PutStatus.OK}
            assert {result.broker for result in results} == {broker.tcp_address}


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_broker_that_is_known_no_more_takes_nothing(
    broker: Broker, elsewhere: bool
) -> None:
    async with Broker() as other, CuttingProxy(other.tcp_address) as proxy:
        settings = {"retry_another_broker": elsewhere, "send_retries": None}
        async with producer_of(proxy.address, **settings) as producer:
            pool = producer._pool
            address = next(iter(pool._links))
            async with losing_answers(proxy):
                future = producer.send_async("t", b"1")
                proxy.refuses = True
            await until(lambda: pool._links[address].connection is None)
            pool._add(parse_addresses(broker.tcp_address)[0])
            await until(lambda: producer.stats.connected == 1)
            pool._drop(address)
            if elsewhere:
                result = await future
                assert (result.broker, result.is_duplicate) == (broker.tcp_address, False)
            else:
                with pytest.raises(PublishLost, match=f"{proxy.address} has gone"):
                    await future
            assert (await producer.send("t", b"2")).broker == broker.tcp_address


async def test_hooks_are_called_for_sends(broker: Broker) -> None:
    calls: list[tuple[int, int, bool]] = []
    hooks = Hooks(
        on_published=lambda call, error: calls.append(
            (call.message_count, call.size_bytes, error is None)
        )
    )
    async with Producer(broker.tcp_address, hooks=hooks) as producer:
        await producer.send("t", b"12")
        await producer.send_many("t", [b"1", b"23"])
        with pytest.raises(PublishRefused):
            await producer.send("t", b"1", queue=7)
    assert calls == [(1, 2, True), (2, 3, True), (1, 1, False)]


async def test_a_wrong_message_is_refused_at_once(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as producer:
        with pytest.raises(BadBody):
            await producer.send("t", b"")
        with pytest.raises(TypeError, match="a message is bytes, or has a body and properties"):
            await producer.send("t", "text")  # type: ignore[arg-type]
        with pytest.raises(BadProperties, match="a tag is printable"):
            producer.send_async("t", b"1", tag="a|b")
    with pytest.raises(Closed):
        await producer.send("t", b"1")
    limits = Limits(max_pending_messages=2)
    async with Producer(broker.tcp_address, limits=limits) as producer:
        futures = [producer.send_async("t", b"%d" % number) for number in range(2)]
        with pytest.raises(ProducerFull):
            producer.send_async("t", b"3")
        await asyncio.gather(*futures)


async def test_a_send_that_is_too_old_is_no_success_and_no_refusal(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as producer:
        await producer.send("t", b"1")
        (queue,) = producer._accumulator.brokers
        queue.sequence = 500
        for _ in range(70):
            await producer.send("t", b"1")
        queue.sequence = 0
        with pytest.raises(PublishUnclear, match="TOO_OLD"):
            await producer.send("t", b"1")
