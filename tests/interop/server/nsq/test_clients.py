"""NSQ clients that others wrote, as they come: they must not notice that the broker is Martlet."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests import brokers
from tests.interop.agent import Agent, Event
from tests.interop.agents import story
from tests.interop.certificates import Certificates

from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[4]
AGENTS = Path(__file__).parents[2] / "agents"
NSQJS = "nsqjs@0.13.0"
TOPIC, CHANNEL = "orders", "billing"
RECONNECT_S = 40
"""pynsq's reader waits 15 s before it connects again."""


broker = brokers.process(f"--msg-timeout={story.MESSAGE_TIMEOUT_S}s", scope="function")


@pytest.fixture(params=["pynsq", "ansq", "gnsq", "nsqjs"])
def agent(request: pytest.FixtureRequest, broker: BrokerProcess) -> Iterator[Agent]:
    command, options = how_to_run(request.param, request, broker.tcp_address, TOPIC)
    with Agent(command, **options) as running:
        yield running


def how_to_run(
    library: str, request: pytest.FixtureRequest, address: str, topic: str, features: str = "{}"
) -> tuple[list[str], dict[str, Any]]:
    """The command of a library's agent, and how its process is to be made."""
    if library != "nsqjs":
        module = f"tests.interop.agents.{library}_agent"
        command = [sys.executable, "-m", module, address, topic, CHANNEL, features]
        return command, {"cwd": ROOT}
    folder = node_modules(request)
    values = {name: value for name, value in vars(story).items() if name.isupper()}
    script = str(AGENTS / "nsqjs_agent.js")
    command = ["node", script, address, topic, CHANNEL, json.dumps(values), features]
    authority = str(json.loads(features).get("tls", ""))
    return command, {
        "env": {**os.environ, "NODE_PATH": str(folder), "NODE_EXTRA_CA_CERTS": authority}
    }


def node_modules(request: pytest.FixtureRequest) -> Path:
    """Where nsqjs is; it is fetched once, and kept with what pytest keeps between runs."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no node and npm here to run nsqjs with")
    assert request.config.cache is not None
    folder = request.config.cache.mkdir("nsqjs")
    marker = folder / "whole"  # what an install leaves that was cut short is not
    if not marker.exists():
        flags = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-save"]
        command = ["npm", "install", "--prefix", str(folder), *flags, NSQJS]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip("npm did not fetch nsqjs in 60 s")
        if done.returncode:
            pytest.skip(f"npm could not fetch nsqjs: {done.stderr[-300:]}")
        marker.touch()
    return folder / "node_modules"


def stats(broker: BrokerProcess, topic: str = TOPIC) -> dict[str, Any]:
    url = f"http://{broker.http_address}/stats?format=json&topic={topic}"
    with urllib.request.urlopen(url, timeout=10) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def channel_of(broker: BrokerProcess) -> dict[str, Any]:
    (channel,) = stats(broker)["topics"][0]["channels"]
    assert channel["channel_name"] == CHANNEL
    return dict(channel)


def connections(broker: BrokerProcess) -> set[str]:
    clients = channel_of(broker)["clients"] + stats(broker)["producers"]
    return {client["remote_address"] for client in clients}


def by_body(events: list[Event], body: str) -> list[Event]:
    return [event for event in events if event.get("body") == body]


def test_third_party_clients_work_as_with_nsqd(agent: Agent, broker: BrokerProcess) -> None:
    agent.wait("quiet", 30, lambda: bool(agent.events_named("quiet")))
    check_what_was_delivered(agent)
    channel = channel_of(broker)
    assert channel["depth"] == channel["in_flight_count"] == channel["deferred_count"] == 0
    assert (channel["requeue_count"], channel["timeout_count"]) == (1, 0)

    before = connections(broker)
    assert len(before) == 2
    agent.wait("ticking", 30, lambda: bool(agent.events_named("ticking")))
    assert connections(broker) == before, "a client that answers heartbeats was cut off"

    check_that_it_comes_back(agent, broker)


def check_what_was_delivered(agent: Agent) -> None:
    received = agent.events_named("received")
    assert not agent.events_named("failed")
    for body in (story.PLAIN, *story.TOGETHER):
        assert [event["attempts"] for event in by_body(received, body)] == [1], body
    assert [event["attempts"] for event in by_body(received, story.AGAIN)] == [1, 2]
    first, second = by_body(received, story.AGAIN)
    assert second["at_s"] - first["at_s"] >= story.AGAIN_MS / 1000 * 0.9

    (slow,) = by_body(received, story.SLOW)
    assert slow["attempts"] == 1, "a message that was touched timed out"

    (later,) = by_body(received, story.LATER)
    # It was published next; its own answer may be read late.
    (before,) = by_body(agent.events_named("published"), ",".join(story.TOGETHER))
    assert later["at_s"] - before["at_s"] >= story.LATER_MS / 1000 * 0.9


def check_that_it_comes_back(agent: Agent, broker: BrokerProcess) -> None:
    agent.wait("a tick", 10, lambda: any("tick" in body for body in agent.bodies("received")))
    broker.kill()
    seen = len(agent.events)
    broker.start()

    def is_back() -> bool:
        published = by_event(agent.events[seen:], "published")
        received = by_event(agent.events[seen:], "received")
        return bool(published & received)

    agent.wait("a tick after the restart", RECONNECT_S, is_back)
    # Everything that was answered OK is delivered, whatever was under way when it died.
    owed = set(agent.bodies("published")) - {",".join(story.TOGETHER)}
    agent.wait("every tick", 20, lambda: owed <= set(agent.bodies("received")))


FEATURES: list[dict[str, bool]] = [
    {"tls": True},
    {"snappy": True},
    {"deflate": True},
    {"tls": True, "snappy": True},
    {"tls": True, "deflate": True},
]


@pytest.mark.parametrize("library", ["pynsq", "gnsq", "nsqjs"])
def test_third_party_clients_work_encrypted_and_compressed(
    library: str, request: pytest.FixtureRequest, certificates: Certificates
) -> None:
    """All at the same time, each with a topic of its own. ansq negotiates none of it, nor does
    gnsq's producer.
    """
    flags = [f"--msg-timeout={story.MESSAGE_TIMEOUT_S}s", *certificates.flags]
    https = f"--https-address=127.0.0.1:{free_port()}"
    with BrokerProcess(None, *flags, https) as broker, ExitStack() as stack:
        agents = {}
        for features in FEATURES:
            topic = "-".join(features)
            settings = (
                {**features, "tls": str(certificates.authority)} if "tls" in features else features
            )
            command, options = how_to_run(
                library, request, broker.tcp_address, topic, json.dumps(settings)
            )
            agents[topic] = stack.enter_context(Agent(command, **options))
        for topic, agent in agents.items():
            agent.wait(f"{topic} quiet", 40, partial(agent.events_named, "quiet"))
            check_what_was_delivered(agent)
            (found,) = stats(broker, topic)["topics"]
            (consumer,) = found["channels"][0]["clients"]
            (producer,) = [
                client for client in stats(broker, topic)["producers"] if "pub_counts" in client
            ]
            for client in (consumer,) if library == "gnsq" else (consumer, producer):
                for feature in ("tls", "snappy", "deflate"):
                    assert client[feature] is (feature in topic.split("-")), client


def by_event(events: list[Event], name: str) -> set[str]:
    return {event["body"] for event in events if event["event"] == name}
