"""Servers that cannot be reached: error texts with a remedy, the same for TCP and HTTP, and outages
that are logged once and then counted, so that a broker that is down is not logged every second.

The first failure is logged at once, and so is one for another reason. After that a line follows at
growing intervals, with the duration and the number of failed attempts, and one when the outage
ends.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Callable

from martlet.text import counted

BROKER, LOOKUP_DAEMON = "broker", "lookup daemon"
_HTTP_PORTS = {BROKER: 4151, LOOKUP_DAEMON: 4161}

_NUMBER = re.compile(r"\[Errno (\d+)\]")
_BAD_PROTOCOL = ("E_BAD_PROTOCOL", r"b'\x00\x00\x00")
"""How HTTP clients quote NSQ's answer: the error's name, or its size if the name arrived later."""
CLIENT_LOG = logging.getLogger("martlet.client")
FIRST_INTERVAL_S = 10.0
MAX_INTERVAL_S = 600.0
MAX_REASONS = 4
"""Reasons that are logged at once in an outage; failures for further ones are counted."""


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
    if number is None and (match := _NUMBER.search(str(error))):
        number = int(match[1])  # All addresses of a name were tried, and each has an error.
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


class Outage:
    """Logs failures of one kind at one server.

    Args:
        trouble: the failed operation, such as ``cannot connect to 127.0.0.1:4150``.
        relief: logged when it succeeds again, such as ``connected to 127.0.0.1:4150``.
        level: of failures; their end is a warning.
    """

    def __init__(
        self,
        trouble: str,
        relief: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        log: logging.Logger = CLIENT_LOG,
        level: int = logging.WARNING,
    ) -> None:
        self._log = log
        self._level = level
        self._trouble = trouble
        self._relief = relief
        self._clock = clock
        self._attempts = 0
        self._since_s = self._next_s = self._interval_s = 0.0
        self._reasons: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether the last attempt failed."""
        return self._attempts > 0

    def failed(self, reason: str) -> None:
        """Record a failed attempt."""
        now_s = self._clock()
        if not self._attempts:
            self._since_s = now_s
        self._attempts += 1
        if reason not in self._reasons and len(self._reasons) < MAX_REASONS:
            is_first = not self._reasons
            self._reasons.add(reason)
            self._log.log(self._level, "%s: %s (trying again)", self._trouble, reason)
            if is_first:
                self._interval_s = FIRST_INTERVAL_S
                self._next_s = now_s + FIRST_INTERVAL_S
        elif now_s >= self._next_s:
            self._interval_s = min(2 * self._interval_s, MAX_INTERVAL_S)
            self._next_s = now_s + self._interval_s
            self._log.log(
                self._level,
                "%s for %.0f s, in %s: %s (trying again; next line in %.0f s)",
                self._trouble,
                now_s - self._since_s,
                counted(self._attempts, "attempt"),
                reason,
                self._interval_s,
            )

    def over(self) -> bool:
        """Record a success. Returns whether an outage ended, which is logged."""
        if not self._attempts:
            return False
        self._log.warning(
            "%s after %.1f s and %s",
            self._relief,
            self._clock() - self._since_s,
            counted(self._attempts, "failed attempt"),
        )
        self._attempts = 0
        self._reasons.clear()
        return True
