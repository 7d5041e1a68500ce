"""Routes of a broker that everyone may use, and those of operators, and how to ask for them."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from martlet.testing import BrokerProcess

OPERATORS = (
    ("GET", "/channel/peek?topic=t&channel=c"),
    ("POST", "/channel/replay?topic=t&channel=c&beginning=true"),
    ("POST", "/channel/advance?topic=t&channel=c&offset=0"),
    ("GET", "/log/topics"),
    ("GET", "/log/segments"),
    ("POST", "/call/delay.list"),
    ("PUT", "/debug/setblockrate?rate=1"),
    ("POST", "/debug/freememory"),
    ("GET", "/debug/pprof/"),
    ("GET", "/debug/pprof/heap"),
)
EVERYONE = (
    ("GET", "/ping"),
    ("GET", "/stats"),
    ("GET", "/info"),
    ("GET", "/metrics"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("GET", "/config/log_level"),
    ("POST", "/topic/create?topic=t"),
    ("POST", "/channel/create?topic=t&channel=c"),
    ("POST", "/pub?topic=t"),
    ("POST", "/channel/pause?topic=t&channel=c"),
)


class OpenBroker(BrokerProcess):
    """A broker whose HTTP listens on all addresses of the machine, as by default."""

    @property
    def command(self) -> list[str]:
        port = self.http_address.rpartition(":")[2]
        return [*super().command, f"--http-address=0.0.0.0:{port}"]


def other_address() -> str:
    """Return an address of this machine that is no loopback address; skip the test without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Sends nothing.
        except OSError as error:
            pytest.skip(f"this machine has no address but loopback: {error}")
        found = str(probe.getsockname()[0])
    if found.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    return found


def status(
    address: str, route: tuple[str, str], token: str = "", **headers: str
) -> tuple[int, str]:
    """Return the status of an answer, and its text."""
    method, target = route
    if token:
        headers["Authorization"] = f"Bearer {token}"
    body = b'{"topic": "t"}' if method == "POST" else None
    request = urllib.request.Request(f"http://{address}{target}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
