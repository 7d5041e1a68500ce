"""Addresses, names, backoff: what needs no broker."""

import pytest

from martlet.addresses import Address
from martlet.client import Backoff, Identity, InvalidName, Limits
from martlet.client.names import check_name
from martlet.client.settings import parse_addresses
from martlet.client.transport.identity import Features


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
def test_a_bad_address_is_refused(text: str) -> None:
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


def test_a_name_that_no_broker_takes_is_refused() -> None:
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


def test_an_identity_sends_only_the_fields_that_are_set() -> None:
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
    max_length = Features.parse(b'{"msg_timeout": 9223372036854, "max_rdy_count": 0}')
    assert max_length.message_timeout_ms == (2**63 - 1) // 10**6
    with pytest.raises(ValueError, match="IDENTIFY"):
        Features.parse(b"[1]")
