"""The settings of `Admin`, and their keywords."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from martlet.client.keywords import check_above_zero
from martlet.client.transport.identity import TlsChoice


@dataclass(frozen=True, kw_only=True, slots=True)
class AdminSettings:
    """How to ask brokers and lookup daemons over HTTP.

    Attributes:
        connect_timeout_s: the time limit of connecting.
        request_timeout_s: the time limit of a request, connecting included.
        operator_token: the token of brokers that want one of operators, sent as ``Authorization:
            Bearer``, for what operators alone may do. Without TLS it is sent in clear text.
        trusted_brokers: the brokers that get the token although lookup daemons alone name them, as
            anyone may register there: networks, IP addresses, host names, and domains such as
            ``.example.org``.
        tls: True for HTTPS with the system's authorities, a `Tls`, or an SSLContext of one's own.
            It applies to the addresses given. Brokers found through lookup daemons are asked over
            HTTP, since daemons know no other port.
    """

    connect_timeout_s: float = 2.0
    request_timeout_s: float = 5.0
    operator_token: str | None = field(default=None, repr=False)
    trusted_brokers: tuple[str, ...] = ()
    tls: TlsChoice = False

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "request_timeout_s"):
            check_above_zero(name, getattr(self, name))
        token = self.operator_token
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise ValueError(
                "operator_token must be printable ASCII characters on one line, as in the broker's"
                " file; leave it out for none"
            )


class AdminOptions(TypedDict, total=False):
    """The fields of `AdminSettings` as keywords."""

    connect_timeout_s: float
    request_timeout_s: float
    operator_token: str | None
    trusted_brokers: Sequence[str]
    tls: TlsChoice | None
