"""The lines and packets that statsd gets."""

import asyncio
import logging
from typing import Any

import pytest

from martlet.options import BrokerOptions
from martlet.server.observability.statsd import Statsd, _send, expand_prefix, packets
from martlet.testing import Broker

LATENCY = {"count": 0, "percentiles": None}


def topic(name: str, count: int, **fields: Any) -> dict[str, Any]:
    return {
        "topic_name": name,
        "channels": [],
        "depth": 0,
        "backend_depth": 0,
        "message_count": count,
        "message_bytes": 10 * count,
        "e2e_processing_latency": LATENCY,
    } | fields


def statsd() -> Statsd:
    return Statsd(BrokerOptions(statsd_prefix="p.", statsd_mem_stats=False))


def counters(made: Statsd, *topics: dict[str, Any]) -> list[str]:
    made.begin()
    lines = [line for topic in topics for line in made.topic_lines(topic)]
    return [line for line in lines if line.endswith("|c")]


@pytest.mark.parametrize(
    ("template", "address", "port", "prefix"),
    [
        ("nsq.%s", "host", 4151, "nsq.host_4151."),
        ("nsq.%s.", "a.example", 1, "nsq.a_example_1."),
        ("%s.%s", "h", 2, "h_2.h_2."),
        ("plain", "h", 2, "plain."),
        ("x%s", "::1", 3, "x[__1]_3."),
        ("", "h", 2, ""),
    ],
)
def test_the_host_stands_in_the_prefix_as_with_nsqd(
    template: str, address: str, port: int, prefix: str
) -> None:
    assert expand_prefix(template, address, port) == prefix


async def test_the_config_has_the_full_prefix_as_nsqd_s() -> None:
    async with Broker(broadcast_address="a.b", statsd_prefix="n.%s") as broker:
        assert broker.server.options.statsd_prefix == f"n.a_b_{broker.server.http_port}."


def test_a_packet_holds_whole_lines_and_a_longer_one_goes_by_itself() -> None:
    assert list(packets(["aaa", "bbb", "c"], 8)) == [b"aaa\nbbb\n", b"c\n"]
    assert list(packets(["a", "b" * 20, "c"], 8)) == [b"a\n", b"b" * 20 + b"\n", b"c\n"]
    assert list(packets([], 8)) == []


def test_counters_are_differences_and_one_that_began_anew_begins_at_nought() -> None:
    made = statsd()
    assert counters(made, topic("t", 5)) == [
        "p.topic.t.message_count:5|c",
        "p.topic.t.message_bytes:50|c",
    ]
    assert counters(made, topic("t", 7))[0] == "p.topic.t.message_count:2|c"
    assert counters(made, topic("t", 3))[0] == "p.topic.t.message_count:3|c"
    assert counters(made) == []
    assert counters(made, topic("t", 3))[0] == "p.topic.t.message_count:3|c"


def test_latencies_are_gauges_by_percent() -> None:
    latency = {
        "count": 3,
        "percentiles": [{"quantile": 0.99, "value": 1234.0}, {"quantile": 0.5, "value": 17}],
    }
    lines = list(statsd().topic_lines(topic("t", 0, e2e_processing_latency=latency)))
    assert lines[-2:] == [
        "p.topic.t.e2e_processing_latency_99:1234|g",
        "p.topic.t.e2e_processing_latency_50:17|g",
    ]


class Sent(asyncio.DatagramTransport):
    def __init__(self) -> None:
        super().__init__()
        self.packets: list[bytes] = []
        self.first = asyncio.Event()

    def sendto(self, data: Any, addr: object = None) -> None:
        self.packets.append(data)
        self.first.set()


async def test_packets_are_spread_and_at_a_stop_the_rest_goes_at_once() -> None:
    sent = Sent()
    sending = asyncio.create_task(_send(sent, [b"1", b"2", b"3"], 3000))
    await sent.first.wait()
    assert sent.packets == [b"1"]
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert sent.packets == [b"1", b"2", b"3"]


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", "127.0.0.1:99999"])
async def test_a_bad_address_is_logged_each_time(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    logged = asyncio.Event()

    class Tells(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.set()

    handler = Tells(logging.ERROR)
    log = logging.getLogger("martlet.server.observability.statsd")
    log.addHandler(handler)
    try:
        async with Broker(statsd_address=address, statsd_interval_ns=5_000_000):
            for _ in range(2):
                await asyncio.wait_for(logged.wait(), 50)
                logged.clear()
    finally:
        log.removeHandler(handler)
    text = [record.getMessage() for record in caplog.records]
    errors = [line for line in text if line.startswith("failed to create UDP socket to statsd(")]
    assert len(errors) >= 2
    assert f"statsd({address}) - " in errors[0]
    assert "--statsd-address" in errors[0]
    assert "STATSD: closing" in text
