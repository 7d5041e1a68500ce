"""Settings shared by producers and consumers, and brokers' addresses in several forms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypedDict

from martlet.addresses import DEFAULT_PORT, Address
from martlet.client.hooks import NO_HOOKS, Hooks
from martlet.client.keywords import check_above_zero
from martlet.client.transport.backoff import Backoff
from martlet.client.transport.dialer import Dialer
from martlet.client.transport.identity import Compression, Identity, TlsChoice

Addresses = str | tuple[str, int] | Iterable[str | tuple[str, int]]
"""One address or several, each as ``"host:port"`` or ``(host, port)``."""


def parse_addresses(addresses: Addresses) -> list[Address]:
    """Read one address or several, without those named twice. Raises ValueError: there is none, or
    one that is not an address.
    """
    if isinstance(addresses, str) or _is_pair(addresses):
        addresses = [addresses]  # type: ignore[list-item]
    parsed: dict[Address, None] = {}
    for address in addresses:
        if isinstance(address, str):
            parsed[Address.parse(address)] = None
        else:
            parsed[Address(*address)] = None  # type: ignore[misc]
    if not parsed:
        raise ValueError(f"no address given: name a broker, as 127.0.0.1:{DEFAULT_PORT}")
    return list(parsed)


def _is_pair(addresses: object) -> bool:
    return (
        isinstance(addresses, tuple)
        and len(addresses) == 2
        and isinstance(addresses[0], str)
        and isinstance(addresses[1], int)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionSettings:
    """How to find and connect to brokers.

    Attributes:
        lookup: the HTTP addresses of lookup daemons, as ``"host:4161"`` or URLs: the client
            connects to every broker that they know, now or later.
        lookup_poll_s: the interval of polls of a lookup daemon in seconds; a lost connection causes
            polls at once and at growing intervals.
        connect_timeout_s: the time limit of one attempt to connect.
        backoff: the delay before reconnecting.
        identity: how the client describes itself to brokers, including its message timeout.
        tls, compression, auth_secret: override those of the identity; see `Identity`.
        hooks: functions to call for logs, metrics and traces.
    """

    lookup: str | Iterable[str] | None = None
    lookup_poll_s: float = 60.0
    connect_timeout_s: float = 5.0
    backoff: Backoff = field(default_factory=Backoff)
    identity: Identity = field(default_factory=Identity)
    tls: TlsChoice | None = None
    compression: Compression | None = None
    auth_secret: str | bytes | None = field(default=None, repr=False)
    hooks: Hooks = NO_HOOKS

    def __post_init__(self) -> None:
        for name in ("lookup_poll_s", "connect_timeout_s"):
            check_above_zero(name, getattr(self, name))
        self.identity.secured(self.tls, self.compression, self.auth_secret)  # Raises ValueError.
        if self.lookup is not None:
            daemons = [self.lookup] if isinstance(self.lookup, str) else self.lookup
            object.__setattr__(self, "lookup", tuple(daemons))

    @property
    def lookup_daemons(self) -> tuple[str, ...] | None:
        """The addresses of the lookup daemons; None without discovery."""
        return None if self.lookup is None else tuple(self.lookup)

    @property
    def secured_identity(self) -> Identity:
        """The identity, overridden by `tls`, `compression` and `auth_secret`."""
        return self.identity.secured(self.tls, self.compression, self.auth_secret)

    def dialer(self, address: Address, *, is_found: bool, hooks: Hooks) -> Dialer:
        """Make the dialer of one broker, which calls these hooks.

        Args:
            address: the broker's.
            is_found: whether a lookup daemon named it, and not the application.
            hooks: guarded against their exceptions.
        """
        dialer = Dialer(
            [address],
            self.secured_identity,
            backoff=self.backoff,
            connect_timeout_s=self.connect_timeout_s,
            are_found=is_found,
        )
        dialer.on_connected, dialer.on_lost = hooks.on_connected, hooks.on_lost
        return dialer


class ConnectionOptions(TypedDict, total=False):
    """The fields of `ConnectionSettings` as keywords."""

    lookup: str | Iterable[str] | None
    lookup_poll_s: float
    connect_timeout_s: float
    backoff: Backoff | None
    identity: Identity | None
    tls: TlsChoice | None
    compression: Compression | None
    auth_secret: str | bytes | None
    hooks: Hooks | None
