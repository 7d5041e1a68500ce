"""Addresses of brokers and lookup daemons, and the TLS settings to reach them with.

``host:port`` is HTTP and ``https://host:port`` is HTTPS.  A broker that takes TLS only answers an
HTTP request with its HTTPS port, and the reader goes on there.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from martlet.addresses import Address
from martlet.http_requests import TrustedBrokers, read_tokens, token_headers

TOKEN_OPTION = "option operatorTokenFile"
TRUSTED_OPTION = "trustedBrokers"
_HTTPS = "https://"


def split_at_commas(text: str) -> tuple[str, ...]:
    """The parts of a text, each once."""
    return tuple(dict.fromkeys(entry.strip() for entry in text.split(",") if entry.strip()))


def parse_addresses(name: str, text: str) -> tuple[str, ...]:
    """Comma-separated addresses, each once. Raises ValueError, which names the option."""
    addresses = split_at_commas(text)
    if not addresses:
        raise ValueError(f"option {name} is empty")
    usual = 4161 if name == "lookup" else 4151
    plain = []
    for address in addresses:
        rest = address.removeprefix("http://").removesuffix("/")
        host, colon, port = rest.removeprefix(_HTTPS).rpartition(":")
        is_port = port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
        if not (colon and host and is_port) or "/" in host:
            raise ValueError(
                f"option {name}: {address!r} is not host:port (the HTTP port, usually {usual}),"
                " nor https://host:port"
            )
        plain.append(rest)
    return tuple(dict.fromkeys(plain))


@dataclass(frozen=True)
class OperatorToken:
    """An operator's token, and which brokers get it."""

    path: str = ""
    """The file with the token, read for each request; empty for none."""
    named: frozenset[str] = frozenset()
    """The addresses that the user has given."""
    trusted: tuple[str, ...] = ()
    """Which brokers get it although a lookup daemon alone names them; see `TrustedBrokers`."""

    @classmethod
    def checked(cls, path: str, named: Iterable[str], trusted: Iterable[str]) -> OperatorToken:
        """Check the file, if there is one, and the trusted brokers. Raises ValueError."""
        try:
            if path:
                read_tokens(path, TOKEN_OPTION)
        except OSError as error:
            raise ValueError(str(error)) from None
        entries = tuple(trusted)
        try:
            TrustedBrokers(entries)
        except ValueError as error:
            raise ValueError(f"option {TRUSTED_OPTION}: {error}") from None
        return cls(path, frozenset(named), entries)

    def is_withheld(self, address: str) -> bool:
        """Whether there is a token that a broker does not get."""
        if not self.path or address in self.named:
            return False
        broker = Address.parse(address.removeprefix(_HTTPS))
        return not TrustedBrokers(self.trusted).has(broker)

    def headers(self, address: str) -> dict[str, str]:
        """The headers with it; none for a broker that does not get it. Raises OSError."""
        return {} if self.is_withheld(address) else token_headers(self.path, TOKEN_OPTION)


NO_TOKEN = OperatorToken()


def with_port(address: str, port: int) -> str:
    """The HTTPS address on another port of the same host."""
    host = address.removeprefix(_HTTPS).rpartition(":")[0]
    return f"{_HTTPS}{host}:{port}"


@dataclass(frozen=True)
class SparkTls:
    """TLS settings of a query, as paths of files; each machine that reads must have them."""

    ca_file: str = ""
    """Certificate authorities beside the machine's own; empty for none."""
    cert_file: str = ""
    key_file: str = ""
    """`cert_file` and `key_file`: the client certificate and its key; empty for none."""
    verify: bool = True

    @classmethod
    def parse(cls, ca_file: str, cert_file: str, key_file: str, *, verify: bool) -> SparkTls:
        """Check that the files exist. Raises ValueError."""
        if key_file and not cert_file:
            raise ValueError("option tlsKeyFile needs option tlsCertFile too")
        for name, file in (
            ("tlsCaFile", ca_file),
            ("tlsCertFile", cert_file),
            ("tlsKeyFile", key_file),
        ):
            if file and not Path(file).is_file():
                raise ValueError(f"option {name}: there is no file {file!r}")
        return cls(ca_file, cert_file, key_file, verify)

    @cached_property
    def context(self) -> ssl.SSLContext:
        """The settings as Python's ssl takes them."""
        context = ssl.create_default_context()
        if self.ca_file:
            context.load_verify_locations(self.ca_file)
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "context"}

    def connection(self, address: str, timeout_s: float) -> http.client.HTTPConnection:
        """A connection to an address, not yet open."""
        host, _, port = address.removeprefix(_HTTPS).rpartition(":")
        host = host.strip("[]")
        if address.startswith(_HTTPS):
            return http.client.HTTPSConnection(
                host, int(port), timeout=timeout_s, context=self.context
            )
        return http.client.HTTPConnection(host, int(port), timeout=timeout_s)
