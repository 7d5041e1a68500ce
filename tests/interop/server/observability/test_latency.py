"""The time from publish to finish in ``/stats``, by Martlet and, where there is one, by nsqd."""

import json
import re
import time
import urllib.request
from typing import Any

import pytest
from tests.crash.wire import pub
from tests.interop.server.conftest import Brokers
from tests.interop.server.http.http_cases import Client

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop

FLAGS = ("--e2e-processing-latency-percentile=1.0,0.99", "--e2e-processing-latency-window-time=60s")
HELD_S = 0.3
WIDTH = 1.02
"""The error that a percentile may have."""


@pytest.fixture
def broker(start: Brokers) -> BrokerProcess:
    return start(*FLAGS)


def get(broker: BrokerProcess, target: str) -> str:
    with urllib.request.urlopen(f"http://{broker.http_address}{target}", timeout=10) as answer:
        return str(answer.read().decode())


def report_of(broker: BrokerProcess, topic: str) -> dict[str, Any]:
    (report,) = json.loads(get(broker, f"/stats?format=json&topic={topic}"))["topics"]
    return dict(report)


def client_of(broker: BrokerProcess) -> Client:
    return Client(int(broker.tcp_address.rpartition(":")[2]), "c")


def test_percentiles_grow_with_the_time_that_messages_are_held(
    broker: BrokerProcess, topic: str
) -> None:
    with client_of(broker) as client:
        began_ns = time.monotonic_ns()
        assert client.ask(f"SUB {topic} c\n".encode()) == b"OK"
        nothing = [{"quantile": level, "value": 0} for level in (1.0, 0.99)]
        assert report_of(broker, topic)["e2e_processing_latency"] == {
            "count": 0,
            "percentiles": nothing,
        }
        for _ in range(5):
            assert client.ask(pub(topic, b"abc")) == b"OK"
        client.send(b"RDY 10\n")
        ids = [client.receive()[10:26] for _ in range(5)]
        client.send(b"".join(b"FIN " + id + b"\n" for id in ids[:3]))
        client.send(b"REQ " + ids[3] + b" 0\n")
        assert client.receive()[10:26] == ids[3]
        time.sleep(HELD_S)
        client.send(b"FIN " + ids[3] + b"\nFIN " + ids[4] + b"\n")
        assert client.ask(b"CLS\n") == b"CLOSE_WAIT"  # what was sent before is done
        max_ns = time.monotonic_ns() - began_ns
        report = report_of(broker, topic)
        latency = report["e2e_processing_latency"]
        assert report["channels"][0]["e2e_processing_latency"] == latency
        assert latency["count"] == 5
        assert [percentile["quantile"] for percentile in latency["percentiles"]] == [1, 0.99]
        for percentile in latency["percentiles"]:
            assert HELD_S * 1e9 / WIDTH <= percentile["value"] <= max_ns * WIDTH
        text = get(broker, f"/stats?include_mem=false&topic={topic}")
        shown = r" e2e%: \d+\.\d(ms|s), \d+\.\d(ms|s)\n"
        assert len(re.findall(shown, text)) == 2, text


def test_a_topic_without_a_channel_has_no_latency(broker: BrokerProcess, topic: str) -> None:
    with client_of(broker) as client:
        assert client.ask(pub(topic, b"abc")) == b"OK"
    assert report_of(broker, topic)["e2e_processing_latency"] == {"count": 0, "percentiles": None}


def test_latency_is_measured_again_after_a_restart(start_martlet: Brokers, topic: str) -> None:
    broker = start_martlet(*FLAGS)
    for _ in range(2):
        with client_of(broker) as client:
            assert client.ask(f"SUB {topic} c\n".encode()) == b"OK"
            assert client.ask(pub(topic, b"abc")) == b"OK"
            client.send(b"RDY 1\n")
            client.send(b"FIN " + client.receive()[10:26] + b"\n")
            assert client.ask(b"CLS\n") == b"CLOSE_WAIT"
        assert report_of(broker, topic)["e2e_processing_latency"]["count"] == 1
        broker.restart()
