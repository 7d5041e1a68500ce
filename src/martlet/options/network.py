"""Options of the network: where a broker listens, and how it is reached."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from martlet.http_requests import TOKEN_SETTING, TOKEN_VARIABLE
from martlet.options.addresses import default_of
from martlet.options.flag import OptionError, option
from martlet.options.options import Options
from martlet.text import SECOND_NS


def connect_timeout(
    description: str = "maximum time of connecting over HTTP", min_value: int = 1
) -> Any:
    """``--http-client-connect-timeout``, two seconds by default."""
    name = "http-client-connect-timeout"
    return option(2 * SECOND_NS, description, name=name, limits=(min_value, None))


def request_timeout(
    description: str = "maximum time of an HTTP request", seconds: int = 5, min_value: int = 1
) -> Any:
    """``--http-client-request-timeout``, with a default in seconds."""
    name = "http-client-request-timeout"
    return option(seconds * SECOND_NS, description, name=name, limits=(min_value, None))


def _default_token_file() -> str:
    # Wrong addresses in the config file are an error of the commands that need them.
    with suppress(OptionError):
        return "".join(default_of(TOKEN_SETTING))
    return ""


def operator_token_file(more: str = "") -> Any:
    """``--operator-token-file`` of a client, by default what the environment says."""
    variable = TOKEN_VARIABLE
    return option(
        _default_token_file,
        f"the file with the token by which brokers know an operator{more} (default: ${variable})",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class NetworkOptions(Options):
    """The addresses of a broker, and those of its lookup daemons."""

    tcp_address: str = option(
        "0.0.0.0:4150",
        "<addr>:<port> for NSQ's TCP clients, or the <path> of a Unix socket",
        section="addresses",
    )
    http_address: str = option(
        "0.0.0.0:4151", "<addr>:<port> for HTTP, or the <path> of a Unix socket; empty for no HTTP"
    )
    https_address: str = option(
        "0.0.0.0:4152",
        "<addr>:<port> for HTTPS, or the <path> of a Unix socket; served only with a certificate",
    )
    broadcast_address: str = option(
        socket.gethostname,
        "the name under which clients reach this broker (default: the host's name)",
    )
    broadcast_tcp_port: int = option(
        0,
        "the TCP port under which clients reach this broker (default: the one it listens on)",
        limits=(0, 65535),
    )
    broadcast_http_port: int = option(
        0,
        "the HTTP port under which clients reach this broker (default: the one it listens on)",
        limits=(0, 65535),
    )
    lookupd_tcp_addresses: tuple[str, ...] = option(
        (),
        "<addr>:<port> of an nsqlookupd; may be given several times",
        name="lookupd-tcp-address",
        config_key="nsqlookupd_tcp_addresses",
    )
    http_client_connect_timeout_ns: int = connect_timeout(
        "maximum time to connect to another server over HTTP (0: no limit)",
        min_value=0,
    )
    http_client_request_timeout_ns: int = request_timeout(
        "maximum time of a request to another server over HTTP (0: no limit)", min_value=0
    )
    topology_region: str = option(
        "", "the region that this broker runs in; see --enable-experiment"
    )
    topology_zone: str = option(
        "", "the zone, in its region, that this broker runs in; see --enable-experiment"
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "a name by which browsers reach this over HTTP, beside its own name and literal addresses:"
        " pages of any other name are refused what changes something; may be given several times",
        name="allowed-host",
    )
    max_connections: int = option(
        0, "maximum TCP connections (0: limited by the system only)", limits=(0, None)
    )
