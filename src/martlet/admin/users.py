"""Users of the page, and what each may do.

===========================  ============  =======================================================
The page knows users by      and they are  may act
===========================  ============  =======================================================
``--htpasswd-file``          its users     those of ``--admin-user``; without any, all of them
``--acl-http-header``        the proxy's   those of ``--admin-user``
nothing, on loopback         anonymous     everyone on this machine
nothing, elsewhere or by a   anonymous     no one, and bodies are hidden, unless
proxy                                      ``--allow-anonymous-admin``
===========================  ============  =======================================================

The header counts from loopback and from ``--trusted-proxy``: other clients could have made it up.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address, ip_network
from pathlib import Path

from martlet.http_requests import PROXIED
from martlet.options.admin import AdminOptions
from martlet.text import how_to_install

_MAX_CHECKED = 256
"""The maximum of remembered passwords: bcrypt takes long on purpose."""
_MAX_CHECKING = 2
"""The maximum of passwords that are compared at the same time, each in a thread."""
_MAX_PASSWORD_BYTES = 72
"""What bcrypt looks at."""


class Role(IntEnum):
    """What a user may do; each includes those before."""

    NUMBERS = 1
    BODIES = 2
    ACTS = 3


class NotAuthenticated(Exception):
    """The password is missing or wrong.

    Attributes:
        name: the user whose password is wrong; empty where none was given.
    """

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class User:
    """Who sent a request.

    Attributes:
        address: the client's, without the port.
        forged: the user that a header named which does not count; else empty.
        hides_bodies: whether bodies are hidden from all users.
    """

    name: str
    role: Role
    address: str
    forged: str = ""
    hides_bodies: bool = False

    @property
    def acts(self) -> bool:
        """Whether the user may act."""
        return self.role >= Role.ACTS

    @property
    def sees_texts(self) -> bool:
        """Whether the user may see the error texts of dead letters, and names in the audit."""
        return self.role >= Role.BODIES

    @property
    def sees_bodies(self) -> bool:
        """Whether the user may see messages' bodies."""
        return self.role >= Role.BODIES and not self.hides_bodies


class Users:
    """Tells the user of a request.

    Args:
        options: how users are known.

    Raises OSError: the file of passwords cannot be read; the text names the flag.
    """

    def __init__(self, options: AdminOptions) -> None:
        self._options = options
        self._is_loopback = options.is_loopback
        self._proxies = [ip_network(each, strict=False) for each in options.trusted_proxies]
        self._passwords = _read(options.htpasswd_file) if options.htpasswd_file else {}
        self._checked: dict[str, None] = {}
        self._checking = asyncio.Semaphore(_MAX_CHECKING)

    async def of(self, headers: Mapping[str, str], address: str) -> User:
        """Return the user of a request.

        Args:
            headers: of the request.
            address: the client's.

        Raises:
            NotAuthenticated: a password is wanted.
        """
        options = self._options
        named = headers.get(options.acl_http_header, "")
        forged = ""
        if options.htpasswd_file:
            name = await self._authenticated(headers.get("Authorization", ""))
        elif self._is_trusted(address):
            name = named
        else:
            name, forged = "", named
        is_local = self._is_loopback and not any(each in headers for each in PROXIED)
        return User(name, self._role(name, is_local), address, forged, not options.bodies)

    def _role(self, name: str, is_local: bool) -> Role:
        options = self._options
        if name and name in options.admin_users:
            role = Role.ACTS
        elif name and name in options.reader_users:
            role = Role.BODIES
        elif options.admin_users:
            role = Role.NUMBERS
        elif options.htpasswd_file or is_local or options.allow_anonymous_admin:
            role = Role.ACTS
        else:
            role = Role.NUMBERS
        return min(role, Role.BODIES) if options.read_only else role

    def _is_trusted(self, address: str) -> bool:
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        found = getattr(found, "ipv4_mapped", None) or found
        return found.is_loopback or any(found in network for network in self._proxies)

    async def _authenticated(self, header: str) -> str:
        kind, _, encoded = header.partition(" ")
        if kind.lower() != "basic":
            raise NotAuthenticated
        try:
            decoded = base64.b64decode(encoded, validate=True)
        except ValueError:
            raise NotAuthenticated from None
        name, _, password = decoded.decode(errors="replace").partition(":")
        if header not in self._checked:
            async with self._checking:
                await asyncio.to_thread(self._check, name, password)
            if len(self._checked) >= _MAX_CHECKED:
                del self._checked[next(iter(self._checked))]
            self._checked[header] = None
        return name

    def _check(self, name: str, password: str) -> None:
        import bcrypt

        # Compared for an unknown name, too: the time must not tell which names there are.
        known = self._passwords.get(name) or next(iter(self._passwords.values()))
        if (
            not bcrypt.checkpw(password.encode()[:_MAX_PASSWORD_BYTES], known)
            or name not in self._passwords
        ):
            raise NotAuthenticated(name)


def _read(path: str) -> dict[str, bytes]:
    try:
        import bcrypt  # noqa: F401
    except ImportError:
        raise OSError(f"--htpasswd-file wants bcrypt: {how_to_install('admin')}") from None
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"--htpasswd-file={path} cannot be read: {reason}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        name, _, hashed = line.strip().partition(":")
        if not name or name.startswith("#"):
            continue
        if not hashed.startswith(("$2y$", "$2b$", "$2a$")):
            raise OSError(
                f"--htpasswd-file={path}, line {number}: {name!r} has no bcrypt password; make one"
                " with htpasswd -B"
            )
        # What Apache calls 2y is bcrypt's 2b.
        found[name] = hashed.replace("$2y$", "$2b$", 1).encode()
    if not found:
        raise OSError(f"--htpasswd-file={path} has no users")
    return found
