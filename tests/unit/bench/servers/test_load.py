"""The load generator against a real broker: what it says it did is what the broker saw."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests import brokers
from tests.interop.asking import ask, until

from bench.servers.link import OK_FRAME, BenchConnection, LoadFailed
from bench.servers.load import Consuming, Load, LoadResult, Pinging, PublishLoad
from bench.servers.load_processes import LoadProcesses
from bench.servers.target import Target
from martlet.testing import BrokerProcess

TOPIC, CHANNEL = "load", "generator"


broker = brokers.process("--log-level=warn")


@pytest.fixture(scope="module")
def processes() -> Iterator[LoadProcesses]:
    with LoadProcesses() as members:
        yield members


@pytest.fixture
def target(broker: BrokerProcess) -> Target:
    http_port = broker.http_address.rpartition(":")[2]
    target = Target.parse(f"{broker.tcp_address},{http_port}")
    target.fresh(TOPIC, CHANNEL)
    return target


def topic_stats(target: Target) -> dict[str, Any]:
    (topic,) = ask(target.http_address, f"/stats?format=json&topic={TOPIC}")["topics"]
    return dict(topic)


def publishing(**changes: Any) -> PublishLoad:
    plain: dict[str, Any] = {"smallest_bytes": 200, "largest_bytes": 200, "batch": 1}
    return PublishLoad(**{"topic": TOPIC, "seconds": 0.2, **plain, **changes})


def run_here(load: Load, target: Target) -> LoadResult:
    return load.run(target.host, target.port, lambda: None)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 200},
        {"batch": 50, "smallest_bytes": 100, "largest_bytes": 300},
        {"window": 50},
        {},
    ],
    ids=["many", "many of several sizes", "a window", "one at a time"],
)
def test_publishing_counts_stored_messages(target: Target, changes: dict[str, Any]) -> None:
    tally = run_here(publishing(**changes), target)
    stats = topic_stats(target)
    assert tally.messages == stats["message_count"] > 0
    assert tally.messages % changes.get("batch", 1) == 0
    mean_bytes = stats["message_bytes"] / stats["message_count"]
    smallest = changes.get("smallest_bytes", 200)
    assert smallest <= mean_bytes <= changes.get("largest_bytes", 200)
    assert (tally.ended_ns - tally.started_ns) / 1e9 >= 0.2


def test_sizes_are_drawn_evenly_and_the_same_for_the_same_seed() -> None:
    load = publishing(batch=100, smallest_bytes=100, largest_bytes=300)
    writes = load._writes()
    assert len(set(writes)) == len(writes) > 1
    assert writes == publishing(batch=100, smallest_bytes=100, largest_bytes=300)._writes()
    assert writes != publishing(batch=100, smallest_bytes=100, largest_bytes=300, seed=2)._writes()
    mean_bytes = sum(map(len, writes)) / len(writes) / 100
    assert 190 < mean_bytes < 220


def test_consuming_finishes_everything_and_stops_when_nothing_more_comes(target: Target) -> None:
    published = run_here(publishing(batch=200), target)
    load = Consuming(topic=TOPIC, channel=CHANNEL, seconds=1000, ready=2500)
    tally = run_here(load, target)  # not for 1000 s
    assert tally.messages == published.messages
    counts = ("depth", "in_flight_count", "timeout_count")
    until(lambda: not any(topic_stats(target)["channels"][0][count] for count in counts))


def test_pinging_measures_each_message(target: Target) -> None:
    load = Pinging(topic=TOPIC, channel=CHANNEL, seconds=0.2, body_bytes=200)
    tally = run_here(load, target)
    assert tally.messages == len(tally.latencies_ns) == topic_stats(target)["message_count"] > 0
    assert 0 < sum(tally.latencies_ns) <= tally.ended_ns - tally.started_ns


def test_load_processes_work_together(target: Target, processes: LoadProcesses) -> None:
    tallies = processes.run(
        target.host, target.port, [publishing(batch=100), publishing(batch=100)]
    )
    assert sum(tally.messages for tally in tallies) == topic_stats(target)["message_count"]
    started_ns = [tally.started_ns for tally in tallies]
    assert max(started_ns) < min(tally.ended_ns for tally in tallies), "one after the other"


def test_load_processes_take_turns_at_several_servers(
    target: Target, processes: LoadProcesses
) -> None:
    with BrokerProcess() as second:
        other = Target.parse(f"{second.tcp_address},{second.http_address}")
        other.fresh(TOPIC, CHANNEL)
        tallies = processes.run(
            target.host, target.port, [publishing()] * 3, (other.host, other.port)
        )
        first, second_one, third = (tally.messages for tally in tallies)
        assert topic_stats(target)["message_count"] == first + third
        assert topic_stats(other)["message_count"] == second_one > 0


def test_load_processes_report_a_refusal_of_the_server(target: Target) -> None:
    with LoadProcesses() as processes, pytest.raises(LoadFailed, match="E_BAD_TOPIC"):
        processes.run(target.host, target.port, [publishing(topic="no*such"), publishing()])


def test_load_processes_report_a_port_without_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with LoadProcesses() as processes, pytest.raises(LoadFailed, match="cannot connect"):
        processes.run("127.0.0.1", port, [publishing()])


class ScriptedServer:
    """Accepts one connection, and sends one of the replies after each command that it reads."""

    def __init__(self, *replies: bytes) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.received: list[bytes] = []
        self._replies = replies
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection:
            for reply in self._replies:
                self.received.append(connection.recv(65536))
                connection.sendall(reply)


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", len(data) + 4, kind) + data


def test_a_heartbeat_among_answers_is_answered_and_not_counted() -> None:
    beat = frame(0, b"_heartbeat_")
    half = OK_FRAME[:7]
    replies = [OK_FRAME, OK_FRAME * 3 + beat + half, OK_FRAME[7:] + OK_FRAME]
    with ScriptedServer(*replies) as server, BenchConnection("127.0.0.1", server.port) as link:
        link.send(b"PUB x\n")
        count = link.receive_oks()
        while count < 5:
            count += link.receive_oks()
    assert count == 5
    assert server.received[2] == b"NOP\n"


def test_a_server_that_hangs_up_is_reported() -> None:
    with (
        ScriptedServer(OK_FRAME) as server,
        BenchConnection("127.0.0.1", server.port) as link,
        pytest.raises(LoadFailed, match="closed the connection"),
    ):
        link.receive_oks()


def test_messages_that_do_not_come_are_no_failure(target: Target) -> None:
    with BenchConnection(target.host, target.port) as link:
        link.set_patience(0.05)
        assert link.receive_runs() is None
