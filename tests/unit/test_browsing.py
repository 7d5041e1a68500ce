import pytest

from martlet.browsing import host_of, is_address


@pytest.mark.parametrize(
    ("named", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1:4151", "127.0.0.1"),
        ("LocalHost:4151", "localhost"),
        ("[::1]", "::1"),
        ("[2001:DB8::1]:4151", "2001:db8::1"),
        ("example.com.:80", "example.com."),
        ("", ""),
        (":4151", ""),
        ("[]", ""),
    ],
)
def test_the_host_is_without_port_and_brackets(named: str, host: str) -> None:
    assert host_of(named) == host


@pytest.mark.parametrize(
    "named",
    [
        "localhost:1@example.com",
        "127.0.0.1:80@example.com",
        "user@localhost",
        "[::1].example.com",
        "[::1]@example.com",
        "[::1]example.com:80",
        "127.0.0.1:80:90",
        "localhost:80/x",
    ],
)
def test_what_is_no_host_and_port_is_no_address(named: str) -> None:
    assert host_of(named) == named
    assert not is_address(host_of(named))
