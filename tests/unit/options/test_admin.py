"""The options of the admin page."""

from __future__ import annotations

from typing import Any

import pytest

from martlet.options import OptionError
from martlet.options.admin import AdminOptions

HERE: dict[str, Any] = {"nsqd_http_addresses": ("127.0.0.1:4151",)}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "say which brokers to show"),
        (
            {**HERE, "lookupd_http_addresses": ("127.0.0.1:4161",)},
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        ({**HERE, "http_client_tls_cert": "a.pem"}, "are given together"),
        ({**HERE, "http_client_tls_key": "a.pem"}, "are given together"),
        ({**HERE, "trusted_proxies": ("10.0.0.0/8", "host")}, "--trusted-proxy=host is no network"),
        ({**HERE, "allow_config_from_cidr": "all"}, "--allow-config-from-cidr=all is no network"),
        ({**HERE, "poll_interval_ns": 1}, "--poll-interval"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        AdminOptions(**fields)


@pytest.mark.parametrize(
    ("address", "is_loopback"),
    [
        ("127.0.0.1:4171", True),
        ("[::1]:4171", True),
        ("localhost:4171", True),
        ("127.0.0.2:4171", True),
        (":4171", False),
        ("0.0.0.0:4171", False),
        ("10.0.0.1:4171", False),
        ("admin.example:4171", False),
    ],
)
def test_what_only_this_machine_reaches(address: str, is_loopback: bool) -> None:
    assert AdminOptions(http_address=address, **HERE).is_loopback is is_loopback


@pytest.mark.parametrize("address", ["4171", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(OptionError, match=f"--http-address={address}"):
        AdminOptions(http_address=address, **HERE)


@pytest.mark.parametrize(
    ("path", "prefix"), [("/", ""), ("", ""), ("/martlet", "/martlet"), ("a/b/", "/a/b")]
)
def test_paths_behind_a_proxy(path: str, prefix: str) -> None:
    assert AdminOptions(base_path=path, **HERE).prefix == prefix


@pytest.mark.parametrize("path", ["/a b", "/{topic}", "/a?b", "/a//b", "/../a"])
def test_a_path_that_no_proxy_sends_is_refused(path: str) -> None:
    with pytest.raises(OptionError, match="--base-path"):
        AdminOptions(base_path=path, **HERE)
