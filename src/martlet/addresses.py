"""Addresses: that of a broker, a host and the port of its TCP protocol, and those of sockets."""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio

DEFAULT_PORT = 4150
_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)
_MAX_NAME_BYTES = 253
_MAX_SHOWN = 100


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
        if "://" in rest:
            raise ValueError(
                f"{text!r} is a URL: name a broker's TCP listener, as 127.0.0.1:{DEFAULT_PORT}"
            )
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


def is_host(text: str) -> bool:
    """Return whether a text is a host name or an IP address, and nothing else: it can stand in a
    URL. IPv6 has neither brackets nor a zone, and Unicode names are written in ASCII, as xn--.
    """
    try:
        return "%" not in text and bool(ip_address(text))
    except ValueError:
        pass
    if len(text) > _MAX_NAME_BYTES or not _NAME.fullmatch(text):
        return False
    try:
        # Other spellings of an IP address, which resolvers take: 127.1, 0x7f000001, 2130706433.
        socket.inet_aton(text.rstrip("."))
    except OSError:
        return True
    return False


def lookup_address(host: object, port: object) -> Address:
    """Read the address of a broker that a lookup daemon names: anyone may register one.

    Raises:
        ValueError: it is no host name or IP address with a port.
    """
    if not isinstance(host, str) or not is_host(host):
        raise ValueError(f"{repr(host)[:_MAX_SHOWN]} is no host name or IP address")
    if type(port) is not int or not 0 < port < 65536:
        raise ValueError(f"{repr(port)[:_MAX_SHOWN]} is no port")
    return Address(host, port)


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


def shown_peer(transport: asyncio.BaseTransport | None) -> str:
    """Return a client's address as ``host:port``; ``@`` for a client at a Unix socket."""
    return shown_name(transport and transport.get_extra_info("peername"))


def shown_name(name: object) -> str:
    """Return the name of a socket as `shown_peer` does."""
    if isinstance(name, bytes):
        name = name.replace(b"\0", b"@", 1).decode(errors="replace")
    if isinstance(name, str):
        return name or "@"
    if not isinstance(name, tuple):
        return "@"
    host = shown_host(str(name[0]))
    return f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"


def shown_host(host: str) -> str:
    """Return a host to show: an IPv4 address that is mapped into IPv6 as IPv4."""
    return host.removeprefix("::ffff:")
