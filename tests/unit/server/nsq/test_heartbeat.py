"""The heartbeat of a connection, also where the broker itself was stopped."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from martlet.server.nsq.heartbeat import Heartbeat

INTERVAL_S = 10


class Loop:
    """A loop whose time is set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, call: Callable[[], None]) -> Any:
        heapq.heappush(self._due, (at_s, len(self._due), call))
        return Mock()

    def run(self, seconds: float) -> None:
        """Run for a time."""
        end_s = self.now_s + seconds
        while self._due and self._due[0][0] <= end_s:
            at_s, _, call = heapq.heappop(self._due)
            self.now_s = max(self.now_s, at_s)
            call()
        self.now_s = end_s

    def stop(self, seconds: float) -> None:
        """Stand still for a time; then the timers come before what lies in the sockets."""
        self.now_s += seconds
        self.run(0)


class Client:
    """A connection that counts its heartbeats."""

    identity: Any = SimpleNamespace(heartbeat_interval_ns=INTERVAL_S * 10**9)

    def __init__(self) -> None:
        self.has_received = False
        self.input = SimpleNamespace(is_held_up=False)
        self.beat_count = 0
        self.dropped = ""

    def beat(self) -> None:
        self.beat_count += 1

    def drop(self, reason: str) -> None:
        self.dropped = reason


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    return loop


@pytest.fixture
def client(loop: Loop) -> Client:
    client = Client()
    Heartbeat(cast(Any, client)).start()
    loop.run(INTERVAL_S)
    assert client.beat_count == 1
    return client


def test_a_client_that_answers_no_two_heartbeats_is_dropped(loop: Loop, client: Client) -> None:
    loop.run(INTERVAL_S)
    assert (client.beat_count, client.dropped) == (1, "was silent for two heartbeats")


def test_an_answer_that_came_while_the_broker_was_stopped_counts(
    loop: Loop, client: Client
) -> None:
    for beats in range(2, 5):
        loop.stop(100 * INTERVAL_S)
        assert client.beat_count == beats - 1
        client.has_received = True  # The loop reads the socket.
        loop.run(1)
        assert (client.beat_count, client.dropped) == (beats, "")


def test_a_client_that_said_nothing_while_the_broker_was_stopped_is_dropped(
    loop: Loop, client: Client
) -> None:
    loop.stop(100 * INTERVAL_S)
    assert not client.dropped
    loop.run(1)
    assert client.dropped


def test_a_broker_that_is_late_each_time_drops_a_silent_client_all_the_same(
    loop: Loop, client: Client
) -> None:
    loop.stop(2 * INTERVAL_S)
    loop.stop(2 * INTERVAL_S)
    assert client.dropped
