"""Error texts for a server that cannot be reached, with a remedy; the same for TCP and HTTP."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl

BROKER, LOOKUP_DAEMON = "broker", "lookup daemon"
_HTTP_PORTS = {BROKER: 4151, LOOKUP_DAEMON: 4161}

_NUMBER = re.compile(r"\[Errno (\d+)\]")
_BAD_PROTOCOL = ("E_BAD_PROTOCOL", r"b'\x00\x00\x00")
"""How HTTP clients quote NSQ's answer: the error's name, or its size if the name arrived later."""


def reason(error: OSError, server: str = BROKER) -> str:
    """Return the text for a failed connection: ``connection refused; is a broker running there?``

    Args:
        error: raised by the connection attempt.
        server: the kind of server expected there.
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
    text = os.strerror(number).lower()
    if number == errno.ECONNREFUSED:
        return f"{text}; is a {server} running there?"
    return text


def loss(error: Exception | None) -> str:
    """Return the text for a lost connection; None means that the server closed it."""
    if error is None:
        return "the connection was closed"
    return reason(error) if isinstance(error, OSError) else str(error) or type(error).__name__


def http_wanted(server: str = BROKER) -> str:
    """Return the error text for NSQ's protocol answered to an HTTP request, with the remedy."""
    return f"that is a TCP port; give the {server}'s HTTP address, {_usual(server)}"


def not_that_server(server: str, path: str) -> str:
    """Return the error text for an HTTP server of another kind than expected, with the remedy."""
    return f"it has no {path}; give the HTTP address of a {server}, {_usual(server)}"


def _usual(server: str) -> str:
    return f"whose port is usually {_HTTP_PORTS[server]}"


def not_http(error: BaseException) -> str:
    """Return the error text for an answer to an HTTP request that is not HTTP."""
    if is_tcp_port(error):
        return http_wanted()
    return f"what answers there does not speak HTTP; give a broker's HTTP address, {_usual(BROKER)}"


def is_tcp_port(error: BaseException) -> bool:
    """Whether an HTTP client's error quotes NSQ's answer to bytes that are no command."""
    seen: BaseException | None = error
    while seen is not None:
        if any(quoted in str(seen) for quoted in _BAD_PROTOCOL):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
