"""Operators' tokens, and the hosts that requests name."""

from __future__ import annotations

from pathlib import Path

import pytest

from martlet.addresses import Address
from martlet.http_requests import (
    MAX_TOKENS,
    TrustedBrokers,
    host_of,
    is_address,
    read_tokens,
    token_headers,
)

TOKEN = "0123456789abcdef"
OTHER = "fedcba9876543210=="


def test_each_line_is_a_token_and_a_client_sends_the_first(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"\n  {TOKEN}\r\n\n{OTHER}\n")
    assert read_tokens(str(path)) == (TOKEN, OTHER)
    assert token_headers(str(path)) == {"Authorization": f"Bearer {TOKEN}"}
    assert token_headers("") == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no token: make one with `openssl rand -hex 32`"),
        (" \n\n", "has no token"),
        (f"{TOKEN}\nsecret", "the token of line 2 has 6 characters, and must have 16 to 512"),
        (f"{TOKEN}\nsecret secret secret", "line 2 is no token"),
        ("pässword-pässword", "line 1 is no token"),
        (f"{TOKEN}\n" * (MAX_TOKENS + 1), "has more than 100 tokens"),
        (f"{TOKEN}\n" + "\n" * 70_000, "or 65536 bytes"),
    ],
)
def test_a_wrong_file_is_named_and_no_token_shown(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(OSError, match="operator") as refused:
        read_tokens(str(path))
    assert str(refused.value).startswith(f"--operator-token-file={path}")
    assert why in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_missing_file_is_named_with_the_option_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be read") as refused:
        token_headers(f"{tmp_path}/none", "option operatorTokenFile")
    assert str(refused.value) == (
        f"option operatorTokenFile={tmp_path}/none cannot be read: No such file or directory"
    )


@pytest.mark.parametrize(
    ("entry", "host", "port", "is_trusted"),
    [
        ("10.0.0.0/8", "10.1.2.3", 4151, True),
        ("10.0.0.0/8", "11.1.2.3", 4151, False),
        ("10.0.0.0/8", "::ffff:10.1.2.3", 4151, True),
        ("10.0.0.0/8", "ten.example.org", 4151, False),
        ("10.1.2.3", "10.1.2.3", 9, True),
        ("10.1.2.3:4151", "10.1.2.3", 4151, True),
        ("10.1.2.3:4151", "10.1.2.3", 4152, False),
        ("2001:db8::/32", "2001:DB8::7", 4151, True),
        ("::1", "::1", 4151, True),
        ("[::1]", "::1", 4151, True),
        ("[::1]:4151", "::1", 4151, True),
        ("[::1]:4151", "::1", 4152, False),
        ("mq1", "mq1", 4151, True),
        ("mq1", "MQ1.", 4151, True),
        ("mq1", "mq1.example.org", 4151, False),
        ("mq1", "mq10", 4151, False),
        ("mq1:4151", "mq1", 4152, False),
        ("mq1.example.org", "mq1.example.org", 4151, True),
        (".example.org", "mq1.example.org", 4151, True),
        (".example.org", "evil-example.org", 4151, False),
        (".example.org", "example.org", 4151, False),
    ],
)
def test_a_broker_is_trusted_by_its_network_address_name_or_domain(
    entry: str, host: str, port: int, is_trusted: bool
) -> None:
    assert TrustedBrokers([entry]).has(Address(host, port)) is is_trusted


@pytest.mark.parametrize("entry", ["", "a/b", "10.0.0.0/33", "*", "http://mq1", "mq1:0", "u@mq1"])
def test_what_is_no_broker_cannot_be_trusted(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is no|is not|must be"):
        TrustedBrokers([entry])


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
