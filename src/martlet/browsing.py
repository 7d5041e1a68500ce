"""What a request tells of where it comes from: a proxy, or a web page that a browser shows.

A page of another site can make a browser send requests to a server that only this machine reaches:

- by a form or a script. The browser then says so, in ``Sec-Fetch-Site`` or in ``Origin``.
- under a name of its own that resolves to this server's address (DNS rebinding). The browser takes
  both for one site, and only ``Host`` shows it.

Programs send neither of those headers, and name a server by its address or its own name.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

PROXIED = ("Forwarded", "X-Forwarded-For")
"""The headers by which a proxy names the client that it has."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Those that change nothing."""
ADMIN_AGENT = "martlet-admin"
"""The `User-Agent` of the Admin client, and so of the admin page."""
_HOST = re.compile(r"(?:\[([^\[\]@/]*)\]|([^\[\]@/:]*))(?::[0-9]*)?")
_SAME_SITE = frozenset({"same-origin", "none"})


def host_of(host: str) -> str:
    """Return the host of ``host:port``, without brackets, in lower case; all of what is neither."""
    found = _HOST.fullmatch(host)
    return (host if found is None else found[1] or found[2] or "").lower()


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
