"""What every request passes: the host it names, the site it comes from, its user and role.

A page on another site can make a browser send requests here, with the browser's address and
passwords: see `martlet.http_requests`. ``Host`` must be a literal address, ``localhost``, or one of
``--allowed-host``, and what changes something must come from this site, or from a program.

Pages are answered under a content security policy that runs no script but the page's own files.

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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from ipaddress import ip_address, ip_network
from pathlib import Path

from aiohttp import web

from martlet.http_requests import PROXIED, SAFE_METHODS, host_of, is_address, is_of_other_site
from martlet.options.admin import AdminOptions
from martlet.text import how_to_install

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src"
        " 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_ONCE = ("Host", "Authorization", *PROXIED, "Origin", "Sec-Fetch-Site")
"""The headers that tell who sends a request, beside `--acl-http-header`. A proxy that adds its own
to one of a client's would let the client choose.
"""
_MAX_CHECKED = 256
"""The maximum of remembered passwords: bcrypt takes long on purpose."""
_MAX_CHECKING = 2
"""The maximum of passwords that are compared at the same time, each in a thread."""
_MAX_PASSWORD_BYTES = 72
"""The bytes that bcrypt compares."""


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
    """Who sent a request."""

    name: str
    role: Role
    address: str
    """The client's, without the port."""
    forged: str = ""
    """The user that a header named which does not count; else empty."""
    hides_bodies: bool = False
    """Whether bodies are hidden from all users."""

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

    Raises OSError: the file of passwords cannot be read; the text names the flag.
    """

    def __init__(self, options: AdminOptions) -> None:
        self._options = options
        self._is_loopback = options.is_loopback
        self._proxies = [ip_network(proxy, strict=False) for proxy in options.trusted_proxies]
        self._passwords = _read(options.htpasswd_file) if options.htpasswd_file else {}
        self._checked: dict[str, None] = {}
        self._checking = asyncio.Semaphore(_MAX_CHECKING)

    async def of(self, headers: Mapping[str, str], address: str) -> User:
        """Return the user of a request. Raises NotAuthenticated: a password is wanted."""
        options = self._options
        named = headers.get(options.acl_http_header, "")
        forged = ""
        if options.htpasswd_file:
            name = await self._authenticated(headers.get("Authorization", ""))
        elif self._is_trusted(address):
            name = named
        else:
            name, forged = "", named
        is_local = self._is_loopback and not any(name in headers for name in PROXIED)
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
            ip = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        ip = getattr(ip, "ipv4_mapped", None) or ip
        return ip.is_loopback or any(ip in network for network in self._proxies)

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
        hashed = self._passwords.get(name) or next(iter(self._passwords.values()))
        if (
            not bcrypt.checkpw(password.encode()[:_MAX_PASSWORD_BYTES], hashed)
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
    passwords = {}
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
        passwords[name] = hashed.replace("$2y$", "$2b$", 1).encode()
    if not passwords:
        raise OSError(f"--htpasswd-file={path} has no users")
    return passwords


class RefusalReason(StrEnum):
    """Why a request was refused, without what the client made up."""

    HOST = "host"
    REPEATED_HEADER = "repeated header"
    PASSWORD = "password"
    MADE_UP_USER = "made-up user"
    OTHER_SITE = "other site"
    ROLE = "role"


_USER = web.RequestKey("user", User)
STRANGER = User("", Role.NUMBERS, "")
"""Who asks for what is for everyone, and was not asked for a password."""


def user_of(request: web.Request) -> User:
    """Return the user of a request."""
    return request[_USER]


class Guard:
    """The middleware."""

    def __init__(
        self,
        options: AdminOptions,
        users: Users,
        refused: Callable[[web.Request, User, RefusalReason, str], None],
    ) -> None:
        self._hosts = {host.lower() for host in options.allowed_hosts}
        self._once = (options.acl_http_header, *_ONCE)
        self._open = {f"{options.prefix}/ping", f"{options.prefix}/static/{{name}}"}
        """What is for everyone: it tells nothing of brokers, and monitors have no password."""
        self._users = users
        self._refused = refused

    async def refuse_strangers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, unless it is refused."""
        try:
            request.url  # noqa: B018, it is kept for the audit
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"the header Host names no host: {error}\n") from None
        repeated = next((name for name in self._once if len(_all(request, name)) > 1), "")
        if repeated:
            stranger = User("", Role.NUMBERS, request.remote or "")
            why = f"the request has several headers {repeated}, and it is not known which counts"
            self._refused(request, stranger, RefusalReason.REPEATED_HEADER, why)
            raise web.HTTPBadRequest(text=f"{why}\n")
        resource = request.match_info.route.resource
        if resource is not None and resource.canonical in self._open:
            request[_USER] = STRANGER
            return await handler(request)
        try:
            request[_USER] = user = await self._users.of(request.headers, request.remote or "")
        except NotAuthenticated as error:
            if error.name:
                stranger = User("", Role.NUMBERS, request.remote or "")
                why = f"a wrong password of {error.name[:80]!r}"
                self._refused(request, stranger, RefusalReason.PASSWORD, why)
            raise web.HTTPUnauthorized(
                text="the name or the password is wrong\n",
                headers={"WWW-Authenticate": 'Basic realm="Martlet", charset="UTF-8"'},
            ) from None
        refusal = self._refusal(request, user)
        if refusal is not None:
            self._refused(request, user, *refusal)
            raise web.HTTPForbidden(text=f"{refusal[1]}\n")
        return await handler(request)

    def _refusal(self, request: web.Request, user: User) -> tuple[RefusalReason, str] | None:
        """Why a request is refused, also in words; None for a good one."""
        host = host_of(request.host)
        if host not in self._hosts and not is_address(host):
            return (
                RefusalReason.HOST,
                f"the page is not reached as {host!r}: use its address, or start it with"
                f" --allowed-host={host}",
            )
        if request.method in SAFE_METHODS:
            return None
        if user.forged:
            return (
                RefusalReason.MADE_UP_USER,
                f"a header names the user {user.forged!r}, and {user.address} is no proxy of"
                " --trusted-proxy",
            )
        if is_of_other_site(request.headers, request.host):
            return RefusalReason.OTHER_SITE, "the request comes from a page of another site"
        return None


def _all(request: web.Request, name: str) -> list[str]:
    return request.headers.getall(name, [])


async def set_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Set the headers of every answer: a signal of aiohttp's."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
