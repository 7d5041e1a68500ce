"""Operator tokens: by them a broker knows operators, their commands and their Spark jobs.

A request has one in the header ``Authorization: Bearer TOKEN``. A file has one token a line: the
broker accepts each, and a client sends the first. So tokens are replaced one file after the other,
with the new and the old one in the broker's.

Anyone who reaches a lookup daemon can register a broker there. So brokers that a lookup daemon
names get no token, but for those that the operator trusts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path

from martlet.addresses import Address, is_host

FLAG = "operator-token-file"
SETTING = "operator_token_file"
"""Its name in the client's config file."""
TRUSTED_FLAG = "trusted-broker"
TRUSTED_SETTING = "trusted_broker"
TRUSTED_VARIABLE = "MARTLET_TRUSTED_BROKER"
VARIABLE = "MARTLET_OPERATOR_TOKEN_FILE"
"""The environment variable that stands for the flag, of commands and Spark jobs."""
SCHEME = "Bearer "
MIN_LENGTH = 16
MAX_LENGTH = 512
MAX_TOKENS = 100
_MAX_FILE_BYTES = 1 << 16
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What RFC 6750 allows."""
_HOW = "make one with `openssl rand -hex 32`"


def read_tokens(path: str, setting: str = f"--{FLAG}") -> tuple[str, ...]:
    """Read the tokens of a file.

    Args:
        path: of the file.
        setting: the name of the option that has the path, for the error.

    Raises:
        OSError: it cannot be read, has no token, too many, or a line that is none; the text names
            the file and the line, and shows no token.
    """
    name = f"{setting}={path}"
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise OSError(f"{name} cannot be read: {error.strerror}") from error
    tokens: list[str] = []
    for number, line in enumerate(data.decode("latin-1").splitlines(), 1):
        token = line.strip()
        if not token:
            continue
        if not _TOKEN.fullmatch(token):
            raise OSError(
                f"{name}: line {number} is no token, which has only letters, digits and . _ ~ + / -"
                f" with = at its end: {_HOW}"
            )
        if not MIN_LENGTH <= len(token) <= MAX_LENGTH:
            raise OSError(
                f"{name}: the token of line {number} has {len(token)} characters, and must have"
                f" {MIN_LENGTH} to {MAX_LENGTH}: {_HOW}"
            )
        tokens.append(token)
    if not tokens:
        raise OSError(f"{name} has no token: {_HOW}")
    if len(tokens) > MAX_TOKENS or len(data) > _MAX_FILE_BYTES:
        raise OSError(f"{name} has more than {MAX_TOKENS} tokens, or {_MAX_FILE_BYTES} bytes")
    return tuple(tokens)


class TrustedBrokers:
    """The brokers that get the token although a lookup daemon alone names them.

    Args:
        entries: networks such as 10.0.0.0/8, IP addresses, host names, and domains such as
            ``.example.org`` for all names below. Addresses and names may have a port. A network is
            for brokers that are named by an IP address.

    Raises:
        ValueError: an entry is none of these.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        self._places: set[tuple[str, int]] = set()
        self._domains: set[str] = set()
        for entry in entries:
            try:
                self._networks.append(ip_network(entry, strict=False))
            except ValueError:
                host, port = _place(entry.removeprefix("."))
                if entry.startswith(".") and not port:
                    self._domains.add(f".{host}")
                else:
                    self._places.add((host, port))

    def has(self, address: Address) -> bool:
        """Return whether it is one of them."""
        ip = _ip(address.host)
        if ip is not None and any(ip in network for network in self._networks):
            return True
        host = _comparable(address.host)
        if any(host.endswith(domain) for domain in self._domains):
            return True
        return not self._places.isdisjoint(((host, 0), (host, address.port)))


def _place(entry: str) -> tuple[str, int]:
    """Return a host and a port, 0 for any. Raises ValueError."""
    host, _, port = entry.rpartition(":")
    address = Address.parse(entry) if port.isdigit() and host else Address(entry.strip("[]"), 0)
    if not is_host(address.host):
        raise ValueError(f"{entry!r} is no network such as 10.0.0.0/8, IP address or host name")
    return _comparable(address.host), address.port


def _comparable(host: str) -> str:
    ip = _ip(host)
    return str(ip) if ip is not None else host.lower().rstrip(".")


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def token_headers(path: str, setting: str = f"--{FLAG}") -> dict[str, str]:
    """Return the headers of a request with the first token of a file; none without a file.

    Raises:
        OSError: as `read_tokens`.
    """
    return {"Authorization": SCHEME + read_tokens(path, setting)[0]} if path else {}
