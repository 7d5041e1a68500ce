"""Parse brokers' addresses: one or several, in several forms."""

from __future__ import annotations

from collections.abc import Iterable

from martlet.addresses import DEFAULT_PORT, Address

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
