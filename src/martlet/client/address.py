"""Where a broker listens: a host and the port of its TCP protocol."""

from __future__ import annotations

from collections.abc import Iterable
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


Addresses = str | tuple[str, int] | Iterable[str | tuple[str, int]]
"""One address or several, each as ``"host:port"`` or ``(host, port)``."""


def parse_addresses(addresses: Addresses) -> list[Address]:
    """Read one address or several, without those named twice.

    Raises:
        ValueError: there is none, or one that is not an address.
    """
    if isinstance(addresses, str) or _is_pair(addresses):
        addresses = [addresses]  # type: ignore[list-item]
    found: dict[Address, None] = {}
    for address in addresses:
        if isinstance(address, str):
            found[Address.parse(address)] = None
        else:
            found[Address(*address)] = None  # type: ignore[misc]
    if not found:
        raise ValueError(f"no address given: name a broker, as 127.0.0.1:{DEFAULT_PORT}")
    return list(found)


def _is_pair(addresses: object) -> bool:
    return (
        isinstance(addresses, tuple)
        and len(addresses) == 2
        and isinstance(addresses[0], str)
        and isinstance(addresses[1], int)
    )
