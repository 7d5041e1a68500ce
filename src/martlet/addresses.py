"""The address of a broker: a host and the port of its TCP protocol."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

DEFAULT_PORT = 4150


class Address(NamedTuple):
    """A broker's TCP address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``host``, ``host:port``, ``[v6 address]:port`` or any of them after ``tcp://``.

        Raises:
            ValueError: it is none of these.
        """
        rest = text.removeprefix("tcp://")
        host, colon, port = rest.rpartition(":")
        if rest.endswith("]") or not colon:
            host, port = rest, str(DEFAULT_PORT)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{text!r}: write an IPv6 address in brackets, as [::1]:4150")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"{text!r} is no address: it must be like 127.0.0.1:{DEFAULT_PORT}")
        return cls(host, int(port))


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches a server that listens on an ``<addr>:<port>``."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_wildcard(address: str) -> bool:
    """Return whether an ``<addr>:<port>`` stands for all addresses of a machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
