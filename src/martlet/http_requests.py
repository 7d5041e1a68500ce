"""HTTP requests: their operator tokens, what tells where they come from, and how an answer is read.

By an operator token a broker knows operators, their commands and their Spark jobs. A request has
one in the header ``Authorization: Bearer TOKEN``. A file has one token a line: the broker accepts
each, and a client sends the first. So tokens are replaced one file after the other, with the new
and the old one in the broker's.

Anyone who reaches a lookup daemon can register a broker there. So brokers that a lookup daemon
names get no token, but for those that the operator trusts.

Browsers: a page of another site can make a browser send requests to a server that only this machine
reaches:

- by a form or a script. The browser then says so, in ``Sec-Fetch-Site`` or in ``Origin``.
- under a name of its own that resolves to this server's address (DNS rebinding). The browser takes
  both for one site, and only ``Host`` shows it.

Programs send neither of those headers, and name a server by its address or its own name.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from martlet.addresses import Address, is_host

if TYPE_CHECKING:
    import aiohttp

TOKEN_FLAG = "operator-token-file"
TOKEN_SETTING = "operator_token_file"
"""Its name in the client's config file."""
TRUSTED_FLAG = "trusted-broker"
TRUSTED_SETTING = "trusted_broker"
TRUSTED_VARIABLE = "MARTLET_TRUSTED_BROKER"
TOKEN_VARIABLE = "MARTLET_OPERATOR_TOKEN_FILE"
"""The environment variable that stands for the flag, of commands and Spark jobs."""
SCHEME = "Bearer "
MIN_LENGTH = 16
MAX_LENGTH = 512
MAX_TOKENS = 100
_MAX_FILE_BYTES = 1 << 16
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What RFC 6750 allows."""
_HOW = "make one with `openssl rand -hex 32`"
PROXIED = ("Forwarded", "X-Forwarded-For")
"""The headers by which a proxy names the client that it has."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Those that change nothing."""
ADMIN_AGENT = "martlet-admin"
"""The `User-Agent` of the Admin client, and so of the admin page."""
_HOST = re.compile(r"(?:\[([^\[\]@/]*)\]|([^\[\]@/:]*))(?::[0-9]*)?")
_SAME_SITE = frozenset({"same-origin", "none"})
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_tokens(path: str, setting: str = f"--{TOKEN_FLAG}") -> tuple[str, ...]:
    """Read the tokens of a file.

    Args:
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
        self._addresses: set[tuple[str, int]] = set()
        self._domains: set[str] = set()
        for entry in entries:
            try:
                self._networks.append(ip_network(entry, strict=False))
            except ValueError:
                host, port = _host_and_port(entry.removeprefix("."))
                if entry.startswith(".") and not port:
                    self._domains.add(f".{host}")
                else:
                    self._addresses.add((host, port))

    def has(self, address: Address) -> bool:
        """Return whether it is one of them."""
        ip = _ip(address.host)
        if ip is not None and any(ip in network for network in self._networks):
            return True
        host = _comparable(address.host)
        if any(host.endswith(domain) for domain in self._domains):
            return True
        return not self._addresses.isdisjoint(((host, 0), (host, address.port)))


def _host_and_port(entry: str) -> tuple[str, int]:
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
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def token_headers(path: str, setting: str = f"--{TOKEN_FLAG}") -> dict[str, str]:
    """Return the headers of a request with the first token of a file; none without a file.

    Raises:
        OSError: as `read_tokens`.
    """
    return {"Authorization": SCHEME + read_tokens(path, setting)[0]} if path else {}


def host_of(host: str) -> str:
    """Return the host of ``host:port``, without brackets, in lower case; all of what is neither."""
    match = _HOST.fullmatch(host)
    return (host if match is None else match[1] or match[2] or "").lower()


def is_address(host: str) -> bool:
    """Whether a host is ``localhost`` or a literal address, not a name in DNS."""
    if host == "localhost":
        return True
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def own_hosts(allowed: Iterable[str], broadcast_address: str) -> frozenset[str]:
    """Return the names in DNS by which browsers may reach a server, in lower case."""
    return frozenset(map(str.lower, (*allowed, broadcast_address, socket.gethostname())))


def is_of_browser(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a page sends a request that changes something."""
    return "Sec-Fetch-Site" in headers or "Origin" in headers


def is_of_other_site(headers: Mapping[str, str], host: str) -> bool:
    """Whether a browser says that a page of another site made it send a request.

    Args:
        headers: of the request, by their names in any case.
        host: its ``Host``.
    """
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is not None:
        return site not in _SAME_SITE
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:
        return True


async def load_aiohttp() -> None:
    """Import aiohttp in a thread, unless it is there.

    That takes half a second, and much more on a busy machine, for which an import in the event loop
    would stop all connections of it.
    """
    import asyncio  # Here, as options need this module, and commands start without it.

    module = sys.modules.get("aiohttp")
    if module is None or getattr(module.__spec__, "_initializing", False):
        await asyncio.to_thread(import_module, "aiohttp")


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Read the complete body, whether its size is announced or not.

    Raises:
        ValueError: it is longer than `max_bytes`.
        aiohttp.ClientError: the connection was lost.
        TimeoutError: it took longer than the session allows.
    """
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > max_bytes:
            raise ValueError(f"an answer of more than {max_bytes} bytes")
    return bytes(body)


async def read_json(response: aiohttp.ClientResponse, max_bytes: int) -> Any:
    """Parse the body as JSON; raises as `read_body`, and ValueError where it is not JSON.

    Half a surrogate pair is a character in JSON and none in UTF-8; each is replaced by ``?``.
    """
    body = await read_body(response, max_bytes)
    try:
        value = json.loads(body.decode())
        if _SURROGATE.search(body):
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
        return value
    except RecursionError:
        raise ValueError("an answer too deep to be read") from None
