"""Addresses, names, backoff, readiness: what needs no broker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from martlet.client import Backoff, Identity, InvalidName, Limits
from martlet.client.address import Address, parse_addresses
from martlet.client.identity import Features
from martlet.client.name import check_name
from martlet.client.readiness import Readiness


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", ("localhost", 4150)),
        ("10.0.0.1:4250", ("10.0.0.1", 4250)),
        ("tcp://broker-1:1", ("broker-1", 1)),
        ("[::1]:4150", ("::1", 4150)),
        ("[fe80::1]", ("fe80::1", 4150)),
    ],
)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert Address.parse(text) == address
    assert Address.parse(str(Address.parse(text))) == address


@pytest.mark.parametrize(
    "text", ["", ":4150", "a:", "a:b", "a:0", "a:65536", "::1", "a:-1", "a:\u0661"]
)
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Address.parse(text)


def test_addresses_are_one_or_several() -> None:
    one = [Address("a", 1)]
    assert parse_addresses("a:1") == one
    assert parse_addresses(("a", 1)) == one
    assert parse_addresses(["a:1", ("a", 1)]) == one
    assert parse_addresses(("a:1", "b:2")) == [*one, Address("b", 2)]
    with pytest.raises(ValueError, match="no address"):
        parse_addresses([])


def test_a_name_that_no_broker_takes_is_told() -> None:
    assert check_name("orders#ephemeral", "topic") == "orders#ephemeral"
    with pytest.raises(InvalidName, match="'to bill' is no name of a channel: 1 to 64"):
        check_name("to bill", "channel")


def test_backoff_doubles_up_to_its_limit() -> None:
    backoff = Backoff(first_s=1, max_s=10, jitter=0.5)
    assert [backoff.delay_s(attempt, chance=0) for attempt in range(7)] == [0, 1, 2, 4, 8, 10, 10]
    assert backoff.delay_s(2, chance=1) == 1
    assert backoff.delay_s(100_000, chance=0) == 10
    assert all(5 <= backoff.delay_s(9) <= 10 for _ in range(100))


@pytest.mark.parametrize(
    "settings", [{"first_s": -1}, {"first_s": 2, "max_s": 1}, {"jitter": 1.1}, {"jitter": -0.1}]
)
def test_a_senseless_backoff_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Backoff(**settings)


def test_senseless_limits_and_identities_are_refused() -> None:
    with pytest.raises(ValueError, match="max_in_flight_bytes=0"):
        Limits(max_in_flight_bytes=0)
    with pytest.raises(ValueError, match="sample_rate=100"):
        Identity(sample_rate=100)
    with pytest.raises(ValueError, match="heartbeat_interval_ms=5"):
        Identity(heartbeat_interval_ms=5)


def test_an_identity_says_only_what_is_asked_for() -> None:
    assert "msg_timeout" not in Identity().fields()
    fields = Identity(message_timeout_ms=5000, output_buffer_bytes=-1, client_id="me").fields()
    assert fields["msg_timeout"] == 5000
    assert fields["output_buffer_size"] == -1
    assert fields["client_id"] == "me"
    assert fields["feature_negotiation"] is True


def test_features_are_read_and_a_broker_that_says_ok_has_the_defaults() -> None:
    assert Features.parse(b"OK") == Features()
    features = Features.parse(b'{"max_rdy_count": 7, "msg_timeout": 1000, "auth_required": true}')
    assert features.max_ready_count == 7
    assert features.message_timeout_ms == 1000
    assert features.auth_required
    with pytest.raises(ValueError, match="IDENTIFY"):
        Features.parse(b"[1]")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 7), st.integers(1, 20)),
        st.tuples(st.just("remove"), st.integers(0, 7), st.just(0)),
        st.tuples(st.just("rotate"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@given(max_in_flight=st.integers(1, 30), steps=steps)
def test_the_sum_of_ready_counts_never_exceeds_max_in_flight(
    max_in_flight: int, steps: list[tuple[str, int, int]]
) -> None:
    readiness: Readiness[int] = Readiness(max_in_flight)
    limits: dict[int, int] = {}
    sent: dict[int, int] = {}
    for step, connection, limit in steps:
        if step == "add" and connection not in limits:
            limits[connection] = limit
            sent[connection] = 0
            changes = readiness.add(connection, limit)
        elif step == "remove":
            limits.pop(connection, None)
            sent.pop(connection, None)
            changes = readiness.remove(connection)
        else:
            changes = readiness.rotate()
        for changed, count in changes:
            sent[changed] = count
            assert sum(sent.values()) <= max_in_flight
        assert sent == readiness.counts
        assert all(0 <= sent[each] <= limits[each] for each in limits)
        # Nothing is left over that a connection could still take.
        assert sum(sent.values()) == min(max_in_flight, sum(limits.values()))


def test_a_share_stays_where_it_is_when_nothing_changes() -> None:
    readiness: Readiness[str] = Readiness(10)
    assert readiness.add("a", 2500) == [("a", 10)]
    assert readiness.add("b", 2500) == [("a", 5), ("b", 5)]
    changes = readiness.add("c", 1)
    assert changes[0] in [("a", 4), ("b", 4)], "what goes down is sent first"
    assert sorted(readiness.counts.values()) == [1, 4, 5]
    assert readiness.rotate() == []
    assert sorted(readiness.pause()) == [("a", 0), ("b", 0), ("c", 0)]
    assert readiness.add("d", 5) == []


def test_connections_that_have_no_part_get_their_turn() -> None:
    readiness: Readiness[int] = Readiness(2)
    for connection in range(5):
        readiness.add(connection, 2500)
    assert readiness.starved
    served: set[int] = set()
    for _ in range(3):
        served |= {each for each, count in readiness.counts.items() if count}
        readiness.rotate()
    assert served == set(range(5))
