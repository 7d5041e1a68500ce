"""Two brokers with one id, since a data folder was copied: no reader takes them for one broker."""

from __future__ import annotations

import asyncio
import logging
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.polling import until

from martlet.client import Producer, PullConsumer, SubscribeRefused
from martlet.spark.brokers.brokers import QueryBrokers
from martlet.spark.brokers.endpoint import CopiedFolder
from martlet.spark.read.options import ReadOptions
from martlet.testing import BrokerProcess

WAY_OUT = "delete the broker.json"


def publish(broker: BrokerProcess, body: bytes) -> None:
    url = f"http://{broker.http_address}/pub?topic=t"
    with urllib.request.urlopen(url, data=body, timeout=60) as answer:
        assert answer.read() == b"OK"


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    with BrokerProcess(tmp_path / "first") as broker:
        publish(broker, b"common")
        broker.stop()
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        broker.start()
        with BrokerProcess(tmp_path / "second") as other:
            publish(broker, b"first")
            publish(other, b"second")
            yield [broker, other]


def spark(*addresses: str) -> QueryBrokers:
    options = {"addresses": ",".join(addresses), "subscribe": "t"}
    return QueryBrokers(ReadOptions.parse(options, "batch"))


async def members(*addresses: str) -> list[bytes]:
    """What a group gets until it has both messages of a broker."""
    got: list[bytes] = []
    async with PullConsumer("t", "g", list(addresses), start="first") as consumer:
        async for message in consumer:
            got.append(message.body)
            if len(got) == 2:
                break
    return got


def test_readers_refuse_the_copies_and_read_either_alone(copies: list[BrokerProcess]) -> None:
    first, second = copies
    brokers = spark(first.http_address, second.http_address)
    with pytest.raises(CopiedFolder, match=WAY_OUT) as refusal:
        brokers.poll(patient=True)
    assert first.http_address in str(refusal.value)
    assert second.http_address in str(refusal.value)
    brokers.close()
    with pytest.raises(SubscribeRefused, match=WAY_OUT) as refused:
        asyncio.run(members(first.tcp_address, second.tcp_address))
    assert refused.value.code == "COPIED_FOLDER"
    for broker, body in zip(copies, (b"first", b"second"), strict=True):
        alone = spark(broker.http_address)
        assert [queue.end_offset for queue in alone.poll(patient=True).values()] == [2]
        alone.close()
        assert asyncio.run(members(broker.tcp_address)) == [b"common", body]


def test_a_copy_without_its_identity_is_a_broker_of_its_own(copies: list[BrokerProcess]) -> None:
    first, second = copies
    second.stop()
    (second.data_path / "broker.json").unlink()
    second.start()
    brokers = spark(first.http_address, second.http_address)
    assert len(brokers.poll(patient=True)) == 2
    brokers.close()


def test_a_producer_says_it(copies: list[BrokerProcess], caplog: pytest.LogCaptureFixture) -> None:
    async def connect() -> None:
        async with Producer([each.tcp_address for each in copies]):
            await until(lambda: "both have the broker id" in caplog.text)

    with caplog.at_level(logging.WARNING, logger="martlet.client"):
        asyncio.run(connect())


def test_one_broker_at_two_addresses_is_no_copy(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        publish(broker, b"one")
        publish(broker, b"two")
        other = [
            address.replace("127.0.0.1", "localhost")
            for address in (broker.http_address, broker.tcp_address)
        ]
        brokers = spark(broker.http_address, other[0])
        assert len(brokers.poll(patient=True)) == 1
        brokers.close()
        assert asyncio.run(members(broker.tcp_address, other[1])) == [b"one", b"two"]


def test_a_broker_that_goes_on_at_another_address_is_no_copy(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        publish(broker, b"one")
        brokers = spark(broker.http_address)
        assert len(brokers.poll(patient=True)) == 1
        broker.stop()
        with BrokerProcess(tmp_path) as moved:
            address = moved.http_address
            brokers._polls[address] = brokers._new_poll(address)
            for _ in range(3):
                assert len(brokers.poll(patient=False)) == 1
            brokers.close()
