"""Settings shared by producers and consumers, and the conversion of keywords to settings.

A producer or consumer takes a few settings objects, and each field of theirs also as a keyword::

    Consumer("orders", "billing", connection=ConnectionSettings(tls=True, connect_timeout_s=2))
    Consumer("orders", "billing", tls=True, connect_timeout_s=2)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypedDict, TypeVarTuple

from martlet.client.hooks import NO_HOOKS, Hooks
from martlet.client.transport.backoff import Backoff
from martlet.client.transport.dialer import Dialer
from martlet.client.transport.identity import Compression, Identity, TlsChoice

if TYPE_CHECKING:
    from martlet.addresses import Address

SettingsT = TypeVarTuple("SettingsT")


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


def check_at_least(name: str, value: float, min_value: float, hint: str = "") -> None:
    """Check a setting with a minimum; the hint names the alternative. Raises ValueError."""
    if not value >= min_value:
        raise ValueError(f"{name}={value}: must be at least {min_value}{hint and f'; {hint}'}")


def check_above_zero(name: str, value: float) -> None:
    """Check a setting that must be above 0. Raises ValueError."""
    if not value > 0:
        raise ValueError(f"{name}={value} must be above 0")


def apply_options(
    owner: type, options: Mapping[str, Any], *settings: *SettingsT
) -> tuple[*SettingsT]:
    """Return settings with fields replaced by options of their names; None replaces nothing.

    Args:
        owner: the class that takes them, for the error.
        options: values by the names of fields.
        settings: dataclasses with distinct field names.

    Raises:
        TypeError: an option is not a field of these settings. ValueError: a value is out of its
        limits.
    """
    left = dict(options)
    applied: list[Any] = []
    known: list[str] = []
    each: Any
    for each in settings:
        names = [one.name for one in fields(each)]
        known += names
        taken = {name: left.pop(name) for name in names if name in left}
        changes = {name: value for name, value in taken.items() if value is not None}
        applied.append(replace(each, **changes) if changes else each)
    if left:
        name = next(iter(left))
        close = get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise TypeError(f"{owner.__name__}() has no keyword argument {name!r}{hint}")
    return tuple(applied)
