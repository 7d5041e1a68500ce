"""Why a server cannot be reached, in words that name the way out; the same for TCP and HTTP."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl

HTTP_WANTED = "that is a broker's TCP port; give its HTTP address, whose port is usually 4151"
"""Told where a broker's TCP answered an HTTP request."""
TCP_WANTED = "that is an HTTP port; give the broker's TCP address, whose port is usually 4150"
"""Told where an HTTP server answered NSQ's protocol."""

_NUMBER = re.compile(r"\[Errno (\d+)\]")
_BAD_PROTOCOL = "E_BAD_PROTOCOL"


def reason(error: OSError, server: str = "broker") -> str:
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


def not_http(error: BaseException) -> str:
    """What is wrong where something answered an HTTP request with anything but HTTP."""
    if is_tcp_port(error):
        return HTTP_WANTED
    return "what answers there does not speak HTTP; a broker's HTTP port is usually 4151"


def is_tcp_port(error: BaseException) -> bool:
    """Whether this error of an HTTP client quotes NSQ's answer to bytes that are no command."""
    seen: BaseException | None = error
    while seen is not None:
        if _BAD_PROTOCOL in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
