"""What every request passes: the host it names, the site it comes from, its user.

A page on another site can make a browser send requests here, with the browser's address and
passwords: see `martlet.http_requests`. ``Host`` must be a literal address, ``localhost``, or one of
``--allowed-host``, and what changes something must come from this site, or from a program.

Pages are answered under a content security policy that runs no script but the page's own files.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from martlet.admin.audit import AuditLog, RefusalReason
from martlet.admin.users import NotAuthenticated, Role, User, Users
from martlet.http_requests import PROXIED, SAFE_METHODS, host_of, is_address, is_of_other_site
from martlet.options.admin import AdminOptions

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
_USER = web.RequestKey("user", User)
_ONCE = ("Host", "Authorization", *PROXIED, "Origin", "Sec-Fetch-Site")
"""The headers that tell who sends a request, beside `--acl-http-header`. A proxy that adds its own
to one of a client's would let the client choose.
"""
STRANGER = User("", Role.NUMBERS, "")
"""Who asks for what is for everyone, and was not asked for a password."""


def user_of(request: web.Request) -> User:
    """Return the user of a request."""
    return request[_USER]


class Guard:
    """The middleware.

    Args:
        options: the hosts by which the page is reached.
        users: tells users.
        audit: is told what was refused.
    """

    def __init__(self, options: AdminOptions, users: Users, audit: AuditLog) -> None:
        self._hosts = {host.lower() for host in options.allowed_hosts}
        self._once = (options.acl_http_header, *_ONCE)
        self._open = {f"{options.prefix}/ping", f"{options.prefix}/static/{{name}}"}
        """What is for everyone: it tells nothing of brokers, and monitors have no password."""
        self._users = users
        self._audit = audit

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
            self._audit.refused(request, stranger, RefusalReason.REPEATED_HEADER, why)
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
                self._audit.refused(request, stranger, RefusalReason.PASSWORD, why)
            raise web.HTTPUnauthorized(
                text="the name or the password is wrong\n",
                headers={"WWW-Authenticate": 'Basic realm="Martlet", charset="UTF-8"'},
            ) from None
        refusal = self._refusal(request, user)
        if refusal is not None:
            self._audit.refused(request, user, *refusal)
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
