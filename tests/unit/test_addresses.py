"""Hosts and ports that strangers name."""

from __future__ import annotations

import pytest

from martlet.addresses import Address, is_host, lookup_address


@pytest.mark.parametrize(
    "text",
    [
        "broker-1",
        "my_service",
        "mq1.example.org",
        "mq1.example.org.",
        "xn--bcher-kva.example",
        "a" * 63,
        "123456789012",
        "deadbeef1234",
        "127.0.0.1",
        "::1",
        "2001:db8::7",
        "::ffff:10.0.0.1",
    ],
)
def test_names_and_addresses_are_hosts(text: str) -> None:
    assert is_host(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "-rf",
        "a..b",
        "a" * 64,
        "a." * 127 + "a",
        "a/b",
        "a?b=",
        "a#b",
        "a:80",
        "a:80/admin?x=",
        "user@a",
        "user:secret@a",
        "a b",
        "a\r\nX: y",
        "a\n",
        "a\0",
        "a%2fb",
        "%61",
        "fe80::1%eth0",
        "fe80::1%eth0/x",
        "[::1]",
        "[::1]:80",
        "::1/x",
        "127.0.0.1/8",
        "127.1",
        "0x7f.0.0.1",
        "0x7f000001",
        "2130706433",
        "010.0.0.1",
        "127.0.0.1.",
        "b\u00fccher.example",
        "\uff11\uff12\uff17.0.0.1",
        "a\u3002b",
        "\u0661",
        "a\\b",
        "http://a",
    ],
)
def test_what_would_change_a_url_is_no_host(text: str) -> None:
    assert not is_host(text)
    with pytest.raises(ValueError, match="is no host name or IP address"):
        lookup_address(text, 4151)


@pytest.mark.parametrize("port", [0, -1, 65536, 10**30, True, 4151.0, "4151", None])
def test_what_is_no_port_is_refused(port: object) -> None:
    with pytest.raises(ValueError, match="is no port"):
        lookup_address("a", port)


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert lookup_address("::1", 4151) == Address("::1", 4151)
    assert str(lookup_address("::1", 4151)) == "[::1]:4151"


def test_an_error_shows_the_beginning_of_a_long_text() -> None:
    with pytest.raises(ValueError, match="is no host") as error:
        lookup_address("x/" * 100_000, 1)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("text", ["http://127.0.0.1:4151", "https://broker", "tcp://http://a:1"])
def test_a_url_is_no_address_of_a_listener(text: str) -> None:
    with pytest.raises(ValueError, match="is a URL: name a broker's TCP listener"):
        Address.parse(text)
