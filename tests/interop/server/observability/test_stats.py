"""Counting thousands of topics, channels and clients: others have their turn meanwhile."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.crash.wire import Wire, http

from martlet.server import clock as pace
from martlet.server.clock import TimeSlice
from martlet.server.observability import stats, statsd
from martlet.testing import Broker
from martlet.text import SECOND_NS

NSQD_FIELDS = {
    "report": "version health start_time topics memory producers",
    "topic": "topic_name channels depth backend_depth message_count message_bytes paused"
    " e2e_processing_latency",
    "channel": "channel_name depth backend_depth in_flight_count deferred_count message_count"
    " requeue_count timeout_count client_count clients paused e2e_processing_latency",
    "memory": "heap_objects heap_idle_bytes heap_in_use_bytes heap_released_bytes"
    " gc_pause_usec_100 gc_pause_usec_99 gc_pause_usec_95 next_gc_bytes gc_total_runs",
    "client": "client_id hostname version remote_address state ready_count in_flight_count"
    " message_count finish_count requeue_count connect_ts sample_rate deflate snappy user_agent"
    " pub_counts tls tls_cipher_suite tls_version tls_negotiated_protocol"
    " tls_negotiated_protocol_is_mutual",
}
"""The fields of nsqd 1.3.0 in its order."""
TOPICS = 40
CHANNELS = 30
CLIENTS = 20


@pytest.fixture(autouse=True)
def one_step_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLICE_NS", 0)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Many topics of one channel, one of many channels, and a channel of many clients."""
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(e2e_processing_latency_percentiles=(0.5,)))
        for number in range(TOPICS):
            broker.server.broker.topic(f"t{number:03}").channel("c")
        for number in range(CHANNELS):
            broker.server.broker.topic("wide").channel(f"c{number:03}")
        for _ in range(CLIENTS):
            wire = await Wire.subscribed(broker.tcp_address, "busy", "c")
            stack.callback(wire.close)
            wire.send(b"PUB busy\n\0\0\0\1x")
            await wire.ok()
        yield broker


@asynccontextmanager
async def counted_rounds() -> AsyncIterator[Callable[[], int]]:
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    yield lambda: rounds
    counting.cancel()


def noted_rounds(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, rounds: Callable[[], int]
) -> list[int]:
    """In which rounds of the loop a function is called."""
    seen: list[int] = []
    real = getattr(where, name)

    def noted(*arguments: object, **named: object) -> object:
        seen.append(rounds())
        return real(*arguments, **named)

    monkeypatch.setattr(where, name, noted)
    return seen


@pytest.mark.parametrize("target", ["/stats?format=json", "/stats"])
async def test_no_two_channels_or_clients_are_counted_in_one_slice(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    async with counted_rounds() as rounds:
        channels = noted_rounds(monkeypatch, stats, "_channel", rounds)
        clients = noted_rounds(monkeypatch, stats, "_client", rounds)
        text = (await http(broker.http_address, target)).decode()
    assert len(set(channels)) == len(channels) == TOPICS + CHANNELS + 1
    assert len(set(clients)) == len(clients) == 2 * CLIENTS  # as consumers and as producers
    if target == "/stats":
        assert text.count(" [c") == TOPICS + CHANNELS + 1
        assert text.count(" [V2 ") == 2 * CLIENTS
    else:
        report = json.loads(text)
        assert len(report["producers"]) == CLIENTS
        busy, *narrow, wide = report["topics"]
        assert len(busy["channels"][0]["clients"]) == CLIENTS
        assert [topic["topic_name"] for topic in narrow] == [f"t{n:03}" for n in range(TOPICS)]
        names = [channel["channel_name"] for channel in wide["channels"]]
        assert names == [f"c{number:03}" for number in range(CHANNELS)]


@pytest.mark.parametrize("target", ["/stats?format=json&topic=wide", "/stats?topic=wide"])
async def test_nor_are_they_laid_out_in_one(broker: Broker, target: str) -> None:
    async with counted_rounds() as rounds:
        await http(broker.http_address, target)
        assert rounds() > 2 * CHANNELS


async def test_statsd_makes_no_two_lines_or_packets_in_one_slice(broker: Broker) -> None:
    made = statsd.Statsd(broker.server.options)
    async with counted_rounds() as rounds:
        packets = await statsd._counts(broker.server.stats, made, broker.server.options)
        lines = b"".join(packets).splitlines()
        assert len(lines) >= 9 * (TOPICS + CHANNELS)
        assert rounds() >= len(lines) + len(packets)


async def test_topics_deleted_meanwhile_are_left_out(broker: Broker) -> None:
    core = broker.server.broker
    reports = broker.server.stats.topic_reports(TimeSlice(), include_clients=False)
    assert (await anext(reports))["topic_name"] == "busy"
    assert (await anext(reports))["topic_name"] == "t000"
    core.delete_topic("t001")
    core.delete_topic("t003")
    core.topic("t003")  # another one of that name
    *others, wide = [report async for report in reports]
    assert [report["topic_name"] for report in others][:2] == ["t002", "t004"]
    assert len(wide["channels"]) == CHANNELS


async def test_a_channel_that_goes_while_its_topic_is_counted_is_left_out(
    broker: Broker,
) -> None:
    topic = broker.server.broker.topic("wide")
    reports = broker.server.stats.topic_reports(TimeSlice(), "wide", include_clients=False)

    async def first() -> stats.Report:
        return await anext(reports)

    counting = asyncio.create_task(first())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    topic.delete_channel(f"c{CHANNELS - 1:03}")
    report = await counting
    names = [channel["channel_name"] for channel in report["channels"]]
    assert names == [f"c{number:03}" for number in range(CHANNELS - 1)]


async def test_the_fields_of_nsqd_come_first_and_in_its_order() -> None:
    """A client of a zone has fields that nsqd 1.3.0 does not have."""
    async with Broker() as broker:
        wire = await Wire.subscribed(broker.tcp_address, "t", "c", topology_zone="z")
        wire.send(b"PUB t\n\0\0\0\1x")
        await wire.ok()
        text = await http(broker.http_address, "/stats?format=json")
        started_s = broker.server.broker.started_at_ns // SECOND_NS
        wire.close()
    begin = f'{{"version":"1.3.0","health":"OK","start_time":{started_s},"topics":[{{"topic_name":'
    assert text.decode().startswith(begin)
    report = json.loads(text)
    topic = report["topics"][0]
    channel = topic["channels"][0]
    objects = {
        "report": report,
        "topic": topic,
        "channel": channel,
        "memory": report["memory"],
        "client": channel["clients"][0],
    }
    for name, fields in NSQD_FIELDS.items():
        names = fields.split()
        assert list(objects[name])[: len(names)] == names


async def test_an_empty_broker_begins_its_report_as_nsqd() -> None:
    async with Broker() as broker:
        text = (await http(broker.http_address, "/stats?format=json")).decode()
    assert re.match(
        r'\{"version":"1.3.0","health":"OK","start_time":\d+,"topics":\[\],"memory":\{', text
    )


async def test_of_a_missing_topic_no_producers_are_reported(broker: Broker) -> None:
    report = json.loads(await http(broker.http_address, "/stats?format=json&topic=missing"))
    assert (report["topics"], report["producers"]) == (None, None)
    text = (await http(broker.http_address, "/stats?topic=missing")).decode()
    assert text.endswith("\nTopics: None\n\nProducers: None\n")
