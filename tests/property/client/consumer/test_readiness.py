"""Whatever comes and goes: ready counts never sum above max_in_flight, and none starves."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from martlet.client.consumer.rdy import RdyDistributor, Rotation

ROTATION = Rotation(low_rdy_idle_timeout_s=10, low_rdy_timeout_s=30, rdy_redistribute_interval_s=5)


@dataclass(eq=False)
class Connection:
    """A connection, and what its broker knows."""

    max_ready_count: int = 2500
    in_flight: int = 0
    last_message_s: float = 0.0
    ready: int = 0


Changes = list[tuple[Connection, int]]


class ReadinessMachine(RuleBasedStateMachine):
    """Connections that come, go, get messages and finish them."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[Connection] = []
        self.now_s = 100.0
        self.cap: int | None = None
        self.is_paused = False

    @initialize(max_in_flight=st.integers(1, 20), seed=st.integers())
    def begin(self, max_in_flight: int, seed: int) -> None:
        self.readiness: RdyDistributor[Connection] = RdyDistributor(
            max_in_flight, ROTATION, random.Random(seed).random
        )
        self.max_in_flight = max_in_flight

    def obey(self, changes: Changes) -> None:
        for connection, count in changes:
            assert 0 <= count <= connection.max_ready_count
            assert count != connection.ready, "nothing is sent that is so already"
            rises = count > connection.ready
            connection.ready = count
            budget = 0 if self.is_paused else self.max_in_flight
            if rises:
                assert self.total() <= min(budget, self.max_in_flight)

    def total(self) -> int:
        return sum(connection.ready for connection in self.connections)

    @rule(limit=st.sampled_from([1, 3, 2500]))
    def add(self, limit: int) -> None:
        if len(self.connections) < 8:
            connection = Connection(limit)
            self.connections.append(connection)
            self.obey(self.readiness.add(connection, self.now_s))

    @precondition(lambda self: self.connections)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        connection = data.draw(st.sampled_from(self.connections))
        self.connections.remove(connection)
        self.obey(self.readiness.remove(connection, self.now_s))

    @rule(max_in_flight=st.integers(0, 20))
    def change(self, max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.obey(self.readiness.change(max_in_flight, self.now_s))

    @rule(is_paused=st.booleans())
    def pause(self, is_paused: bool) -> None:
        self.is_paused = is_paused
        self.obey(self.readiness.pause(is_paused, self.now_s))

    @rule(cap=st.sampled_from([0, 1, None]))
    def back_off(self, cap: int | None) -> None:
        self.cap = cap
        self.obey(self.readiness.cap(cap, self.now_s))

    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        able = [
            connection for connection in self.connections if connection.in_flight < connection.ready
        ]
        if able:
            connection = data.draw(st.sampled_from(able))
            connection.in_flight += data.draw(
                st.integers(1, connection.ready - connection.in_flight)
            )
            connection.last_message_s = self.now_s

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        busy = [connection for connection in self.connections if connection.in_flight]
        if busy:
            connection = data.draw(st.sampled_from(busy))
            connection.in_flight -= data.draw(st.integers(1, connection.in_flight))
            if self.readiness.is_owing:
                self.obey(self.readiness.share(self.now_s))

    @rule(seconds=st.sampled_from([0.1, 5, 11, 31]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        if self.readiness.is_owing or self.readiness.is_too_many:
            self.obey(self.readiness.redistribute(self.now_s))

    @invariant()
    def never_too_many(self) -> None:
        if not hasattr(self, "readiness"):
            return
        budget = 0 if self.is_paused else self.max_in_flight
        if self.cap is not None:
            budget = min(budget, self.cap)
        assert self.total() <= budget
        assert self.readiness.counts == {
            connection: connection.ready for connection in self.connections
        }
        # Nothing is left over that a connection could take, but for what others have in flight.
        limits = [connection.max_ready_count for connection in self.connections]
        if not self.readiness.is_owing:
            assert self.total() == min(budget, sum(limits))
        elif len(limits) <= budget:
            taken = sum(
                max(connection.ready, connection.in_flight) for connection in self.connections
            )
            assert taken >= budget or any(
                connection.in_flight > connection.ready for connection in self.connections
            )

    @precondition(lambda self: self.connections and not self.is_paused and self.max_in_flight)
    @rule()
    def each_gets_its_turn(self) -> None:
        """However idle or busy connections are, and though some never finish a message."""
        served: set[Connection] = set()
        self.cap = None
        self.obey(self.readiness.cap(None, self.now_s))
        for _ in range(8 * 8):
            self.time_passes(5)
            served |= {connection for connection in self.connections if connection.ready}
        assert served == set(self.connections)


TestReadiness = ReadinessMachine.TestCase
TestReadiness.settings = settings(max_examples=60, stateful_step_count=25)


def readiness_of(max_in_flight: int) -> RdyDistributor[Connection]:
    return RdyDistributor(max_in_flight, ROTATION, random.Random(1).random)


def test_a_share_stays_where_it_is_when_nothing_changes() -> None:
    readiness = readiness_of(10)
    a, b, c = Connection(), Connection(), Connection(max_ready_count=1)
    assert readiness.add(a, 0) == [(a, 10)]
    assert readiness.add(b, 0) == [(a, 5), (b, 5)]
    changes = readiness.add(c, 0)
    assert changes[0] in [(a, 4), (b, 4)], "what goes down is sent first"
    assert sorted(readiness.counts.values()) == [1, 4, 5]
    assert readiness.redistribute(100) == []
    assert {count for _, count in readiness.pause(True, 100)} == {0}
    assert readiness.add(Connection(), 100) == []


@given(max_in_flight=st.integers(1, 50), connections=st.integers(1, 60))
def test_each_gets_its_part_of_max_in_flight_and_one_at_least(
    max_in_flight: int, connections: int
) -> None:
    readiness = readiness_of(max_in_flight)
    for _ in range(connections):
        readiness.add(Connection(), 0)
    counts = sorted(readiness.counts.values())
    assert sum(counts) == max_in_flight
    if connections <= max_in_flight:
        assert counts[0] == max_in_flight // connections >= 1
        assert counts[-1] - counts[0] <= 1
    else:
        assert counts == [0] * (connections - max_in_flight) + [1] * max_in_flight


def test_messages_in_flight_elsewhere_are_awaited_within_a_limit() -> None:
    readiness = readiness_of(10)
    busy, fresh = Connection(), Connection()
    readiness.add(busy, 0)
    busy.in_flight = 10
    assert readiness.add(fresh, 0) == [(busy, 5)]
    assert readiness.is_owing
    busy.in_flight = 8
    assert readiness.share(1) == [(fresh, 2)]
    busy.in_flight = 7
    assert readiness.share(1) == [(fresh, 3)]
    assert readiness.redistribute(4.9) == []
    assert readiness.redistribute(5.1) == [(fresh, 5)], "seven messages may never be answered"
    assert not readiness.is_owing


def test_an_idle_connection_gives_up_after_10_s_and_a_busy_one_after_30_s() -> None:
    readiness = readiness_of(2)
    idle, busy, other = Connection(), Connection(), Connection()
    for connection in (idle, busy, other):
        readiness.add(connection, 0)
    assert readiness.counts == {idle: 1, busy: 1, other: 0}
    changes: Changes = []
    for now_s in (5, 10):
        busy.last_message_s = now_s
        changes += readiness.redistribute(now_s)
    assert changes == []
    assert readiness.redistribute(10.1) == [(idle, 0), (other, 1)]
    for now_s in range(12, 31, 2):
        busy.last_message_s = other.last_message_s = now_s
        assert readiness.redistribute(now_s) == []
    busy.last_message_s = other.last_message_s = 30.1
    assert readiness.redistribute(30.2) == [(busy, 0), (idle, 1)]


def test_while_a_message_is_tried_an_idle_connection_gives_way() -> None:
    readiness = readiness_of(10)
    connections = [Connection() for _ in range(3)]
    for connection in connections:
        readiness.add(connection, 0)
    readiness.cap(0, 1)
    [(first, one)] = readiness.cap(1, 2)
    assert one == 1
    assert readiness.redistribute(7) == []
    [(left, none), (second, one)] = readiness.redistribute(12.5)
    assert (left, none, one) == (first, 0, 1)
    [(third, one)] = readiness.remove(second, 13)
    assert {first, second, third} == set(connections), "the one that waited the longest"
    assert dict(readiness.cap(None, 14)) == {first: 5, third: 5}


def test_senseless_times_are_refused() -> None:
    with pytest.raises(ValueError, match="low_rdy_timeout_s=0 must be above 0"):
        Rotation(low_rdy_timeout_s=0)
