"""Why a server cannot be reached, in words that name the way out; the same for TCP and HTTP."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl

BROKER, LOOKUP_DAEMON = "broker", "lookup daemon"
_HTTP_PORTS = {BROKER: 4151, LOOKUP_DAEMON: 4161}
_TCP_PORTS = {BROKER: 4150, LOOKUP_DAEMON: 4160}

_NUMBER = re.compile(r"\[Errno (\d+)\]")
_BAD_PROTOCOL = ("E_BAD_PROTOCOL", r"b'\x00\x00\x00")
"""How HTTP clients quote NSQ's answer: the error's name; or its size, where the name came later."""


def reason(error: OSError, server: str = BROKER) -> str:
    """Why no connection stands: ``connection refused; is a broker running there?``

    Args:
        error: what connecting raised.
        server: what should listen there.
    """
    if isinstance(error, socket.gaierror):
        return (error.strerror or str(error)).lower()
    if isinstance(error, ssl.SSLError):
        return str(error)
    number = error.errno
    if number is None and (found := _NUMBER.search(str(error))):
        number = int(found[1])  # All addresses of a name were tried, and each has an error.
    if number is None or number <= 0:
        return str(error) or type(error).__name__
    told = os.strerror(number).lower()
    if number == errno.ECONNREFUSED:
        return f"{told}; is a {server} running there?"
    return told


def loss(error: Exception | None) -> str:
    """Why a connection that stood is gone, None where the server has closed it."""
    if error is None:
        return "the connection was closed"
    return reason(error) if isinstance(error, OSError) else str(error) or type(error).__name__


def tcp_wanted(server: str = BROKER) -> str:
    """What is told where HTTP was answered to NSQ's protocol."""
    port = f"whose port is usually {_TCP_PORTS[server]}"
    return f"that is an HTTP port; give the {server}'s TCP address, {port}"


def http_wanted(server: str = BROKER) -> str:
    """What is told where NSQ's protocol was answered to an HTTP request."""
    return f"that is a TCP port; give the {server}'s HTTP address, {_usual(server)}"


def not_that_server(server: str, path: str) -> str:
    """What is told where an HTTP server is another than the one that was meant."""
    return f"it has no {path}; give the HTTP address of a {server}, {_usual(server)}"


def _usual(server: str) -> str:
    return f"whose port is usually {_HTTP_PORTS[server]}"


def not_http(error: BaseException) -> str:
    """What is wrong where something answered an HTTP request with anything but HTTP."""
    if is_tcp_port(error):
        return http_wanted()
    return f"what answers there does not speak HTTP; give a broker's HTTP address, {_usual(BROKER)}"


def is_tcp_port(error: BaseException) -> bool:
    """Whether this error of an HTTP client quotes NSQ's answer to bytes that are no command."""
    seen: BaseException | None = error
    while seen is not None:
        if any(quoted in str(seen) for quoted in _BAD_PROTOCOL):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
