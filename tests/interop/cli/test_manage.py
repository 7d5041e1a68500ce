"""``martlet topic``, ``channel``, ``nodes`` and ``health``, at Martlet's servers and NSQ's own."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.interop.asking import ask, until
from tests.interop.cli.tools import Tool, create
from tests.interop.lookup_process import LookupProcess, NsqlookupdProcess
from tests.interop.nsqd_process import NEEDS_NSQD, NsqdProcess

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop

SERVERS = [
    pytest.param((BrokerProcess, LookupProcess), id="martlet"),
    pytest.param((NsqdProcess, NsqlookupdProcess), id="nsq", marks=NEEDS_NSQD),
]


class Place:
    """A lookup daemon and two brokers that it knows."""

    def __init__(self, lookup: LookupProcess, brokers: list[BrokerProcess]) -> None:
        self.lookup = lookup
        self.brokers = brokers
        self.urls = [f"http://{broker.http_address}" for broker in brokers]
        self.named = [
            *(f"--nsqd-http-address={broker.http_address}" for broker in brokers),
            "--http-client-request-timeout=60s",  # A busy machine answers late.
        ]
        self.found = f"--lookupd-http-address={lookup.http_address}"

    def know(self, topic: str) -> list[Any]:
        """The brokers that the lookup daemon knows to have a topic."""
        producers = ask(self.lookup.http_address, "/nodes")["producers"]
        return [producer for producer in producers if topic in producer["topics"]]


@pytest.fixture(scope="module", params=SERVERS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    broker_kind, lookup_kind = request.param
    with lookup_kind() as lookup:
        flags = [f"--lookupd-tcp-address={lookup.tcp_address}", "--broadcast-address=127.0.0.1"]
        with broker_kind(None, *flags) as one, broker_kind(None, *flags) as two:
            until(lambda: len(ask(lookup.http_address, "/nodes")["producers"]) == 2)
            yield Place(lookup, [one, two])


def test_a_topic_and_its_channel_are_created_used_and_deleted(place: Place, tool: Tool) -> None:
    def do(line: str) -> list[str]:
        said = tool(*line.split(), *place.named)
        assert (said.code, said.err) == (0, "")
        return said.out.splitlines()

    def counts() -> list[dict[str, Any]]:
        return [json.loads(line) for line in do("channel list orders --json")]

    assert do("topic create orders") == [f"{url}: topic 'orders' has 1 queue" for url in place.urls]
    assert do("channel create orders mail") == [
        f"{url}: channel 'mail' of topic 'orders' exists" for url in place.urls
    ]
    for broker in place.brokers:
        ask(broker.http_address, "/mpub?topic=orders", "POST", b"1\n2\n3")
    until(lambda: all(channel["depth"] == 3 for channel in counts()))
    assert {name: value for name, value in counts()[0].items() if name != "broker"} == {
        "topic": "orders",
        "channel": "mail",
        "depth": 3,
        "in_flight": 0,
        "deferred": 0,
        "clients": 0,
        "messages": 3,
        "paused": False,
    }
    head, *rows = do("channel list orders")
    assert head.split() == [
        *("TOPIC", "CHANNEL", "DEPTH", "IN", "FLIGHT", "DEFERRED", "CLIENTS", "MESSAGES", "BROKER")
    ]
    assert rows[0].split() == ["orders", "mail", "3", "0", "0", "0", "3", place.urls[0]]
    do("channel pause orders mail")
    assert [count["paused"] for count in counts()] == [True, True]
    assert "mail (paused)" in do("channel list")[1]
    do("channel unpause orders mail")
    assert [count["paused"] for count in counts()] == [False, False]
    do("topic pause orders")
    head, *rows = do("topic list orders")
    assert head.split() == ["TOPIC", "QUEUES", "CHANNELS", "DEPTH", "MESSAGES", "BROKER"]
    assert rows[1].split() == ["orders", "(paused)", "1", "1", "0", "3", place.urls[1]]
    do("topic unpause orders")
    answer = json.loads(do("topic list orders --json")[0])
    assert (answer["channels"], answer["paused"], answer["messages"]) == (["mail"], False, 3)
    do("channel empty orders mail --force")
    assert [count["depth"] for count in counts()] == [0, 0]
    do("topic empty orders --force")
    do("channel delete orders mail --force")
    assert counts() == []
    do("topic delete orders --force")
    said = tool("topic", "list", "orders", *place.named)
    assert (said.code, said.out) == (1, "")
    assert f"{', '.join(place.urls)}: there is no topic 'orders'\n" in said.err
    assert tool("channel", "list", "orders", *place.named).code == 1


def test_a_command_without_force_shows_the_loss_and_changes_nothing(
    place: Place, tool: Tool
) -> None:
    for broker in place.brokers:
        create(broker, "kept")
    ask(place.brokers[0].http_address, "/mpub?topic=kept", "POST", b"1\n2")
    for words, subject in (
        (("channel", "empty", "kept", "c"), "channel 'c' of topic 'kept' has"),
        (("channel", "delete", "kept", "c"), "channel 'c' of topic 'kept' has"),
        (("topic", "delete", "kept"), "topic 'kept' has 1 channel,"),
    ):
        said = tool(*words, *place.named)
        for url, count in zip(place.urls, (2, 0), strict=True):
            why = f"nothing is done without --force: {subject}"
            said.fails(f"{url}: {why} {count} messages and 0 clients there")
        assert said.out == ""
    said = tool("topic", "empty", "kept", *place.named)
    said.fails("nothing is done without --force: topic 'kept' has 0 messages")
    lines = tool("channel", "list", "kept", "--json", *place.named).out.splitlines()
    assert [json.loads(line)["depth"] for line in lines] == [2, 0]


def test_missing_topics_and_channels_are_named(place: Place, tool: Tool) -> None:
    address = place.brokers[0].http_address
    where = f"--nsqd-http-address={address}"
    tool("topic", "create", "somewhere", where)
    said = tool("topic", "list", "somewhere", *place.named)
    assert (said.code, said.err) == (0, ""), "one of the brokers has it"
    said = tool("channel", "list", "somewhere", where)
    assert (said.code, said.out) == (0, "")
    assert said.err.endswith("there are no channels\n")
    for word in ("pause", "unpause", "empty", "delete"):
        force = ["--force"] if word in ("empty", "delete") else []
        said = tool("topic", word, "nowhere", *force, where)
        how = f"to list those there: martlet topic list --address={address}\n"
        said.fails(f"http://{address}: there is no topic 'nowhere'; {how}")
        said = tool("channel", word, "somewhere", "c", *force, where)
        how = f"to list those there: martlet channel list somewhere --address={address}\n"
        said.fails(f"http://{address}: there is no channel 'c' of topic 'somewhere'; {how}")


def test_lookup_daemons_learn_of_channels_and_forget_topics(place: Place, tool: Tool) -> None:
    assert tool("topic", "create", "found", place.found).code == 0
    until(lambda: len(place.know("found")) == 2)
    said = tool("channel", "create", "found", "c", place.found)
    daemon = f"http://{place.lookup.http_address}"
    assert {line.partition(": ")[0] for line in said.out.splitlines()} == {*place.urls, daemon}
    assert ask(place.lookup.http_address, "/channels?topic=found")["channels"] == ["c"]
    assert tool("channel", "delete", "found", "c", place.found, "--force").code == 0
    assert ask(place.lookup.http_address, "/channels?topic=found")["channels"] == []
    assert tool("topic", "delete", "found", place.found, "--force").code == 0
    assert "found" not in ask(place.lookup.http_address, "/topics")["topics"]
    # A topic of which only the lookup daemon knows can go too.
    ask(place.lookup.http_address, "/topic/create?topic=alone", "POST")
    assert tool("topic", "delete", "alone", place.found).code == 1
    assert tool("topic", "delete", "alone", place.found, "--force").code == 0
    assert "alone" not in ask(place.lookup.http_address, "/topics")["topics"]


def test_nodes_are_listed_with_the_daemons_that_know_them(place: Place, tool: Tool) -> None:
    tool("topic", "create", "listed", *place.named)
    until(lambda: len(place.know("listed")) == 2)
    http_ports = {int(broker.http_address.partition(":")[2]) for broker in place.brokers}
    ask(
        place.lookup.http_address,
        f"/topic/tombstone?topic=listed&node=127.0.0.1:{min(http_ports)}",
        "POST",
    )
    nodes = [json.loads(line) for line in tool("nodes", place.found, "--json").out.splitlines()]
    assert {node["http_port"] for node in nodes} == http_ports
    for node in nodes:
        assert node["lookup_daemons"] == [f"http://{place.lookup.http_address}"]
        assert "listed" in node["topics"]
        is_hidden = node["http_port"] == min(http_ports)
        assert node["tombstones"] == (["listed"] if is_hidden else [])
    head, *rows = tool("nodes", place.found).out.splitlines()
    assert head.split()[:5] == ["ADDRESS", "TCP", "HTTP", "VERSION", "TOPICS"]
    assert all(row.startswith("127.0.0.1  ") for row in rows)
    nodes = [json.loads(line) for line in tool("nodes", *place.named, "--json").out.splitlines()]
    assert {node["http_port"] for node in nodes} == http_ports


def test_health_is_shown_in_words_and_by_the_exit_code(place: Place, tool: Tool) -> None:
    said = tool("health", place.found)
    servers = [f"http://{place.lookup.http_address}", *place.urls]
    assert (said.code, said.err) == (0, "")
    assert sorted(said.out.splitlines()) == sorted(f"{server}: OK" for server in servers)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        said = tool("health", *place.named, f"--nsqd-http-address={address}")
    assert said.code == 1
    assert said.out.splitlines() == [
        *(f"{url}: OK" for url in place.urls),
        f"http://{address}: connection refused; is a broker running there?",
    ]
    output = tool("health", place.named[0], "--json").out
    assert json.loads(output) == {"server": place.urls[0], "is_healthy": True, "health": "OK"}


def test_a_broker_that_is_not_well_says_why(tool: Tool) -> None:
    with BrokerProcess(None, "--max-disk-bytes=1MiB", "--max-bytes-per-file=256KiB") as broker:
        where = f"--nsqd-http-address={broker.http_address}"
        create(broker, "t")

        def is_full() -> bool:
            said = tool("health", where)
            if said.code == 0:
                ask(broker.http_address, "/pub?topic=t", "POST", b"x" * 60_000)
            return said.code == 1

        until(is_full)
        assert tool("health", where).out.startswith(f"http://{broker.http_address}: NOK")


def test_the_error_of_a_wrong_port_names_the_right_one(place: Place, tool: Tool) -> None:
    tcp_address = place.brokers[0].tcp_address
    tool("topic", "list", f"--nsqd-http-address={tcp_address}").fails(
        f"http://{tcp_address}: that is a TCP port; give the broker's HTTP address, whose port is"
        " usually 4151\n"
    )
    for words in (("nodes",), ("topic", "list"), ("topic", "pause", "orders")):
        for address, why in (
            (place.lookup.tcp_address, "that is a TCP port; give the lookup daemon's HTTP address"),
            (place.brokers[0].http_address, "; give the HTTP address of a lookup daemon, whose"),
        ):
            tool(*words, f"--lookupd-http-address={address}").fails(why)


@pytest.mark.parametrize(
    "line",
    [
        *("topic list", "topic create t", "channel pause t c", "peek t c", "groups list", "nodes"),
        "stat --topic=t --channel=c --count=1",
    ],
)
def test_each_tool_reports_a_closed_port(tool: Tool, line: str) -> None:
    kind = "lookup daemon" if line == "nodes" else "broker"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        flag = "--lookup" if line == "nodes" else "--address"
        why = f"connection refused; is a {kind} running there?\n"
        tool(*line.split(), f"{flag}={address}").fails(f"http://{address}: {why}")


def test_lookup_daemons_that_know_no_broker_say_so(tool: Tool) -> None:
    with LookupProcess() as lookup:
        where = f"--lookupd-http-address={lookup.http_address}"
        for words in (("topic", "create", "t"), ("topic", "list")):
            tool(*words, where).fails(f"http://{lookup.http_address}: no broker is known there\n")
        assert tool("nodes", where).code == 0
        said = tool("channel", "pause", "t", "c", where)
        said.fails("no broker with topic 't' is known there\n")
