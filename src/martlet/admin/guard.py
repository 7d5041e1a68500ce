"""What every request passes: the host it names, the site it comes from, its user.

A page on another site can make a browser send requests here, with the browser's address and
passwords: see `martlet.browsing`. ``Host`` must be a literal address, ``localhost``, or one of
``--allowed-host``, and what changes something must come from this site, or from a program.

Pages are answered under a content security policy that runs no script but the page's own files.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from martlet.admin.audit import AuditLog
from martlet.admin.users import NotAuthenticated, Role, User, Users
from martlet.browsing import SAFE_METHODS, host_of, is_address, is_of_other_site
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
        self._users = users
        self._audit = audit

    async def refuse_strangers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, unless it is refused."""
        try:
            request[_USER] = user = await self._users.of(request.headers, request.remote or "")
        except NotAuthenticated as error:
            if error.name:
                stranger = User("", Role.NUMBERS, request.remote or "")
                self._audit.refused(request, stranger, f"a wrong password of {error.name[:80]!r}")
            raise web.HTTPUnauthorized(
                text="the name or the password is wrong\n",
                headers={"WWW-Authenticate": 'Basic realm="Martlet", charset="UTF-8"'},
            ) from None
        refusal = self._refusal(request, user)
        if refusal:
            self._audit.refused(request, user, refusal)
            raise web.HTTPForbidden(text=f"{refusal}\n")
        return await handler(request)

    def _refusal(self, request: web.Request, user: User) -> str:
        """Why a request is refused; empty for a good one."""
        host = host_of(request.host)
        if host not in self._hosts and not is_address(host):
            return (
                f"the page is not reached as {host!r}: use its address, or start it with"
                f" --allowed-host={host}"
            )
        if request.method in SAFE_METHODS:
            return ""
        if user.forged:
            return (
                f"a header names the user {user.forged!r}, and {user.address} is no proxy of"
                " --trusted-proxy"
            )
        if is_of_other_site(request.headers, request.host):
            return "the request comes from a page of another site"
        return ""


async def set_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Set the headers of every answer: a signal of aiohttp's."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
